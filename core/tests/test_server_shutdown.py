"""The end of a server: by signals, with requests running, and a port that is taken."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from plait.errors import PlaitError
from plait.server.app import listen
from plait.testing.checkpoints import build_checkpoint

PROGRAM = """
import sys
from plait.engine.thread import EngineThread
from plait.server.app import listen, run
from plait.settings import Settings

listener = listen("127.0.0.1", 0)
engine = EngineThread(Settings(model=sys.argv[1], max_num_seqs=2, kv_cache_memory_bytes=8 << 20))
print("port", listener.getsockname()[1], file=sys.stderr, flush=True)
run(engine, "tiny", listener)
assert not engine.alive
print("ended well", file=sys.stderr, flush=True)
"""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_checkpoint("llama", tmp_path_factory.mktemp("shutdown"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_end_the_server_and_its_requests(checkpoint: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-c", PROGRAM, str(checkpoint)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        assert process.stderr is not None
        try:
            port = next(line.split()[1] for line in process.stderr if line.startswith("port "))
            body = {"prompt": "Hello", "max_tokens": 4000, "ignore_eos": True, "stream": True}
            with (
                httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as http,
                http.stream("POST", "/v1/completions", json=body) as response,
            ):
                lines = (line for line in response.iter_lines() if line)
                assert next(lines).startswith(":")
                assert next(lines).startswith("data: ")
                process.send_signal(number)
                *_, event, data = lines
            assert event == "event: error"
            assert json.loads(data.removeprefix("data: "))["error"]["code"] == "engine_shut_down"
            said = process.stderr.read()
            status = process.wait(timeout=60)
        finally:
            process.kill()
    assert "Traceback" not in said, said
    if number == signal.SIGINT:
        assert status == 0 and "ended well" in said
    else:
        assert status == -signal.SIGTERM, "uvicorn raises the signal again when it has ended"


def test_a_port_that_is_taken_is_named() -> None:
    with listen("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(PlaitError, match=f"cannot listen on 127.0.0.1 port {port}"):
            listen("127.0.0.1", port)
    with pytest.raises(PlaitError, match="port 70000"):
        listen("127.0.0.1", 70000)
