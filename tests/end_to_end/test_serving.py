"""A served model through OpenAI's client: every way of asking gives the answer of one request alone."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import OpenAI

from plait import LLM, SamplingParams

PROMPTS = ["The quick brown fox", "x" * 100, "?", "Once upon a time, in a land far away,", "Ünïcödé 東京 🙂"]
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 24, "extra_body": {"ignore_eos": True}}
FEW_SECONDS = 30


def complete(client: OpenAI, model: str, prompt: str) -> str:
    """The greedy continuation of a prompt."""
    return client.completions.create(model=model, prompt=prompt, **GREEDY).choices[0].text


@pytest.fixture(scope="module")
def alone(served: Any) -> dict[str, str]:
    """The answer to each prompt while nothing else runs."""
    with served.openai() as client:
        [card] = client.models.list().data
        return {prompt: complete(client, card.id, prompt) for prompt in PROMPTS}


def test_health_models_and_metrics(served: Any, name: str) -> None:
    with served.http() as http:
        assert http.get("/health").json() == {"status": "ok"}
        assert http.get("/v1/models/" + name).json()["max_model_len"] == 256
        assert http.get("/v1/models/else").status_code == 404
        assert http.get("/metrics").status_code == 200
        assert http.get("/version").json()["version"]
    assert served.log()[0]["event"] == "engine started", "the report comes first"


def test_answers_are_no_constant(alone: dict[str, str]) -> None:
    assert len(set(alone.values())) == len(PROMPTS), "what never changes would equal itself in every test below"


def test_streams_are_the_whole_in_pieces(served: Any, name: str, alone: dict[str, str]) -> None:
    with served.openai() as client:
        for prompt, text in alone.items():
            stream = client.completions.create(model=name, prompt=prompt, stream=True, **GREEDY)
            pieces = [chunk.choices[0].text for chunk in stream if chunk.choices]
            assert "".join(pieces) == text and len([piece for piece in pieces if piece]) > 1


def test_a_chat_streamed_and_not(served: Any, name: str) -> None:
    messages: Any = [{"role": "user", "content": "What is the capital of France?"}]
    with served.openai() as client:
        whole = client.chat.completions.create(model=name, messages=messages, **GREEDY)
        stream = client.chat.completions.create(
            model=name, messages=messages, stream=True, stream_options={"include_usage": True}, **GREEDY
        )
        chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert whole.choices[0].message.content == text != ""
    assert whole.choices[0].finish_reason == "length" and whole.usage is not None
    assert chunks[-1].usage == whole.usage and whole.usage.completion_tokens == 24


def test_two_at_a_time_answer_as_alone(served: Any, name: str, alone: dict[str, str]) -> None:
    with served.openai() as client, ThreadPoolExecutor() as pool:
        for first, second in itertools.pairwise(PROMPTS):
            answers = pool.map(lambda prompt: complete(client, name, prompt), [first, second])
            assert list(answers) == [alone[first], alone[second]]


def test_python_answers_as_http(served: Any, name: str, alone: dict[str, str], checkpoints: dict[str, Path]) -> None:
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    with LLM(str(checkpoints[name]), max_model_len=256, max_num_seqs=8) as llm:
        outputs = llm.generate(PROMPTS, params, use_tqdm=False)
    assert {prompt: output.outputs[0].text for prompt, output in zip(PROMPTS, outputs, strict=True)} == alone


def test_layouts_answer_alike(served: Any, name: str, alone: dict[str, str], seen: dict[str, dict[str, str]]) -> None:
    assert seen.setdefault(name, alone) == alone


@pytest.fixture(scope="session")
def seen() -> dict[str, dict[str, str]]:
    """The answers of each model in the layout that came first."""
    return {}


def test_clients_that_go_away_disturb_nobody(served: Any, name: str, alone: dict[str, str]) -> None:
    """Twenty clients, of whom every other one leaves at a random moment."""
    chance = random.Random(0)
    leaves = [number % 2 == 0 for number in range(20)]

    async def ask(client: httpx.AsyncClient, number: int) -> str | None:
        prompt = PROMPTS[number % len(PROMPTS)]
        body = {"model": name, "prompt": prompt, "temperature": 0, "ignore_eos": True, "max_tokens": 24}
        if not leaves[number]:
            answer = await client.post("/v1/completions", json=body)
            return str(answer.json()["choices"][0]["text"])
        body |= {"max_tokens": 150, "stream": number % 4 == 0}  # the queue alone takes seconds
        try:
            async with asyncio.timeout(chance.uniform(0.01, 0.5)):
                await client.post("/v1/completions", json=body)
        except TimeoutError:
            return None
        return None

    async def ask_all() -> list[str | None]:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=served.url, timeout=120, limits=limits) as client:
            return await asyncio.gather(*(ask(client, number) for number in range(20)))

    answers = asyncio.run(ask_all())
    stayed = [number for number in range(20) if not leaves[number]]
    assert [answers[number] for number in stayed] == [alone[PROMPTS[number % len(PROMPTS)]] for number in stayed]
    assert wait_until_idle(served)['plait_requests_total{finished_reason="abort"}'] > 0
    with served.openai() as client:
        assert complete(client, name, PROMPTS[0]) == alone[PROMPTS[0]]
    assert not [event for event in served.log() if event.get("level") in ("error", "critical")]


def wait_until_idle(served: Any) -> dict[str, float]:
    """Assert that all pages come back and nothing runs or waits; returns the metrics."""
    deadline = time.monotonic() + FEW_SECONDS
    with served.http() as http:
        while True:
            lines = [line.split() for line in http.get("/metrics").text.splitlines() if not line.startswith("#")]
            numbers = {words[0]: float(words[-1]) for words in lines}
            busy = numbers["plait_num_requests_running"] + numbers["plait_num_requests_waiting"]
            if busy == 0 and numbers["plait_pages_free"] == numbers["plait_pages"]:
                return numbers
            assert time.monotonic() < deadline, numbers
            time.sleep(0.05)
