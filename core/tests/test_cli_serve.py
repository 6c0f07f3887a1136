"""`plait serve` as a process: it starts, tells plugins, answers, logs, and ends on SIGINT with status 0."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import pytest
import structlog
from typer.testing import CliRunner

import plait  # noqa: F401  before MLX
from plait.cli.app import build_app
from plait.testing.checkpoints import build_checkpoint


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(build_checkpoint("llama", tmp_path_factory.mktemp("checkpoints")))


@pytest.fixture
def path_with_plugin(tmp_path: Path) -> str:
    """A folder for PYTHONPATH with an installed plugin, `gate`, that has an option and reports its value."""
    (tmp_path / "plait_gate_for_test.py").write_text(
        """
from plait.hooks import hookimpl

@hookimpl
def plait_add_options(parser):
    parser.add("gate-width", type=int, default=1, help="How wide.")

@hookimpl
def plait_report_header(config):
    return f"the gate is {config.options['gate-width'] + 1} wide"
"""
    )
    info = tmp_path / "plait_gate-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plait-gate\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[plait.v1]\ngate = plait_gate_for_test\n")
    return str(tmp_path)


def events(stream: IO[str]) -> Iterator[dict[str, Any]]:
    """The events of a log in JSON; a line that is no JSON fails the test."""
    for line in stream:
        yield json.loads(line)


def ask(url: str, body: dict[str, Any] | None = None) -> tuple[Any, str]:
    """An answer, and the id of the request."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.loads(answer.read()), answer.headers["x-request-id"]


def test_serve_answers_and_ends_on_an_interrupt(model: str, path_with_plugin: str) -> None:
    line = [sys.executable, "-m", "plait.cli", "serve", model, "--port", "0", "--served-model-name", "loom"]
    line += ["--log-json", "--max-num-seqs", "4", "--max-model-len", "128", "--trust-remote-code", "--gate-width", "7"]
    environment = {**os.environ, "PLAIT_PLUGINS": "gate", "PYTHONPATH": path_with_plugin}
    with subprocess.Popen(line, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        log = events(process.stderr)
        try:
            started = next(event for event in log if event["event"] == "engine started")
            assert any("4 requests" in text for text in started["report"])
            assert "the gate is 8 wide" in started["report"]
            assert sum("--trust-remote-code" in text for text in started["report"]) == 1
            url = next(event["url"] for event in log if event["event"] == "serving")
            assert ask(url.removesuffix("/v1") + "/health")[0] == {"status": "ok"}
            assert [card["id"] for card in ask(f"{url}/models")[0]["data"]] == ["loom"]
            body = {"model": "loom", "prompt": "The", "max_tokens": 3, "temperature": 0}
            completion, request_id = ask(f"{url}/completions", body)
            assert completion["usage"]["completion_tokens"] == 3
            process.send_signal(signal.SIGINT)
            rest = list(log)
            assert process.wait(60) == 0 and process.stdout.read() == ""
        finally:
            process.kill()
    assert request_id in [event.get("request_id") for event in rest if event["event"] == "http request"]
    assert "server ends" in [event["event"] for event in rest] and not [e for e in rest if "exception" in e]


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """`plait serve` in this process, for what never comes to serve; the logs are put back."""
    monkeypatch.setenv("PLAIT_PLUGINS", "")
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    yield lambda *args: CliRunner().invoke(build_app(), ["serve", *args])
    structlog.reset_defaults()
    root.handlers = handlers
    root.setLevel(level)


def test_a_taken_port_is_a_message_before_anything_loads(serve: Callable[..., Any]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = serve("/no/such/model", "--port", port)
    assert done.exit_code == 1 and done.stdout == ""
    assert done.stderr.startswith(f"error: cannot listen on 127.0.0.1 port {port}") and done.stderr.count("\n") == 1


def test_a_model_that_is_not_there_leaves_the_port_free(serve: Callable[..., Any]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    done = serve("/no/such/model", "--port", str(port))
    assert done.exit_code == 1 and done.stderr.startswith("error: model ") and done.stderr.count("\n") == 1
    socket.create_server(("127.0.0.1", port)).close()
