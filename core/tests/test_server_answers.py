"""What the server answers, asked by OpenAI's own client."""

from __future__ import annotations

import asyncio
import json
import queue
from collections.abc import Iterator, Sequence
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI, OpenAI

from plait.engine.outputs import Delta
from plait.engine.sampling_params import SamplingParams
from plait.engine.thread import EngineThread
from plait.settings import Settings
from plait.testing.checkpoints import build_checkpoint
from plait.testing.server import serving

LENGTH = 160
PROMPTS = ["Hello", "The quick brown fox", "a", "0123456789" * 4, "Plait serves models.", "zz top"]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> EngineThread:
    path = build_checkpoint("llama", tmp_path_factory.mktemp("answers"))
    return EngineThread(Settings(model=str(path), max_num_seqs=8, max_model_len=LENGTH, max_num_batched_tokens=64))


@pytest.fixture(scope="module")
def url(engine: EngineThread) -> Iterator[str]:
    with serving(engine) as address:
        yield address


@pytest.fixture(scope="module")
def http(url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url, timeout=60) as opened:
        yield opened


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60) as opened:
        yield opened


def direct(engine: EngineThread, tokens: Sequence[int], **params: Any) -> tuple[str, list[int], str | None]:
    """Run a request on the engine, past the server."""
    deltas: queue.SimpleQueue[Delta] = queue.SimpleQueue()
    engine.submit(tokens, SamplingParams(**params), deltas.put)
    text, reason = "", None
    ids: list[int] = []
    while reason is None:
        delta = deltas.get(timeout=60)
        text, reason = text + delta.text, delta.finish_reason
        ids.extend(delta.token_ids)
    return text, ids, reason


def readable(client: OpenAI, size: int = 40) -> tuple[str, str]:
    """Return a prompt whose greedy continuation has a run of three plain letters in it, and that run."""
    for prompt in (f"{word} {number}" for number in range(40) for word in PROMPTS):
        text = client.completions.create(model="tiny", prompt=prompt, max_tokens=size, temperature=0).choices[0].text
        for place in range(4, len(text) - 3):
            run = text[place : place + 3]
            if run.isascii() and run.isprintable() and text.index(run) == place:
                return prompt, run
    raise AssertionError("no prompt has a readable continuation")


@pytest.fixture(scope="module")
def stopping(client: OpenAI) -> tuple[str, str]:
    return readable(client)


