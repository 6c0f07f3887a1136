"""An engine under observation: every step checked, every token's whole distribution written down."""

from __future__ import annotations

import queue
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import mlx.core as mx
import numpy as np

from plait.engine.core import EngineCore
from plait.engine.outputs import Delta, Logprob
from plait.engine.sampling_params import SamplingParams
from plait.engine.thread import EngineThread
from plait.plan import Plan
from plait.plugins import Plugins
from plait.scheduler.request import Request
from plait.scheduler.scheduler import Row, StepReport
from plait.settings import Settings
from plait.step import Step
from plait.testing.lesion import Lesion
from plait.testing.poison import Poison
from plait.testing.reference import Floats, log_softmax

PATIENCE = 300.0  # seconds that a run may take

ChunkSize = Callable[[Request], int]


@attrs.frozen(kw_only=True)
class Job:
    """One request of a run; it is greedy and does not end at an end-of-sequence token.

    Attributes:
        prompt: token ids.
        max_tokens: tokens to generate.
        arrives: steps of the run before it is sent; sooner if the engine would be idle.
        abort_after: steps from there until it is aborted, or None.
        logprobs: see `SamplingParams`.
    """

    prompt: Sequence[int]
    max_tokens: int
    arrives: int = 0
    abort_after: int | None = None
    logprobs: int | None = None


@attrs.define
class Transcript:
    """What came of a job.

    Attributes:
        job: as sent.
        tokens: generated.
        logprobs: the distribution from which each token was taken, as log-probabilities [vocabulary].
        reported: what the engine told the client of each token, where it was asked.
        finish_reason: why it ended.
    """

    job: Job
    tokens: list[int] = attrs.field(factory=list)
    logprobs: list[Floats] = attrs.field(factory=list)
    reported: list[Mapping[int, Logprob]] = attrs.field(factory=list)
    finish_reason: str | None = None


@attrs.define
class Run:
    """What came of a list of jobs.

    Attributes:
        transcripts: in the order of the jobs.
        steps: that the engine took.
        preemptions: times that a request gave up its pages.
        most_running: requests that ran at one time.
        most_groups: decode groups of one step.
        chunk_sizes: tokens that chunks had.
    """

    transcripts: list[Transcript]
    steps: int = 0
    preemptions: int = 0
    most_running: int = 0
    most_groups: int = 0
    chunk_sizes: set[int] = attrs.field(factory=set)


