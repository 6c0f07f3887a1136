"""The engine behind an event loop: iterators that end, are closed, are cancelled, or wait for an engine that stops."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Iterator, Sequence

import pytest

from plait.engine.async_engine import AsyncEngine
from plait.engine.core import EngineCore
from plait.engine.outputs import Delta
from plait.engine.request import Sink
from plait.engine.sampling_params import SamplingParams
from plait.engine.thread import EngineThread
from plait.errors import RequestError
from plait.settings import Settings
from plait.testing.checkpoints import build_checkpoint

GREEDY = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True)
LONG = SamplingParams(max_tokens=2000, ignore_eos=True)
PROMPT = [10, 20, 30]


def make_engine(folder: pytest.TempPathFactory) -> EngineThread:
    path = build_checkpoint("llama", folder.mktemp("async"))
    return EngineThread(Settings(model=str(path), max_num_seqs=4, kv_cache_memory_bytes=8 << 20))


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineThread]:
    engine = make_engine(tmp_path_factory)
    yield engine
    engine.shutdown()


def check_idle(engine: EngineThread) -> None:
    """What was sent before is answered before: one question and nothing may be left."""
    assert engine.ask(lambda core: core.scheduler.unfinished) == 0
    assert engine.load == (0, 0, engine.plan.num_pages - 1)


async def consume(engine: EngineThread) -> None:
    async for _ in AsyncEngine(engine).generate(PROMPT, LONG):
        pass


def test_deltas_are_those_of_the_thread(engine: EngineThread) -> None:
    direct: queue.SimpleQueue[Delta] = queue.SimpleQueue()
    engine.submit(PROMPT, GREEDY, direct.put)
    wanted = [direct.get(timeout=60).token_ids for _ in range(10)]

    async def run() -> list[Delta]:
        return [delta async for delta in AsyncEngine(engine).generate(PROMPT, GREEDY)]

    deltas = asyncio.run(run())
    assert [delta.token_ids for delta in deltas] == wanted
    assert [delta.finish_reason for delta in deltas] == [None] * 9 + ["length"]
    check_idle(engine)


def test_closing_takes_the_request_out(engine: EngineThread) -> None:
    async def run() -> None:
        deltas = AsyncEngine(engine).generate(PROMPT, LONG)
        async for _ in deltas:
            break
        assert engine.load[0] == 1
        await deltas.aclose()
        await asyncio.to_thread(check_idle, engine)

    asyncio.run(run())


def test_cancelling_takes_the_request_out(engine: EngineThread) -> None:
    async def run() -> None:
        task = asyncio.create_task(consume(engine))
        while not engine.load[0]:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.to_thread(check_idle, engine)

    asyncio.run(run())


def test_cancelling_takes_out_what_is_submitted_only_then(
    engine: EngineThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, gate, left = threading.Event(), threading.Event(), threading.Event()
    submit = engine.submit

    def gated(prompt: Sequence[int], params: SamplingParams, sink: Sink, request_id: str | None = None) -> str:
        entered.set()
        gate.wait(timeout=60)
        answer = submit(prompt, params, sink, request_id)
        left.set()
        return answer

    async def run() -> None:
        task = asyncio.create_task(consume(engine))
        await asyncio.to_thread(entered.wait, 60)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        gate.set()
        await asyncio.to_thread(left.wait, 60)
        await asyncio.sleep(0.1)  # the loop hears of the worker's end
        await asyncio.to_thread(check_idle, engine)

    monkeypatch.setattr(engine, "submit", gated)
    asyncio.run(run())


def test_if_one_is_refused_none_runs(engine: EngineThread) -> None:
    finished = sum(engine.totals.finished.values())

    async def run() -> None:
        with pytest.raises(RequestError, match="ids go from"):
            await AsyncEngine(engine).start([PROMPT, [10**6]], [GREEDY, GREEDY])

    asyncio.run(run())
    check_idle(engine)
    assert sum(engine.totals.finished.values()) == finished


def test_an_error_of_a_step_surfaces(engine: EngineThread, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object) -> None:
        raise ZeroDivisionError("in the forward")

    async def run() -> None:
        async for _ in AsyncEngine(engine).generate(PROMPT, GREEDY):
            pass

    monkeypatch.setattr(engine._core, "_forward", broken)
    with pytest.raises(ZeroDivisionError):
        asyncio.run(run())
    check_idle(engine)


def test_an_engine_that_stands_still_is_noticed(engine: EngineThread, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()
    step = EngineCore.step

    def gated(core: EngineCore) -> None:
        gate.wait(timeout=60)
        step(core)

    async def run() -> tuple[int, RequestError]:
        ticks = 0
        with pytest.raises(RequestError) as caught:
            async with await AsyncEngine(engine, tick_seconds=0.05, stall_seconds=0.5).start([PROMPT], [LONG]) as all_:
                async for event in all_:
                    ticks += event is None
        return ticks, caught.value

    monkeypatch.setattr(EngineCore, "step", gated)
    ticks, error = asyncio.run(run())
    assert (error.status, error.code) == (503, "engine_stalled")
    assert ticks > 1
    gate.set()
    monkeypatch.undo()
    check_idle(engine)


def test_the_tokenizer_is_used_by_one_thread_at_a_time(engine: EngineThread) -> None:
    inside: list[int] = []

    def use(tokenizer: object) -> int:
        inside.append(1)
        seen = len(inside)
        threading.Event().wait(0.01)
        inside.pop()
        return seen

    async def run() -> Sequence[int]:
        wrapped = AsyncEngine(engine)
        return await asyncio.gather(*(wrapped.with_tokenizer(use) for _ in range(8)))

    assert asyncio.run(run()) == [1] * 8


def test_an_engine_that_is_shut_down_says_so(tmp_path_factory: pytest.TempPathFactory) -> None:
    engine = make_engine(tmp_path_factory)

    async def run() -> None:
        wrapped = AsyncEngine(engine)
        first = asyncio.Event()

        async def consume() -> None:
            async for _ in wrapped.generate(PROMPT, LONG):
                first.set()

        task = asyncio.create_task(consume())
        await first.wait()
        await asyncio.to_thread(engine.shutdown)
        with pytest.raises(RequestError) as caught:
            await task
        assert (caught.value.status, caught.value.code) == (503, "engine_shut_down")
        with pytest.raises(RequestError, match="shut down"):
            await wrapped.start([PROMPT], [GREEDY])

    asyncio.run(run())
