"""SIGTERM, as service managers and containers send it."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
def test_sigterm_ends_it(serve: Any, checkpoints: dict[str, Path], busy: bool) -> None:
    with serve(checkpoints["llama"], "--max-num-seqs", "2", "--kv-cache-memory-bytes", "8MiB") as served:
        if busy:
            body = {"prompt": "Hello", "max_tokens": 3000, "ignore_eos": True, "stream": True}
            with served.http() as http, http.stream("POST", "/v1/completions", json=body) as response:
                lines = (line for line in response.iter_lines() if line.startswith(("data:", "event:")))
                next(lines)
                status = served.end()
                *_, event, data = lines
            assert event == "event: error"
            assert json.loads(data.removeprefix("data: "))["error"]["code"] == "engine_shut_down"
        else:
            status = served.end()
        assert status == -signal.SIGTERM
        log = served.log()
        assert "server ends" in [event["event"] for event in log]
        assert not [event for event in log if "exception" in event or event.get("level") == "error"]
        with pytest.raises(httpx.ConnectError):
            served.http().get("/health")
