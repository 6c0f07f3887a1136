"""What the server refuses, and that it serves on as if nothing had happened."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from plait.engine.thread import EngineThread
from plait.server.options import ServerOptions
from plait.settings import Settings
from plait.testing.checkpoints import build_checkpoint
from plait.testing.server import serving

LENGTH = 128
LIMIT = 1 << 20
GOOD = {"prompt": "Hello", "max_tokens": 6, "temperature": 0, "logprobs": 1}
USER = [{"role": "user", "content": "a"}]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> EngineThread:
    path = build_checkpoint("llama", tmp_path_factory.mktemp("refusals"))
    return EngineThread(Settings(model=str(path), max_num_seqs=4, max_model_len=LENGTH))


@pytest.fixture(scope="module")
def http(engine: EngineThread) -> Iterator[httpx.Client]:
    options = ServerOptions(max_body_bytes=LIMIT)
    with serving(engine, options=options) as url, httpx.Client(base_url=url, timeout=60) as client:
        yield client


def check_error(response: httpx.Response, status: int, param: str | None, fragment: str) -> None:
    error = response.json()["error"]
    assert set(response.json()) == {"error"} and set(error) == {"message", "type", "param", "code"}
    assert (response.status_code, error["param"]) == (status, param), error
    assert fragment in error["message"], error
    assert error["type"] == ("invalid_request_error" if status < 500 else "server_error")
    assert response.headers["x-request-id"]


COMPLETIONS: list[tuple[dict[str, Any], int, str | None, str]] = [
    ({}, 400, "prompt", "prompt is missing"),
    ({"prompt": None}, 400, "prompt", "prompt is None"),
    ({"prompt": ""}, 400, "prompt", "empty"),
    ({"prompt": []}, 400, "prompt", "empty list"),
    ({"prompt": [[]]}, 400, "prompt", "empty"),
    ({"prompt": 5}, 400, "prompt", "prompt is 5"),
    ({"prompt": {"a": 1}}, 400, "prompt", "wanted a text"),
    ({"prompt": [1, "a"]}, 400, "prompt", "wanted a text"),
    ({"prompt": ["a", [1]]}, 400, "prompt", "prompt[1]"),
    ({"prompt": [1, True]}, 400, "prompt", "wanted a text"),
    ({"prompt": [1.5]}, 400, "prompt", "1.5"),
    ({"prompt": [264]}, 400, "prompt", "ids go from 0 to 263"),
    ({"prompt": [[1], [-1]]}, 400, "prompt", "-1"),
    ({"prompt": [10**30]}, 400, "prompt", "ids go from 0 to 263"),
    ({"prompt": "x" * 200}, 400, "prompt", "200 tokens"),
    ({"prompt": "x" * 100, "max_tokens": 40}, 400, "max_tokens", "140"),
    ({"prompt": ["fine", "x" * 200]}, 400, "prompt", "200 tokens"),
    ({"prompt": "a", "model": "other"}, 404, "model", "'tiny' is"),
    ({"prompt": "a", "model": 5}, 400, "model", "wanted a valid string"),
    ({"prompt": "a", "max_tokens": 0}, 400, "max_tokens", "at least 1"),
    ({"prompt": "a", "max_tokens": -1}, 400, "max_tokens", "at least 1"),
    ({"prompt": "a", "max_tokens": "5"}, 400, "max_tokens", "'5'"),
    ({"prompt": "a", "max_tokens": True}, 400, "max_tokens", "True"),
    ({"prompt": "a", "max_completion_tokens": 5}, 400, "max_completion_tokens", "not a parameter"),
    ({"prompt": "a", "temperature": -0.1}, 400, "temperature", "at least 0"),
    ({"prompt": "a", "temperature": "hot"}, 400, "temperature", "valid number"),
    ({"prompt": "a", "temperature": float("nan")}, 400, "temperature", "nan"),
    ({"prompt": "a", "temperature": float("inf")}, 400, "temperature", "inf"),
    ({"prompt": "a", "top_p": 0}, 400, "top_p", "more than 0"),
    ({"prompt": "a", "top_p": 1.01}, 400, "top_p", "at most 1"),
    ({"prompt": "a", "top_k": -2}, 400, "top_k", "at least -1"),
    ({"prompt": "a", "seed": 2**70}, 400, "seed", "seed"),
    ({"prompt": "a", "seed": 1.5}, 400, "seed", "1.5"),
    ({"prompt": "a", "logprobs": 21}, 400, "logprobs", "from 0 to 20"),
    ({"prompt": "a", "logprobs": True}, 400, "logprobs", "True"),
    ({"prompt": "a", "stop": [""]}, 400, "stop", "one character or more"),
    ({"prompt": "a", "stop": [1]}, 400, "stop[0]", "valid string"),
    ({"prompt": "a", "stop": 7}, 400, "stop", "valid array"),
    ({"prompt": "a", "stop_token_ids": [264]}, 400, "stop_token_ids", "264"),
    ({"prompt": "a", "stop_token_ids": ["a"]}, 400, "stop_token_ids[0]", "valid integer"),
    ({"prompt": "a", "ignore_eos": "yes"}, 400, "ignore_eos", "valid boolean"),
    ({"prompt": "a", "stream": "yes"}, 400, "stream", "valid boolean"),
    ({"prompt": "a", "stream_options": {"surprise": 1}}, 400, "stream_options.surprise", "not a parameter"),
    ({"prompt": "a", "stream_options": 3}, 400, "stream_options", "stream_options is 3"),
    ({"prompt": "a", "surprise": None}, 400, "surprise", "not a parameter"),
    ({"prompt": "a", "messages": USER}, 400, "messages", "not a parameter"),
    ({"prompt": "a", "n": 2}, 400, "n", "not supported yet (got 2)"),
    ({"prompt": "a", "n": True}, 400, "n", "not supported yet"),
    ({"prompt": "a", "best_of": 2}, 400, "best_of", "not supported yet"),
    ({"prompt": "a", "echo": True}, 400, "echo", "not supported yet"),
    ({"prompt": "a", "suffix": "end"}, 400, "suffix", "not supported yet"),
    ({"prompt": "a", "presence_penalty": 0.5}, 400, "presence_penalty", "not supported yet"),
    ({"prompt": "a", "frequency_penalty": 0.5}, 400, "frequency_penalty", "not supported yet"),
    ({"prompt": "a", "repetition_penalty": 1.1}, 400, "repetition_penalty", "not supported yet"),
    ({"prompt": "a", "min_p": 0.1}, 400, "min_p", "not supported yet"),
    ({"prompt": "a", "logit_bias": {"5": 1}}, 400, "logit_bias", "not supported yet"),
    ({"prompt": "a", "response_format": {"type": "json_object"}}, 400, "response_format", "not supported yet"),
]
CHATS: list[tuple[dict[str, Any], int, str | None, str]] = [
    ({}, 400, "messages", "messages is missing"),
    ({"messages": []}, 400, "messages", "empty"),
    ({"messages": "hi"}, 400, "messages", "valid array"),
    ({"messages": ["hi"]}, 400, "messages[0]", "wanted an object"),
    ({"messages": [{"content": "a"}]}, 400, "messages[0].role", "role is None"),
    ({"messages": [{"role": "king", "content": "a"}]}, 400, "messages[0].role", "'king'"),
    ({"messages": [*USER, {"role": "user"}]}, 400, "messages[1].content", "missing"),
    ({"messages": [{"role": "user", "content": 5}]}, 400, "messages[0].content", "content is 5"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        400,
        "messages[0].content[0]",
        "'image_url'",
    ),
    ({"messages": [{"role": "user", "content": ["a"]}]}, 400, "messages[0].content[0]", "only text parts"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, 400, "messages[0].content[0].text", "missing"),
    ({"messages": [{"role": "user", "content": "a", "audio": {}}]}, 400, "messages[0].audio", "not supported"),
    (
        {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}]},
        400,
        "messages[0].tool_calls[0].function.arguments",
        "'{'",
    ),
    ({"messages": [{"role": "user", "content": "x" * 200}]}, 400, "messages", "maximum length here is 128"),
    ({"messages": USER, "max_tokens": 120}, 400, "max_tokens", "128"),
    ({"messages": USER, "max_completion_tokens": 120}, 400, "max_completion_tokens", "128"),
    ({"messages": USER, "max_tokens": 1, "max_completion_tokens": 2}, 400, "max_tokens", "send one of them"),
    ({"messages": USER, "top_logprobs": 2}, 400, "top_logprobs", "logprobs is not true"),
    ({"messages": USER, "logprobs": True, "top_logprobs": 21}, 400, "top_logprobs", "from 0 to 20"),
    ({"messages": USER, "logprobs": 2}, 400, "logprobs", "valid boolean"),
    ({"messages": USER, "model": "other"}, 404, "model", "'tiny' is"),
    ({"messages": USER, "prompt": "a"}, 400, "prompt", "not a parameter"),
    ({"messages": USER, "tools": [{"type": "function"}]}, 400, "tools", "not supported yet"),
    ({"messages": USER, "tool_choice": "required"}, 400, "tool_choice", "not supported yet"),
    ({"messages": USER, "response_format": {"type": "json_schema"}}, 400, "response_format", "not supported yet"),
    ({"messages": USER, "reasoning_effort": "high"}, 400, "reasoning_effort", "not supported yet"),
    ({"messages": USER, "modalities": ["text", "audio"]}, 400, "modalities", "not supported yet"),
    ({"messages": USER, "n": 3}, 400, "n", "not supported yet"),
    ({"messages": USER, "chat_template_kwargs": []}, 400, "chat_template_kwargs", "[]"),
    ({"messages": USER, "chat_template_kwargs": {"messages": 1, "tools": []}}, 400, "chat_template_kwargs", "tools"),
]
RAW: list[tuple[bytes, int, str | None, str]] = [
    (b"", 400, None, "not valid JSON"),
    (b"{", 400, None, "not valid JSON"),
    (b"\xff\xfe\x00", 400, None, "not valid JSON"),
    (b'{"prompt": "\\ud800"}', 400, None, "not valid JSON"),
    (b"[" * 100_000, 400, None, "not valid JSON"),
    (b"[]", 400, None, "body is a list"),
    (b"null", 400, None, "wanted a JSON object"),
    (b'"prompt"', 400, None, "wanted a JSON object"),
    (b" " * (LIMIT + 1), 413, None, f"{LIMIT + 1:,} bytes; the limit is {LIMIT:,}"),
    (b" " * (8 * LIMIT), 413, None, "more than 4,"),
]


def test_bad_input_is_refused_and_good_input_is_served_as_before(http: httpx.Client, engine: EngineThread) -> None:
    before = http.post("/v1/completions", json=GOOD).json()
    ended = engine.totals.finished.copy()
    for path, rows in (("/v1/completions", COMPLETIONS), ("/v1/chat/completions", CHATS)):
        for body, status, param, fragment in rows:
            for stream in ({}, {"stream": True}) if "stream" not in body else ({},):
                content = json.dumps({**body, **stream})  # NaN and Infinity too
                check_error(http.post(path, content=content), status, param, fragment)
    for raw, status, param, fragment in RAW:
        for path in ("/v1/completions", "/v1/chat/completions"):
            check_error(http.post(path, content=raw), status, param, fragment)
    assert engine.totals.finished == ended, "no refused request may reach the engine"
    for _ in range(20):
        after = http.post("/v1/completions", json=GOOD)
        assert after.status_code == 200
        assert (after.json()["choices"], after.json()["usage"]) == (before["choices"], before["usage"])
    assert engine.load == (0, 0, engine.plan.num_pages - 1)
    engine.ask(lambda core: core.scheduler.check_integrity())


def test_codes(http: httpx.Client) -> None:
    def code(path: str, body: dict[str, Any]) -> str:
        return str(http.post(path, json=body).json()["error"]["code"])

    assert code("/v1/completions", {"prompt": "x" * 200}) == "context_length_exceeded"
    assert code("/v1/completions", {"prompt": "x", "model": "y"}) == "model_not_found"
    assert code("/v1/completions", {"prompt": "x", "n": 2}) == "unsupported_parameter"
    assert code("/v1/completions", {"prompt": "x", "y": 2}) == "unknown_parameter"
    assert code("/v1/completions", {}) == "missing_required_parameter"


def test_unknown_paths_and_methods(http: httpx.Client) -> None:
    check_error(http.get("/v1/nothing"), 404, None, "GET /v1/nothing")
    check_error(http.post("/"), 404, None, "POST /")
    check_error(http.get("/v1/models/other"), 404, "model", "'tiny' is")
    response = http.get("/v1/completions")
    check_error(response, 405, None, "allowed: POST")
    assert response.headers["allow"] == "POST"
    check_error(http.delete("/health"), 405, None, "allowed: GET")


def test_unforeseen_exceptions_stay_inside(
    http: httpx.Client, engine: EngineThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: object, **kwargs: object) -> None:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(engine, "check", broken)
    response = http.post("/v1/completions", json=GOOD, headers={"x-request-id": "find-me"})
    check_error(response, 500, None, "request id find-me")
    assert "secret" not in response.text and "ZeroDivisionError" not in response.text
    monkeypatch.undo()
    assert http.post("/v1/completions", json=GOOD).status_code == 200