def test_models_health_and_version(http: httpx.Client, client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").owned_by == "plait"
    assert http.get("/health").status_code == 200
    assert http.get("/version").json()["version"][0].isdigit()


def test_a_completion_is_what_the_engine_gives(engine: EngineThread, client: OpenAI) -> None:
    for prompt in PROMPTS:
        text, ids, reason = direct(engine, engine.tokenizer.encode(prompt), temperature=0, max_tokens=12)
        answer = client.completions.create(model="tiny", prompt=prompt, max_tokens=12, temperature=0)
        assert (answer.choices[0].text, answer.choices[0].finish_reason) == (text, reason)
        assert answer.usage is not None and answer.usage.prompt_tokens_details is not None
        assert answer.usage.prompt_tokens == len(prompt.encode())
        assert answer.usage.completion_tokens == len(ids)
        assert answer.usage.total_tokens == len(prompt.encode()) + len(ids)
        assert answer.usage.prompt_tokens_details.cached_tokens == 0


def test_every_form_of_a_prompt(engine: EngineThread, client: OpenAI) -> None:
    ids = [engine.tokenizer.encode(prompt) for prompt in PROMPTS]
    forms: list[Any] = [PROMPTS, ids, PROMPTS[0], ids[0]]
    texts = []
    for form in forms:
        answer = client.completions.create(model="tiny", prompt=form, max_tokens=9, temperature=0)
        assert [choice.index for choice in answer.choices] == list(range(len(answer.choices)))
        texts.append([choice.text for choice in answer.choices])
    assert texts[0] == texts[1] and len(texts[0]) == len(PROMPTS)
    assert texts[2] == texts[3] == texts[0][:1]


def test_a_stream_of_completions_is_the_whole_in_pieces(client: OpenAI) -> None:
    whole = client.completions.create(model="tiny", prompt=PROMPTS, max_tokens=14, temperature=0, logprobs=2)
    stream = client.completions.create(
        model="tiny",
        prompt=PROMPTS,
        max_tokens=14,
        temperature=0,
        logprobs=2,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    assert len({chunk.id for chunk in chunks}) == 1
    assert chunks[-1].choices == [] and chunks[-1].usage == whole.usage
    assert all(chunk.usage is None for chunk in chunks[:-1])
    for index, choice in enumerate(whole.choices):
        pieces = [c for chunk in chunks for c in chunk.choices if c.index == index]
        assert len(pieces) > 5
        assert "".join(piece.text for piece in pieces) == choice.text
        assert [piece.finish_reason for piece in pieces[:-1]] == [None] * (len(pieces) - 1)
        assert pieces[-1].finish_reason == choice.finish_reason
        assert choice.logprobs is not None
        for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            joined = [item for piece in pieces for item in getattr(piece.logprobs, name)]
            wanted = getattr(choice.logprobs, name)
            if name in ("tokens", "text_offset"):
                assert joined == wanted
            else:
                assert len(joined) == len(wanted) == 14


def test_a_stream_of_a_chat_is_the_whole_in_pieces(client: OpenAI) -> None:
    for prompt in PROMPTS:
        messages: Any = [{"role": "user", "content": prompt}]
        whole = client.chat.completions.create(model="tiny", messages=messages, max_tokens=14, temperature=0)
        stream = client.chat.completions.create(
            model="tiny",
            messages=messages,
            max_completion_tokens=14,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = list(stream)
        first, *middle, last, usage = chunks
        assert first.choices[0].delta.role == "assistant" and first.choices[0].delta.content == ""
        assert all(chunk.choices[0].delta.role is None for chunk in middle)
        assert "".join(c.choices[0].delta.content or "" for c in chunks[:-1]) == whole.choices[0].message.content
        assert last.choices[0].delta.content is None
        assert last.choices[0].finish_reason == whole.choices[0].finish_reason
        assert usage.choices == [] and usage.usage == whole.usage


def test_no_usage_and_done_at_the_end_unless_asked(http: httpx.Client) -> None:
    body = {"prompt": "Hello", "max_tokens": 3, "stream": True}
    response = http.post("/v1/completions", json=body)
    assert response.headers["content-type"].startswith("text/event-stream")
    data = [line[6:] for line in response.text.splitlines() if line.startswith("data: ")]
    assert data[-1] == "[DONE]"
    assert all("usage" not in json.loads(line) for line in data[:-1])


def test_a_chat_goes_through_the_template(engine: EngineThread, client: OpenAI) -> None:
    messages: Any = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]},
        {"role": "assistant", "content": "Hi", "name": None},
        {"role": "tool", "content": "42", "tool_call_id": "x"},
    ]
    rendered = (
        "<|im_start|>system\nBe brief.<|im_end|><|im_start|>user\nHello<|im_end|>"
        "<|im_start|>assistant\nHi<|im_end|><|im_start|>tool\n42<|im_end|><|im_start|>assistant"
    )
    ids = engine.tokenizer.encode(rendered)
    answer = client.chat.completions.create(model="tiny", messages=messages, max_tokens=10, temperature=0)
    assert answer.usage is not None and answer.usage.prompt_tokens == len(ids)
    text, _, _ = direct(engine, ids, temperature=0, max_tokens=10)
    assert answer.choices[0].message.content == text
    assert answer.choices[0].message.role == "assistant"


def test_variables_reach_the_template(
    engine: EngineThread, http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    template = (
        "{% if enable_thinking is false %}{{ 'x' * 7 }}{% endif %}"
        "{% if bad %}{{ raise_exception('no bad') }}{% endif %}yz"
    )
    monkeypatch.setattr(engine.tokenizer._tokenizer, "chat_template", template)
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}
    counts = []
    for variables in ({"enable_thinking": False}, {"enable_thinking": True}):
        response = http.post("/v1/chat/completions", json={**body, "chat_template_kwargs": variables})
        counts.append(response.json()["usage"]["prompt_tokens"])
    assert counts == [9, 2]
    refused = http.post("/v1/chat/completions", json={**body, "chat_template_kwargs": {"bad": True}})
    assert refused.status_code == 400 and "no bad" in refused.json()["error"]["message"]
    taken = http.post("/v1/chat/completions", json={**body, "chat_template_kwargs": {"tokenize": False}})
    assert taken.status_code == 400 and taken.json()["error"]["param"] == "chat_template_kwargs"


