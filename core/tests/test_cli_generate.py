"""`plait generate` on a tiny checkpoint: the tokens of `LLM`, streamed, as JSON, interrupted."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from typer.testing import CliRunner

from plait import LLM, SamplingParams
from plait.cli.app import build_app
from plait.testing.checkpoints import build_checkpoint

PROMPT = "The weaver"
GREEDY = ("--temperature", "0", "--max-tokens", "12")


@pytest.fixture(autouse=True)
def core_alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Core's own plugins only, and the logs as they were."""
    monkeypatch.setenv("PLAIT_PLUGINS", "")
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    yield
    structlog.reset_defaults()
    root.handlers = handlers
    root.setLevel(level)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(build_checkpoint("llama", tmp_path_factory.mktemp("checkpoints")))


@pytest.fixture(scope="module")
def expected(model: str) -> dict[str, Any]:
    """What `LLM` says greedily to the prompt, as it is and in the chat template."""
    chat = f"<|im_start|>user\n{PROMPT}<|im_end|><|im_start|>assistant"
    with LLM(model) as llm:
        plain, templated = llm.generate([PROMPT, chat], SamplingParams(temperature=0, max_tokens=12), use_tqdm=False)
    assert plain.outputs[0].token_ids != templated.outputs[0].token_ids
    return {"plain": plain, "chat": templated}


def generate(*args: str, stdin: str | None = None) -> Any:
    return CliRunner().invoke(build_app(), ["generate", *args], input=stdin)


def generate_json(*args: str, stdin: str | None = None) -> Any:
    done = generate(*args, "--json", stdin=stdin)
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


def test_one_prompt_is_streamed_and_summed_up_on_stderr(model: str, expected: dict[str, Any]) -> None:
    done = generate(model, "--prompt", PROMPT, "--no-chat", *GREEDY)
    assert done.exit_code == 0 and done.stdout == expected["plain"].outputs[0].text + "\n"
    assert done.stderr.startswith("done: 10 prompt tokens, 12 generated in ") and done.stderr.endswith(" tok/s\n")
    assert done.stderr.count("\n") == 1  # no start-up report: stderr is for the summary


def test_the_chat_template_is_applied_unless_told_not_to(model: str, expected: dict[str, Any]) -> None:
    for args, kind in (((), "chat"), (("--chat",), "chat"), (("--no-chat",), "plain")):
        [output] = generate_json(model, "--prompt", PROMPT, *args, *GREEDY)["outputs"]
        assert output["token_ids"] == expected[kind].outputs[0].token_ids
        assert output["prompt_tokens"] == len(expected[kind].prompt_token_ids)


def test_json_says_everything(model: str, expected: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "prompt.txt"
    file.write_text(PROMPT)
    from_file = generate_json(model, "--prompt-file", str(file), "--no-chat", *GREEDY)
    from_stdin = generate_json(model, "--no-chat", *GREEDY, stdin=PROMPT + "\n")
    assert from_file["outputs"] == from_stdin["outputs"]
    completion = expected["plain"].outputs[0]
    assert from_file["outputs"] == [
        {
            "prompt": PROMPT,
            "prompt_tokens": 10,
            "text": completion.text,
            "token_ids": completion.token_ids,
            "finish_reason": "length",
            "stop_reason": None,
        }
    ]
    assert (from_file["model"], from_file["prompt_tokens"], from_file["generated_tokens"]) == (model, 10, 12)
    assert from_file["tokens_per_second"] == pytest.approx(12 / from_file["seconds"])


def test_several_prompts_come_back_in_their_order(model: str, expected: dict[str, Any]) -> None:
    done = generate(model, "--prompt", PROMPT, "--prompt", "second\nline", "--no-chat", *GREEDY)
    first = f"=== {PROMPT}\n{expected['plain'].outputs[0].text}\n\n=== second\n"
    assert done.exit_code == 0 and done.stdout.startswith(first)
    answer = generate_json(model, "--prompt", PROMPT, "--prompt", "x", "--no-chat", *GREEDY)
    assert [output["prompt"] for output in answer["outputs"]] == [PROMPT, "x"] and answer["generated_tokens"] == 24


def test_a_seed_repeats_and_a_stop_text_stops(model: str, expected: dict[str, Any]) -> None:
    line = (model, "--prompt", PROMPT, "--prompt", PROMPT, "--no-chat", "--max-tokens", "12")
    runs = [generate_json(*line, "--seed", seed)["outputs"] for seed in ("5", "5", "6")]
    assert runs[0] == runs[1] != runs[2]
    assert runs[0][0]["token_ids"] != runs[0][1]["token_ids"]  # one prompt twice is two draws
    text = expected["plain"].outputs[0].text
    [stopped] = generate_json(*line[:3], "--no-chat", *GREEDY, "--stop", text[3])["outputs"]
    assert stopped["text"] == text[: text.index(text[3])] and stopped["stop_reason"] == text[3]


def test_what_cannot_be_served_is_a_message(model: str, tmp_path: Path) -> None:
    too_long = generate(model, "--prompt", PROMPT, "--max-model-len", "64", "--max-tokens", "1000")
    assert (
        too_long.exit_code == 1
        and too_long.stderr.startswith("error: ")
        and "1,000" in too_long.stderr.replace("1000", "1,000")
    )
    bare = Path(build_checkpoint("llama", tmp_path))
    settings = json.loads((bare / "tokenizer_config.json").read_text())
    del settings["chat_template"]
    (bare / "tokenizer_config.json").write_text(json.dumps(settings))
    assert generate_json(str(bare), "--prompt", PROMPT, *GREEDY)["prompt_tokens"] == 10
    refused = generate(str(bare), "--prompt", PROMPT, "--chat", *GREEDY)
    assert refused.exit_code == 1 and refused.stdout == ""
    assert refused.stderr == "error: --chat: the model's tokenizer has no chat template. Leave --chat out.\n"


def test_an_interrupted_stream_ends_quietly(model: str) -> None:
    line = [sys.executable, "-m", "plait.cli", "generate", model, "--prompt", PROMPT, "--max-tokens", "4000"]
    with subprocess.Popen(
        [*line, "--temperature", "0", "--stop", "this never comes"],
        env={**os.environ, "PLAIT_PLUGINS": ""}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.read(1)  # text came: it runs
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()
        assert process.wait(60) == 130 and process.stderr.read() == b""
        assert len(rest) < 4000
