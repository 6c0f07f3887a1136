"""`plait serve` as a process of its own, as a user starts it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import attrs
import httpx
import pytest
from openai import OpenAI

from plait.testing.checkpoints import build_checkpoint

START_SECONDS = 300  # a demo is downloaded meanwhile
END_SECONDS = 60

LIMITS = {"max_model_len": 256, "max_num_seqs": 8, "max_num_batched_tokens": 64, "kv_cache_memory_bytes": 16 << 20}
"""Of every engine here: small enough that clients have to wait for one another."""


@attrs.define
class Served:
    """A running `plait serve`.

    Attributes:
        process: the server.
        log_file: its log, one JSON object a line.
        url: its address, without a path.
    """

    process: subprocess.Popen[bytes]
    log_file: Path
    url: str = ""

    def log(self) -> list[dict[str, Any]]:
        """Return the events so far; a line that is no JSON fails the test."""
        lines = self.log_file.read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def wait_until_it_serves(self) -> None:
        """Wait for the line that tells the address, and for an answer from there."""
        deadline = time.monotonic() + START_SECONDS
        while not self.url:
            ended, said = self.process.poll(), self.log_file.read_text()
            assert ended is None, f"plait serve ended with {ended}: {said}"
            assert time.monotonic() < deadline, f"plait serve does not serve: {said}"
            self.url = next((str(e["url"]).removesuffix("/v1") for e in self.log() if e["event"] == "serving"), "")
            time.sleep(0.05)
        # It listens, but signals get their handlers only when the event loop runs.
        with self.http() as http:
            assert http.get("/health").status_code == 200

    def http(self) -> httpx.Client:
        """Return a client of plain HTTP."""
        return httpx.Client(base_url=self.url, timeout=120)

    def openai(self) -> OpenAI:
        """Return OpenAI's own client."""
        return OpenAI(base_url=f"{self.url}/v1", api_key="none", timeout=120, max_retries=0)

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send a signal, and return the status that the process ends with."""
        self.process.send_signal(number)
        return self.process.wait(END_SECONDS)


Serve = Callable[..., contextlib.AbstractContextManager[Served]]


@pytest.fixture(scope="session")
def serve(tmp_path_factory: pytest.TempPathFactory) -> Serve:
    """Starts servers: `with serve(model, "--layout", "unified") as served`."""

    @contextlib.contextmanager
    def run(model: str | Path, *options: str, cwd: Path | None = None) -> Iterator[Served]:
        folder = tmp_path_factory.mktemp("server")
        command = [sys.executable, "-m", "plait.cli", "serve", str(model), "--port", "0", "--log-json", *options]
        environment = {name: value for name, value in os.environ.items() if name != "PLAIT_PLUGINS"}
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(command, env=environment, cwd=cwd or folder, stdout=log, stderr=log)
        served = Served(process, folder / "log")
        try:
            served.wait_until_it_serves()
            yield served
        finally:
            process.kill()
            process.wait()

    return run


def limits_as_options() -> list[str]:
    """Return `LIMITS` for the command line."""
    return [text for name, value in LIMITS.items() for text in ("--" + name.replace("_", "-"), str(value))]


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Tiny checkpoints by name: those that can be served here."""
    folder = tmp_path_factory.mktemp("checkpoints")
    names = ["llama", *(["qwen3_5"] if find_spec("plait_gdn") else [])]
    return {name: build_checkpoint(name, folder) for name in names}


@pytest.fixture(scope="module", params=["qwen3_5-spanning", "qwen3_5-unified", "llama-spanning"])
def served(request: pytest.FixtureRequest, serve: Serve, checkpoints: dict[str, Path]) -> Iterator[Served]:
    """A server of each model and layout; the model's name there is that of the checkpoint."""
    name, _, layout = request.param.partition("-")
    if name not in checkpoints:
        pytest.skip("needs plait-gdn")
    options = [*limits_as_options(), "--layout", layout, "--served-model-name", name]
    with serve(checkpoints[name], *options) as running:
        yield running


@pytest.fixture
def name(request: pytest.FixtureRequest, served: Served) -> str:
    """What the served model is called."""
    return str(served.http().get("/v1/models").json()["data"][0]["id"])
