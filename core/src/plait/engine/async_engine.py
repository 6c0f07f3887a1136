"""The engine for programs that run on an event loop: requests in, deltas out, and the loop never waits."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import AsyncGenerator, Callable, Sequence
from types import TracebackType
from typing import Any, TypeVar

from plait.engine.outputs import Delta
from plait.engine.request import Sink
from plait.engine.sampling_params import SamplingParams
from plait.engine.thread import EngineThread
from plait.errors import RequestError

T = TypeVar("T")
Event = tuple[int, Delta] | None
"""A request's number in its generation and what it got; None is a tick, by which time passes where nothing comes."""


class AsyncEngine:
    """Wraps an engine's thread; belongs to no event loop in particular."""

    def __init__(self, engine: EngineThread, *, tick_seconds: float = 1.0, stall_seconds: float = 600.0) -> None:
        """Wrap a running engine.

        Args:
            engine: stays the caller's: whoever made it shuts it down.
            tick_seconds: how often a generation ticks where nothing comes.
            stall_seconds: an engine that ends no step for so long fails the requests that wait for it.
        """
        self.engine = engine
        self._tick_seconds = tick_seconds
        self._stall_seconds = stall_seconds
        # A tokenizer changes its own padding and truncation when it encodes, which another thread must not meet: one
        # thread encodes at a time, and the first change is made now, while the engine's thread decodes nothing.
        self._tokenizer_lock = threading.Lock()
        engine.tokenizer.encode("a")

    async def with_tokenizer(self, function: Callable[[Any], T]) -> T:
        """Run a function of the tokenizer on a worker thread, one at a time; returns what it returns."""

        def call() -> T:
            with self._tokenizer_lock:
                return function(self.engine.tokenizer)

        return await asyncio.to_thread(call)

    async def generate(self, tokens: Sequence[int], params: SamplingParams) -> AsyncGenerator[Delta, None]:
        """Run one request; closing the iterator, or cancelling who waits for it, takes the request out.

        Raises:
            RequestError: the request cannot be served, or the engine ended.
            Exception: what the engine's step raised.
        """
        async with await self.start([tokens], [params]) as generation:
            async for event in generation:
                if event is not None:
                    yield event[1]

    async def start(
        self, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams], name: str | None = None
    ) -> Generation:
        """Submit requests together; if one is refused, none runs.

        Args:
            prompts: token ids of each request.
            params: one for each.
            name: what the requests' ids begin with; drawn if None.

        Raises:
            RequestError: a request cannot be served.
        """
        name = name or uuid.uuid4().hex
        ids = [f"{name}-{index}" for index in range(len(prompts))]
        generation = Generation(self.engine, ids, self._tick_seconds, self._stall_seconds)

        def submit() -> None:
            for tokens, each in zip(prompts, params, strict=True):
                self.engine.check(tokens, each)
            for index, (tokens, each) in enumerate(zip(prompts, params, strict=True)):
                self.engine.submit(tokens, each, generation.sink(index), ids[index])

        submitting = asyncio.ensure_future(asyncio.to_thread(submit))
        try:
            await asyncio.shield(submitting)
        except BaseException:
            # A cancelled wait does not stop the worker: what it submits still has to be taken out.
            submitting.add_done_callback(lambda done: generation.close())
            raise
        return generation


class Generation:
    """Requests that run together. Iterate for what they give back, as it comes, until all have finished.

    A context manager: leaving it takes out what still runs.
    """

    def __init__(self, engine: EngineThread, ids: Sequence[str], tick_seconds: float, stall_seconds: float) -> None:
        """Made by `AsyncEngine.start`, on the loop that will iterate."""
        self._engine = engine
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[Event | Exception] = asyncio.Queue()
        self._unfinished = dict(enumerate(ids))
        self._closed = False
        self._tick_seconds = tick_seconds
        self._stall_seconds = stall_seconds
        self._steps, self._moved = engine.totals.steps, self._loop.time()
        self._timer = self._loop.call_later(tick_seconds, self._tick)

    @property
    def finished(self) -> bool:
        """Whether every request came to its own end."""
        return not self._unfinished

    def sink(self, index: int) -> Sink:
        """Return the function that takes one request's deltas from the engine's thread to the loop."""
        return lambda delta: self._put_threadsafe((index, delta))

    def close(self) -> None:
        """Take out what still runs and end the iteration. May be called twice, on the loop's thread."""
        if self._closed:
            return
        self._closed = True
        self._timer.cancel()
        for request_id in self._unfinished.values():
            self._engine.abort(request_id)
        self._events.put_nowait(None)

    def __aiter__(self) -> Generation:
        return self

    async def __anext__(self) -> Event:
        """Return the next event. Raises what the engine's step raised, or `RequestError` if the engine ended."""
        if self._closed or self.finished:
            raise StopAsyncIteration
        event = await self._events.get()
        if self._closed:
            raise StopAsyncIteration
        if isinstance(event, Exception):
            raise event
        if event is None:
            return None
        index, delta = event
        if delta.finish_reason is not None:
            del self._unfinished[index]
            if self.finished:
                self._timer.cancel()
        if delta.error is not None:
            raise delta.error
        if delta.finish_reason == "abort":
            raise _shut_down()
        return index, delta

    async def __aenter__(self) -> Generation:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _put_threadsafe(self, event: tuple[int, Delta]) -> None:
        self._loop.call_soon_threadsafe(self._events.put_nowait, event)

    def _tick(self) -> None:
        """Let whoever iterates do what time asks for, and notice an engine that has stopped."""
        now, steps = self._loop.time(), self._engine.totals.steps
        if steps != self._steps:
            self._steps, self._moved = steps, now
        if not self._engine.alive:
            self._events.put_nowait(_shut_down())
        elif now - self._moved > self._stall_seconds:
            self._events.put_nowait(_stalled(now - self._moved))
        elif self._events.empty():
            self._events.put_nowait(None)
        self._timer = self._loop.call_later(self._tick_seconds, self._tick)


def _shut_down() -> RequestError:
    return RequestError("The engine was shut down before the request ended.", status=503, code="engine_shut_down")


def _stalled(seconds: float) -> RequestError:
    return RequestError(
        f"The engine has ended no step for {seconds:.0f} seconds; the request was taken out.",
        status=503,
        code="engine_stalled",
    )