def test_a_model_without_a_template_says_so(
    engine: EngineThread, http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(vars(engine.tokenizer), "has_chat_template", False)
    body = {"messages": [{"role": "user", "content": "a"}]}
    response = http.post("/v1/chat/completions", json=body)
    assert response.status_code == 400
    assert "no chat template" in response.json()["error"]["message"]


def test_logprobs_of_completions(engine: EngineThread, client: OpenAI, stopping: tuple[str, str]) -> None:
    answer = client.completions.create(model="tiny", prompt=stopping[0], max_tokens=40, temperature=0, logprobs=3)
    choice = answer.choices[0]
    assert choice.logprobs is not None
    tokens, offsets = choice.logprobs.tokens, choice.logprobs.text_offset
    tops, own = choice.logprobs.top_logprobs, choice.logprobs.token_logprobs
    assert tokens and offsets and tops and own
    assert len(tokens) == len(offsets) == len(tops) == len(own) == 40
    for token, offset, top, logprob in zip(tokens, offsets, tops, own, strict=True):
        assert logprob is not None and logprob <= 0 and 1 <= len(top) <= 3
        assert max(top.values()) == logprob and token in top
        if token.isascii() and token not in engine.tokenizer.all_special_tokens:
            assert choice.text[offset : offset + len(token)] == token
    only_own = client.completions.create(model="tiny", prompt="Hello", max_tokens=2, temperature=0, logprobs=0)
    assert only_own.choices[0].logprobs is not None and only_own.choices[0].logprobs.top_logprobs is not None
    assert [len(top) for top in only_own.choices[0].logprobs.top_logprobs] == [1, 1]
    none = client.completions.create(model="tiny", prompt="Hello", max_tokens=2)
    assert none.choices[0].logprobs is None


def test_logprobs_of_chats(engine: EngineThread, client: OpenAI) -> None:
    messages: Any = [{"role": "user", "content": "Hello"}]
    answer = client.chat.completions.create(
        model="tiny", messages=messages, max_tokens=12, temperature=0, logprobs=True, top_logprobs=4
    )
    assert answer.choices[0].logprobs is not None and answer.choices[0].logprobs.content is not None
    content = answer.choices[0].logprobs.content
    assert len(content) == 12
    for entry in content:
        assert len(entry.top_logprobs) == 4 and entry.top_logprobs[0].logprob == entry.logprob
        assert [t.logprob for t in entry.top_logprobs] == sorted((t.logprob for t in entry.top_logprobs), reverse=True)
        assert entry.bytes is not None
    ids = engine.tokenizer.apply_chat_template(messages, add_generation_prompt=True)
    _, tokens, _ = direct(engine, ids, temperature=0, max_tokens=12)
    specials = set(engine.tokenizer.all_special_ids)
    written = bytes(b for e, t in zip(content, tokens, strict=True) if t not in specials for b in e.bytes or [])
    assert written.decode(errors="replace") == engine.tokenizer.decode([t for t in tokens if t not in specials])
    plain = client.chat.completions.create(model="tiny", messages=messages, max_tokens=2, logprobs=True)
    assert plain.choices[0].logprobs is not None and plain.choices[0].logprobs.content is not None
    assert [entry.top_logprobs for entry in plain.choices[0].logprobs.content] == [[], []]


def test_stop_texts_over_several_tokens(client: OpenAI, stopping: tuple[str, str]) -> None:
    prompt, stop = stopping
    base: dict[str, Any] = {"model": "tiny", "prompt": prompt, "max_tokens": 40, "temperature": 0}
    free = client.completions.create(**base).choices[0].text
    cut = free[: free.index(stop)]
    for form in (stop, ["never to be seen", stop]):
        choice = client.completions.create(**base, stop=form).choices[0]
        assert (choice.text, choice.finish_reason) == (cut, "stop")
        assert getattr(choice, "stop_reason", None) == stop
        pieces = [c.choices[0] for c in client.completions.create(**base, stop=form, stream=True)]
        assert "".join(piece.text for piece in pieces) == cut
        assert pieces[-1].finish_reason == "stop"
    kept = client.completions.create(**base, stop=stop, extra_body={"include_stop_str_in_output": True}).choices[0]
    assert kept.text == cut + stop


def test_stop_tokens_and_end_of_sequence(engine: EngineThread, client: OpenAI) -> None:
    _, ids, _ = direct(engine, engine.tokenizer.encode("Hello"), temperature=0, max_tokens=8)
    base: dict[str, Any] = {"model": "tiny", "prompt": "Hello", "max_tokens": 8, "temperature": 0}
    stopped = client.completions.create(**base, extra_body={"stop_token_ids": [ids[4]]})
    place = ids.index(ids[4])
    assert stopped.choices[0].finish_reason == "stop"
    assert stopped.usage is not None and stopped.usage.completion_tokens == place + 1
    assert getattr(stopped.choices[0], "stop_reason", None) == ids[4]
    ignoring = client.completions.create(**base, extra_body={"ignore_eos": True, "skip_special_tokens": False})
    assert ignoring.usage is not None and ignoring.usage.completion_tokens == 8


def test_each_request_has_its_own_randomness(url: str, engine: EngineThread) -> None:
    greedy, _, _ = direct(engine, engine.tokenizer.encode("Hello"), temperature=0, max_tokens=16)
    rows: list[dict[str, Any]] = [
        {"temperature": 0},
        {"top_k": 1},
        {"seed": 1},
        {"seed": 1},
        {"seed": 2},
        {},
        {},
        {"seed": 1, "top_p": 0.5},
    ]

    async def ask() -> list[str]:
        async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
            calls = [
                client.completions.create(
                    model="tiny", prompt="Hello", max_tokens=16, extra_body={**row, "logprobs": 0}
                )
                for row in rows
            ]
            answers = await asyncio.gather(*calls)
        assert answers[0].choices[0].text == greedy
        return [str(a.choices[0].logprobs.tokens if a.choices[0].logprobs else None) for a in answers]

    tokens = asyncio.run(ask())
    assert tokens[0] == tokens[1]
    assert tokens[2] == tokens[3]
    assert len(set(tokens)) == 6, "greedy, seed 1, seed 2, two without a seed, and a cut one: all unlike"


def test_concurrent_requests_equal_themselves_alone(url: str, client: OpenAI) -> None:
    prompts = [f"{word} {number} " * (1 + number) for number in range(4) for word in PROMPTS[:3]]
    alone = [client.completions.create(model="tiny", prompt=p, max_tokens=12, temperature=0) for p in prompts]

    async def ask() -> list[str]:
        async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:

            async def one(prompt: str, *, stream: bool) -> str:
                if not stream:
                    answer = await client.completions.create(model="tiny", prompt=prompt, max_tokens=12, temperature=0)
                    return answer.choices[0].text
                chunks = await client.completions.create(
                    model="tiny", prompt=prompt, max_tokens=12, temperature=0, stream=True
                )
                return "".join([chunk.choices[0].text async for chunk in chunks])

            return list(await asyncio.gather(*(one(p, stream=i % 2 == 0) for i, p in enumerate(prompts))))

    assert asyncio.run(ask()) == [answer.choices[0].text for answer in alone]


def test_what_asks_for_nothing_is_taken(http: httpx.Client) -> None:
    neutral: dict[str, Any] = {
        "n": 1,
        "best_of": 1,
        "echo": False,
        "suffix": None,
        "presence_penalty": 0,
        "frequency_penalty": 0.0,
        "logit_bias": {},
        "min_p": 0,
        "repetition_penalty": 1.0,
        "tools": [],
        "tool_choice": "none",
        "response_format": {"type": "text"},
        "user": "someone",
        "metadata": {"a": "b"},
        "store": True,
        "service_tier": "auto",
        "stream_options": {"include_usage": True},
        "temperature": None,
        "stop": None,
        "seed": None,
    }
    plain = http.post("/v1/completions", json={"prompt": "Hello", "top_k": 1}).json()
    same = http.post("/v1/completions", json={"prompt": "Hello", "top_k": 1, **neutral}).json()
    assert same["choices"] == plain["choices"]


def test_default_lengths(http: httpx.Client) -> None:
    ask = {"prompt": "Hello", "ignore_eos": True}
    assert http.post("/v1/completions", json=ask).json()["usage"]["completion_tokens"] == 16
    ask["prompt"] = "x" * (LENGTH - 5)
    answer = http.post("/v1/completions", json=ask).json()
    assert (answer["usage"]["completion_tokens"], answer["choices"][0]["finish_reason"]) == (5, "length")
    body = {"messages": [{"role": "user", "content": "Hello"}], "ignore_eos": True}
    answer = http.post("/v1/chat/completions", json=body).json()
    assert (answer["usage"]["total_tokens"], answer["choices"][0]["finish_reason"]) == (LENGTH, "length")


def test_request_ids(http: httpx.Client) -> None:
    drawn = {http.get("/health").headers["x-request-id"] for _ in range(2)}
    assert len(drawn) == 2
    assert http.get("/health", headers={"x-request-id": "mine-1"}).headers["x-request-id"] == "mine-1"
    assert http.get("/health", headers={"x-request-id": "a b"}).headers["x-request-id"] != "a b"
