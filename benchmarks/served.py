"""Plait's side of the comparison: requests go through the engine, as a user's do."""

from __future__ import annotations

import logging
import queue
import statistics
import time

import structlog
from peer import prompt_ids

from plait.engine.outputs import Delta
from plait.engine.sampling_params import SamplingParams
from plait.engine.thread import EngineThread
from plait.hooks import hookimpl
from plait.plugins import PluginInfo, Plugins
from plait.scheduler.scheduler import StepReport
from plait.settings import Settings


class StepTimes:
    """A plugin that keeps what each step reports, and the time from one step's end to the next one's."""

    def __init__(self) -> None:
        self.steps: list[tuple[StepReport, float]] = []
        self._ended = 0.0

    @hookimpl
    def plait_step_done(self, report: StepReport) -> None:
        """Keep the report."""
        ended = time.perf_counter()
        self.steps.append((report, ended - self._ended))
        self._ended = ended


class Served:
    """An engine with one model.

    Attributes:
        overhead: seconds of Plait's own Python in each decode step that was measured.
    """

    def __init__(self, model: str, batch: int, context: int, steps: int) -> None:
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
        plugins = Plugins()
        self._times = StepTimes()
        plugins.register(self._times, PluginInfo("step-times", "benchmarks", "0"))
        length = context + _tokens(batch, steps)
        self._engine = EngineThread(Settings(model=model, max_model_len=length, max_num_seqs=batch), plugins)
        self.overhead: list[float] = []

    def __enter__(self) -> Served:
        return self

    def __exit__(self, *_: object) -> None:
        self._engine.shutdown()

    def prefill(self, tokens: int) -> float:
        """Seconds from a prompt's arrival to its first token."""
        deltas: queue.SimpleQueue[Delta] = queue.SimpleQueue()
        params = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
        start = time.perf_counter()
        self._engine.submit(prompt_ids(tokens), params, deltas.put)
        deltas.get()
        return time.perf_counter() - start

    def decode(self, batch: int, context: int, steps: int) -> float:
        """Median seconds of a step in which `batch` sequences of about `context` tokens get a token each."""
        deltas: queue.SimpleQueue[Delta] = queue.SimpleQueue()
        params = SamplingParams(temperature=0, max_tokens=_tokens(batch, steps), ignore_eos=True)
        self._times.steps.clear()
        ids = [self._engine.submit(prompt_ids(context), params, deltas.put) for _ in range(batch)]
        while len(self._decode_steps(batch)) < steps + 2:
            for _ in range(batch):
                deltas.get()
        for request_id in ids:
            self._engine.abort(request_id)
        left = set(ids)
        while left:
            delta = deltas.get()
            if delta.finish_reason is not None:
                left.discard(delta.request_id)
        # The first follows a prompt, and its time would be the prompt's.
        measured = self._decode_steps(batch)[2 : steps + 2]
        self.overhead += [seconds - report.forward_seconds for report, seconds in measured]
        return statistics.median(seconds for _, seconds in measured)

    def _decode_steps(self, batch: int) -> list[tuple[StepReport, float]]:
        return [(r, s) for r, s in list(self._times.steps) if r.decode_rows == batch and not r.chunk_rows]


def _tokens(batch: int, steps: int) -> int:
    """Tokens that a request of a decode run generates: the first wait for the prompts of the last."""
    return steps + 8 + 2 * batch