class Rig:
    """An engine whose freed pages are poisoned, whose pages are counted after each step, and which takes jobs.

    Attributes:
        engine: the engine.
        plan: of the engine.
    """

    def __init__(self, settings: Settings, plugins: Plugins | None = None) -> None:
        """Start the engine. Raises what planning and loading raise."""
        self.engine = EngineThread(settings, plugins)
        self.plan: Plan = self.engine.plan
        self._inner: dict[str, Any] = {}
        self._run = Run([])
        self._lesion: Lesion | None = None
        self._chunk: ChunkSize | None = None
        self._logits: mx.array | None = None
        self._pending: list[tuple[int, Transcript]] = []
        self._aborts: list[tuple[int, str]] = []
        self._by_id: dict[str, Transcript] = {}
        self._left = 0
        self._done: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self.engine.ask(self._attach)

    def run(self, jobs: Sequence[Job], chunk: ChunkSize | int | None = None, lesion: Lesion | None = None) -> Run:
        """Run jobs to their ends.

        Args:
            jobs: at least one.
            chunk: most tokens that a chunk may have, or a function that says so for each; None: the engine's own.
            lesion: what the run shall suffer; it is cut short after the step in which it does.

        Raises:
            AssertionError: a page was lost or owned twice, or a request failed.
        """
        run = Run([Transcript(job) for job in jobs])
        self._done = queue.SimpleQueue()
        self.engine.ask(lambda core: self._start(core, run, chunk, lesion))
        failure = self._done.get(timeout=PATIENCE)
        self.engine.ask(self._end)
        if failure is not None:
            raise failure
        return run

    def close(self) -> None:
        """End the engine."""
        self.engine.shutdown()
        self._inner.clear()

    def _attach(self, core: EngineCore) -> None:
        """Take the place of the engine's inner methods. Everything from here on runs on the engine's thread."""
        self._poison = Poison(core._arenas, core.scheduler.allocator)
        places = (
            (core, "_forward", self._forward),
            (core, "_hand_out", self._hand_out),
            (core, "_step_done", self._step_done),
            (core.scheduler, "_row", self._row),
        )
        for owner, name, method in places:
            self._inner[name] = getattr(owner, name)
            setattr(owner, name, method)
        self._core = core

    def _start(self, core: EngineCore, run: Run, chunk: ChunkSize | int | None, lesion: Lesion | None) -> None:
        self._poison.spoil_free_pages()
        self._run, self._lesion = run, lesion
        self._chunk = (lambda _: chunk) if isinstance(chunk, int) else chunk
        self._pending = sorted(((t.job.arrives, t) for t in run.transcripts), key=lambda pair: pair[0])
        self._left = len(self._pending)
        self._by_id, self._aborts = {}, []
        if lesion is not None:
            lesion.attach(core._arenas.views)
        self._preemptions_before = core.totals.preemptions
        self._send_due(idle=True)

    def _end(self, core: EngineCore) -> None:
        if self._lesion is not None:
            self._lesion.detach()
        self._pending.clear()
        core.abort_all()
        self._run.preemptions = core.totals.preemptions - self._preemptions_before
        allocator = core.scheduler.allocator
        allocator.check_integrity()
        assert not core.busy and not core.scheduler.unfinished and not allocator.held_pages

    def _send_due(self, *, idle: bool) -> None:
        """Send the jobs whose step has come, or the next one if nothing else runs; then the aborts."""
        while self._pending and (idle or self._pending[0][0] <= self._run.steps):
            idle = False
            _, transcript = self._pending.pop(0)
            job = transcript.job
            params = SamplingParams(temperature=0.0, max_tokens=job.max_tokens, ignore_eos=True, logprobs=job.logprobs)
            request_id = self.engine.submit(job.prompt, params, self._sink)
            self._by_id[request_id] = transcript
            if job.abort_after is not None:
                self._aborts.append((self._run.steps + job.abort_after, request_id))
        for due, request_id in self._aborts:
            if due <= self._run.steps:
                self.engine.abort(request_id)
        self._aborts = [abort for abort in self._aborts if abort[0] > self._run.steps]

    def _cut_short(self) -> None:
        unsent = len(self._pending)
        self._pending.clear()
        self._left -= unsent
        if unsent and not self._left:
            self._done.put(None)
        self._core.abort_all()

    def _sink(self, delta: Delta) -> None:
        transcript = self._by_id[delta.request_id]
        transcript.tokens.extend(delta.token_ids)
        transcript.reported.extend(delta.logprobs or ())
        transcript.finish_reason = delta.finish_reason
        if delta.finish_reason is not None:
            self._left -= 1
            if delta.error is not None:
                self._done.put(delta.error)
            elif not self._left:
                self._done.put(None)
            elif delta.finish_reason == "abort" and not self._core.busy:
                self._send_due(idle=True)  # no step will come that could

    def _forward(self, tokens: mx.array, step: Step) -> mx.array:
        if self._lesion is not None:
            self._lesion.begin(step)
        self._run.most_groups = max(self._run.most_groups, len(step.groups))
        self._run.chunk_sizes.update(chunk.stop - chunk.start for chunk in step.chunks)
        logits: mx.array = self._inner["_forward"](tokens, step)
        self._logits = logits
        return logits

    def _hand_out(self, batch: Any, sampled: Any) -> None:
        if self._logits is not None and batch.sampling:
            rows = log_softmax(np.array(self._logits))
            for row, logprobs in zip(batch.sampling, rows, strict=True):
                self._by_id[row.request.id].logprobs.append(logprobs)
        self._logits = None
        self._inner["_hand_out"](batch, sampled)

    def _row(self, request: Request, budget: int) -> Row:
        if self._chunk is not None:
            budget = min(budget, self._chunk(request))
        row: Row = self._inner["_row"](request, budget)
        return row

    def _step_done(self, report: StepReport) -> None:
        self._inner["_step_done"](report)
        try:
            self._run.steps += 1
            self._run.most_running = max(self._run.most_running, report.decode_rows + report.chunk_rows)
            self._core.scheduler.check_integrity()
            if self._lesion is not None and self._lesion.done:
                self._cut_short()
            else:
                self._send_due(idle=not self._core.busy)
        except BaseException as error:  # an exception here would end the engine's thread without a word
            self._done.put(error)
