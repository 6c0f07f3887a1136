"""The step loop: schedule, forward, sample, commit, hand out. Runs on the one thread that owns MLX."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import mlx.core as mx
import numpy as np
import structlog

from plait.engine.batch import Batch, BatchBuilder
from plait.engine.outputs import Delta, Logprob
from plait.engine.request import EngineRequest, token_text
from plait.engine.sampler import Sampled, sample
from plait.errors import RequestError
from plait.models.load import LoadedModel
from plait.plan import Plan
from plait.scheduler.scheduler import ChooseVictim, Schedule, Scheduler, StepReport

log = structlog.get_logger(__name__)

StepDone = Callable[[StepReport], None]


@attrs.define
class Totals:
    """What an engine has done since it started.

    Attributes:
        steps: forwards.
        prompt_tokens: prompt tokens computed, those computed again after preemption included.
        generated_tokens: tokens sampled.
        preemptions: times that a request gave up its pages.
        finished: requests by finish reason; "error" for those that failed.
        forward_seconds: time in MLX: forward, sampling, commit.
        step_seconds: time of whole steps.
    """

    steps: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    preemptions: int = 0
    finished: dict[str, int] = attrs.field(factory=dict)
    forward_seconds: float = 0.0
    step_seconds: float = 0.0


class EngineCore:
    """Runs requests on a loaded model, one step at a time."""

    def __init__(
        self,
        model: LoadedModel,
        plan: Plan,
        tokenizer: Any,
        max_num_batched_tokens: int,
        choose_victim: ChooseVictim,
        step_done: StepDone,
    ) -> None:
        self.plan = plan
        self.totals = Totals()
        self.scheduler = Scheduler(plan, plan.max_num_seqs, max_num_batched_tokens, choose_victim)
        self._forward = model.forward
        self._arenas = model.arenas
        self._builder = BatchBuilder(plan)
        self._tokenizer = tokenizer
        self._step_done = step_done
        self._requests: dict[str, EngineRequest] = {}
        self._forward_seconds = 0.0

    @property
    def busy(self) -> bool:
        """Whether a request waits or runs."""
        return bool(self._requests)

    def add(self, request: EngineRequest) -> None:
        """Put a request in line; one that can never run to its end, or whose id is taken, gets its error at once."""
        try:
            if request.sequence.id in self._requests:
                raise RequestError(
                    f"There is a request {request.sequence.id!r} already; choose another id.", status=409
                )
            self.scheduler.add(request.sequence)
        except RequestError as error:
            self._send(request, Delta(request.sequence.id, "", [], finish_reason="error", error=error))
        else:
            self._requests[request.sequence.id] = request

    def abort(self, request_id: str) -> None:
        """Take a request out, wherever it stands; one that is not there has finished already."""
        request = self._requests.get(request_id)
        if request is not None:
            self._close(request, Delta(request_id, "", [], finish_reason="abort"))

    def abort_all(self) -> None:
        """Take every request out."""
        for request_id in list(self._requests):
            self.abort(request_id)

    def release(self) -> None:
        """Let go of the model and its pages; no step can follow."""
        del self._forward, self._arenas

    def step(self) -> None:
        """Run one step; a forward that fails takes its own requests with it, and nothing else."""
        start = time.perf_counter()
        self._forward_seconds = 0.0
        schedule = self.scheduler.schedule()
        if not schedule.rows:
            return
        self._note_schedule(schedule)
        try:
            batch, sampled = self._run(schedule)
        except Exception as error:
            self._fail(schedule, error)
        else:
            self._hand_out(batch, sampled)
        seconds = time.perf_counter() - start
        self.totals.steps += 1
        self.totals.step_seconds += seconds
        self._step_done(self._report(schedule, seconds))

    def _run(self, schedule: Schedule) -> tuple[Batch, Sampled | None]:
        """Run the forward and write what it produced; nothing lazy is left behind."""
        self._arenas.zero(schedule.new_pages)
        batch = self._builder.build(schedule)
        draws = [self._requests[row.request.id].draw() for row in batch.sampling]
        start = time.perf_counter()
        logits = self._forward(batch.tokens, batch.step)
        sampled = sample(logits, draws) if draws else None
        mx.eval([] if sampled is None else sampled.arrays(), batch.step.produced())
        self._arenas.commit(batch.step, batch.blocks, batch.slots)
        self._forward_seconds = time.perf_counter() - start
        self.totals.forward_seconds += self._forward_seconds
        for row in batch.rows:
            self.scheduler.advance(row)
        return batch, sampled

    def _hand_out(self, batch: Batch, sampled: Sampled | None) -> None:
        if sampled is None:
            return
        tokens = np.array(sampled.tokens).tolist()
        tables = _logprob_tables(sampled)
        self.totals.generated_tokens += len(tokens)
        for index, (row, token) in enumerate(zip(batch.sampling, tokens, strict=True)):
            request = self._requests[row.request.id]
            logprobs = None
            if request.params.logprobs is not None and tables is not None:
                logprobs = self._logprobs(tables, index, token, request.params.logprobs)
            delta = request.accept(token, logprobs)
            if delta.finish_reason is not None:
                self._close(request, delta)
            elif not self._send(request, delta):
                self.abort(request.sequence.id)

    def _logprobs(self, tables: Sequence[Any], index: int, token: int, count: int) -> dict[int, Logprob]:
        """Return the token's own log-probability and those of the `count` likeliest."""
        own, ids, values, ranks = tables
        entries = {}
        if ids is not None:
            for place in range(min(count, len(ids[index]))):
                other = ids[index][place]
                entries[other] = Logprob(values[index][place], place + 1, token_text(self._tokenizer, other))
        if token not in entries:
            entries[token] = Logprob(own[index], ranks[index], token_text(self._tokenizer, token))
        return entries

    def _close(self, request: EngineRequest, delta: Delta) -> None:
        """Free a request's pages and send its last delta."""
        self.scheduler.finish(request.sequence)
        del self._requests[request.sequence.id]
        reason = "error" if delta.error is not None else str(delta.finish_reason)
        self.totals.finished[reason] = self.totals.finished.get(reason, 0) + 1
        log.info(
            "request finished",
            request_id=request.sequence.id,
            reason=reason,
            prompt_tokens=len(request.sequence.prompt),
            generated_tokens=len(request.sequence.output),
            preemptions=request.sequence.preemptions,
        )
        self._send(request, delta)

    def _send(self, request: EngineRequest, delta: Delta) -> bool:
        """Hand a delta over; a receiver that raises (its event loop is gone, say) costs nobody else anything."""
        try:
            request.sink(delta)
        except Exception as error:
            log.warning("receiver failed", request_id=request.sequence.id, error=repr(error))
            return False
        return True

    def _fail(self, schedule: Schedule, error: Exception) -> None:
        """End the requests of a step that raised. Nothing was committed, so all others are as they were."""
        ids = [row.request.id for row in schedule.rows]
        log.error("step failed", request_ids=ids, error=repr(error), exc_info=error)
        for request_id in ids:
            self._close(self._requests[request_id], Delta(request_id, "", [], finish_reason="error", error=error))

    def _note_schedule(self, schedule: Schedule) -> None:
        for victim in schedule.preempted:
            self.totals.preemptions += 1
            log.info("request preempted", request_id=victim.id, tokens=victim.num_tokens, times=victim.preemptions)
        for row in schedule.rows:
            self.totals.prompt_tokens += max(0, min(row.stop, len(row.request.prompt)) - row.start)

    def _report(self, schedule: Schedule, seconds: float) -> StepReport:
        return StepReport(
            index=self.totals.steps - 1,
            decode_rows=schedule.decode,
            chunk_rows=len(schedule.rows) - schedule.decode,
            tokens=schedule.tokens,
            preempted=[request.id for request in schedule.preempted],
            running=len(self.scheduler.running),
            waiting=len(self.scheduler.waiting),
            free_pages=self.scheduler.allocator.free_pages,
            seconds=seconds,
            forward_seconds=self._forward_seconds,
        )


def _logprob_tables(sampled: Sampled) -> Sequence[Any] | None:
    """Return the sampler's log-probabilities as lists, or None if no row wants them."""
    if sampled.logprobs is None:
        return None
    arrays = (sampled.logprobs, sampled.top_ids, sampled.top_logprobs, sampled.ranks)
    return [None if array is None else np.array(array).tolist() for array in arrays]
