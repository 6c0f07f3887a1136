"""What the server tells Prometheus, read from the live engine each time it is asked."""

from __future__ import annotations

import time
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from plait.engine.thread import EngineThread

FIRST_TOKEN_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
INTER_TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


class Metrics:
    """The metrics of one server, in a registry of their own."""

    def __init__(self, engine: EngineThread) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(EngineCollector(engine))
        self.first_token = Histogram(
            "plait_time_to_first_token_seconds",
            "From the arrival of a call to the first token of each of its requests.",
            buckets=FIRST_TOKEN_SECONDS,
            registry=self._registry,
        )
        self.inter_token = Histogram(
            "plait_inter_token_latency_seconds",
            "From one token of a request to its next.",
            buckets=INTER_TOKEN_SECONDS,
            registry=self._registry,
        )

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self._registry)

    def clock(self) -> Clock:
        """Return the clock of a call that has just arrived."""
        return Clock(self)


class Clock:
    """Times the tokens of one call."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._start = time.perf_counter()
        self._last: dict[int, float] = {}

    def tokens(self, index: int, count: int) -> None:
        """Note that a request of the call has got tokens."""
        now = time.perf_counter()
        for _ in range(count):
            if index not in self._last:
                self._metrics.first_token.observe(now - self._start)
            else:
                self._metrics.inter_token.observe(now - self._last[index])
            self._last[index] = now


class EngineCollector(Collector):
    """Reads an engine's totals and load, without stopping it."""

    def __init__(self, engine: EngineThread) -> None:
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics as they are now."""
        totals, plan = self._engine.totals, self._engine.plan
        running, waiting, free = self._engine.load
        yield _counter(
            "plait_prompt_tokens", "Prompt tokens computed, again after preemption too.", totals.prompt_tokens
        )
        yield _counter("plait_generation_tokens", "Tokens generated.", totals.generated_tokens)
        yield _counter("plait_num_preemptions", "Times that a request gave up its pages.", totals.preemptions)
        yield _counter("plait_steps", "Forwards.", totals.steps)
        yield _counter("plait_step_seconds", "Seconds in steps.", totals.step_seconds)
        yield _counter("plait_forward_seconds", "Seconds in forward, sampling and commit.", totals.forward_seconds)
        finished = CounterMetricFamily("plait_requests", "Requests that ended, by reason.", labels=["finished_reason"])
        for reason, count in sorted(dict(totals.finished).items()):
            finished.add_metric([reason], count)
        yield finished
        yield GaugeMetricFamily("plait_num_requests_running", "Requests that run.", value=running)
        yield GaugeMetricFamily("plait_num_requests_waiting", "Requests that wait.", value=waiting)
        yield GaugeMetricFamily("plait_pages_free", "Pages that nobody holds.", value=free)
        yield GaugeMetricFamily("plait_pages", "Pages that requests can hold.", value=plan.num_pages - 1)


def _counter(name: str, text: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(name, text, value=value)
