"""Streams while the engine is slow, fails, or stops; and what they leave behind when clients go away."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from openai import APIError, OpenAI
from prometheus_client.parser import text_string_to_metric_families

from plait.engine.core import EngineCore
from plait.engine.thread import EngineThread
from plait.server.options import ServerOptions
from plait.settings import Settings
from plait.testing.checkpoints import build_checkpoint
from plait.testing.server import serving

USER = [{"role": "user", "content": "Hello"}]
FOREVER = {"prompt": "Hello", "max_tokens": 3000, "ignore_eos": True}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> EngineThread:
    path = build_checkpoint("llama", tmp_path_factory.mktemp("streams"))
    settings = Settings(model=str(path), max_num_seqs=3, max_num_batched_tokens=32, kv_cache_memory_bytes=6 << 20)
    return EngineThread(settings)


@pytest.fixture(scope="module")
def url(engine: EngineThread) -> Iterator[str]:
    with serving(engine, options=ServerOptions(keep_alive_seconds=0.2)) as address:
        yield address


@pytest.fixture
def http(url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url, timeout=60) as client:
        yield client


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """An event without which no step begins; it is set at the end."""
    opened = threading.Event()
    step = EngineCore.step

    def gated(core: EngineCore) -> None:
        opened.wait(timeout=60)
        step(core)

    monkeypatch.setattr(EngineCore, "step", gated)
    yield opened
    opened.set()


def wait_for(condition: Callable[[], bool], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def check_idle(engine: EngineThread, seconds: float = 2.0) -> None:
    idle = (0, 0, engine.plan.num_pages - 1)
    wait_for(lambda: engine.load == idle, seconds, f"{engine.load} and not {idle} after {seconds} s")
    engine.ask(lambda core: core.scheduler.check_integrity())


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_bytes_come_before_tokens_and_while_there_are_none(
    http: httpx.Client, engine: EngineThread, gate: threading.Event, path: str
) -> None:
    body: dict[str, Any] = {"prompt": "Hello"} if path == "/v1/completions" else {"messages": USER}
    with http.stream("POST", path, json={**body, "max_tokens": 4, "stream": True}) as response:
        lines = response.iter_lines()
        first = next(lines)
        if path == "/v1/completions":
            assert first == ": keep-alive"
        else:
            assert json.loads(first[6:])["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        alive = [line for line in (next(lines) for _ in range(5)) if line]
        assert alive and set(alive) == {": keep-alive"}
        # The loop is free while the engine is not: others are answered.
        assert [http_status(http, "/health") for _ in range(50)] == [200] * 50
        assert http_status(http, "/metrics") == 200
        gate.set()
        rest = [line for line in lines if line.startswith("data: ")]
    assert rest[-1] == "data: [DONE]"
    assert json.loads(rest[-2][6:])["choices"][0]["finish_reason"] in ("length", "stop")
    check_idle(engine)


def http_status(http: httpx.Client, path: str) -> int:
    return http.get(path, timeout=5).status_code


def failing_forward(core: EngineCore, after: int) -> Callable[..., Any]:
    forward, calls = core._forward, 0

    def call(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > after:
            raise ZeroDivisionError("secret")
        return forward(*args)

    return call


def test_an_error_in_the_middle_ends_the_stream_with_its_text(
    http: httpx.Client, url: str, engine: EngineThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    def break_after(count: int) -> None:
        monkeypatch.undo()
        monkeypatch.setattr(engine._core, "_forward", failing_forward(engine._core, count))

    break_after(3)
    response = http.post(
        "/v1/completions", json={"prompt": "Hello", "stream": True, "stream_options": {"include_usage": True}}
    )
    assert response.status_code == 200
    *_, event, data = [line for line in response.text.splitlines() if line]
    assert event == "event: error"
    error = json.loads(data.removeprefix("data: "))["error"]
    assert error["type"] == "server_error" and response.headers["x-request-id"] in error["message"]
    assert "secret" not in response.text
    check_idle(engine)

    break_after(3)
    with (
        OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
        pytest.raises(APIError, match="server failed on this request"),
    ):
        list(client.chat.completions.create(model="tiny", messages=USER, max_tokens=9, stream=True))  # type: ignore[arg-type]

    break_after(3)
    whole = http.post("/v1/completions", json={"prompt": "Hello"})
    assert whole.status_code == 500 and whole.json()["error"]["code"] == "internal_error"
    assert "secret" not in whole.text

    monkeypatch.undo()
    assert http.post("/v1/completions", json={"prompt": "Hello"}).status_code == 200
    check_idle(engine)


def test_clients_that_go_away_leave_nothing_behind(url: str, http: httpx.Client, engine: EngineThread) -> None:
    """Twenty clients drop at random points: queued, in a long prompt, while tokens come; streaming or not."""
    chance = random.Random(0)
    prompts = ["Hello", "x" * 900]

    async def drop(client: httpx.AsyncClient, number: int) -> None:
        chat = number % 4 == 3
        prompt = prompts[number % 2]
        body: dict[str, Any] = {"max_tokens": 3000, "ignore_eos": True, "stream": number % 3 != 0}
        body |= {"messages": [{"role": "user", "content": prompt}]} if chat else {"prompt": [prompt, "second"]}
        path = "/v1/chat/completions" if chat else "/v1/completions"
        with pytest.raises((asyncio.TimeoutError, TimeoutError)):
            async with asyncio.timeout(chance.uniform(0.05, 1.5)), client.stream("POST", path, json=body) as response:
                assert response.status_code == 200
                async for _ in response.aiter_bytes():
                    pass
                raise AssertionError("three thousand tokens in a second and a half")

    async def drop_all() -> None:
        async with httpx.AsyncClient(base_url=url, timeout=60) as client:
            await asyncio.gather(*(drop(client, number) for number in range(20)))

    before = engine.totals.finished.get("abort", 0)
    asyncio.run(drop_all())
    check_idle(engine)
    assert engine.totals.finished.get("abort", 0) > before
    assert http.post("/v1/completions", json={"prompt": "Hello"}).status_code == 200


def test_a_client_that_waits_in_line_and_leaves(
    url: str, http: httpx.Client, engine: EngineThread, gate: threading.Event
) -> None:
    """Requests dropped before the engine ever saw them, and a call of which only the first prompts run."""
    with ThreadPoolExecutor() as pool, httpx.Client(base_url=url, timeout=0.5) as hasty:
        calls = [pool.submit(hasty.post, "/v1/completions", json={**FOREVER, "prompt": ["a"] * 5}) for _ in range(2)]
        for call in calls:
            with pytest.raises(httpx.ReadTimeout):
                call.result()
    gate.set()
    check_idle(engine)


def scrape(http: httpx.Client) -> dict[str, float]:
    families = text_string_to_metric_families(http.get("/metrics").text)
    return {
        f"{sample.name}{sorted(sample.labels.items())}": sample.value
        for family in families
        for sample in family.samples
        if family.type in ("counter", "histogram") and not sample.name.endswith("_created")
    }


def test_metrics_count_up(http: httpx.Client, engine: EngineThread) -> None:
    seen = [scrape(http)]
    asks: list[dict[str, Any]] = [{"prompt": "Hello", "max_tokens": 4, "ignore_eos": True}] * 3
    asks += [
        {"prompt": "", "max_tokens": 4},
        {"prompt": ["a", "b"], "max_tokens": 2, "ignore_eos": True, "stream": True},
    ]
    for body in asks:
        http.post("/v1/completions", json=body)
        seen.append(scrape(http))
    for earlier, later in itertools.pairwise(seen):
        assert all(later[name] >= value for name, value in earlier.items())
    gained = {name: value - seen[0].get(name, 0) for name, value in seen[-1].items()}
    assert gained["plait_requests_total[('finished_reason', 'length')]"] == 5
    assert gained["plait_prompt_tokens_total[]"] == 3 * 5 + 2
    assert gained["plait_generation_tokens_total[]"] == 3 * 4 + 2 * 2
    assert gained["plait_time_to_first_token_seconds_count[]"] == 5
    assert gained["plait_inter_token_latency_seconds_count[]"] == 3 * 3 + 2 * 1
    assert gained["plait_steps_total[]"] > 0 and gained["plait_step_seconds_total[]"] > 0
    text = http.get("/metrics").text
    assert f"plait_pages_free {engine.plan.num_pages - 1:.1f}" in text
    assert f"plait_pages {engine.plan.num_pages - 1:.1f}" in text
    assert "plait_num_requests_running 0.0" in text and "plait_num_requests_waiting 0.0" in text
