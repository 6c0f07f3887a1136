"""A process of its own for every set of plugins: which ones load is decided once, at start."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from plait.testing.checkpoints import build_checkpoint

# It imports both; the other files say themselves what they skip.
collect_ignore = [] if find_spec("plait_metal") and find_spec("plait_gdn") else ["test_engine_on_row_kernels.py"]

# Prints what is loaded, and the greedy answer of each checkpoint or the error that refuses it.
PROGRAM = """
import json, sys

from plait import LLM, SamplingParams
from plait.errors import PlaitError
from plait.plugins import Plugins

PROMPTS = ["The quick brown fox", "x" * 75]
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)

def answer(checkpoint):
    try:
        with LLM(checkpoint, max_model_len=128, max_num_seqs=2, max_num_batched_tokens=32) as llm:
            outputs = llm.generate(PROMPTS, GREEDY, use_tqdm=False)
        return {"tokens": [list(output.outputs[0].token_ids) for output in outputs]}
    except PlaitError as error:
        return {"error": type(error).__name__, "text": str(error)}

plugins = Plugins()
backend = plugins.kernel_backend()
found = {
    "families": sorted(plugins.families()),
    "loaded": sorted(info.name for info in plugins.loaded),
    "set_aside": {info.name: info.reason for info in plugins.set_aside},
    "backend": backend and backend.name,
    "answers": {name: answer(path) for name, path in json.loads(sys.argv[1]).items()},
    "modules": sorted({name.partition(".")[0] for name in sys.modules if name.startswith("plait")}),
}
print(json.dumps(found))
"""

Report = dict[str, Any]
Look = Callable[..., Report]


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A model of attention layers only, and one with recurrent layers of `gdn` between them."""
    folder = tmp_path_factory.mktemp("combos")
    return {name: build_checkpoint(name, folder) for name in ("llama", "qwen3_5")}


@pytest.fixture(scope="session")
def look(checkpoints: dict[str, Path]) -> Look:
    """Starts a process with a value of PLAIT_PLUGINS (None: unset), and returns its report."""

    def run(plugins: str | None, environment: Mapping[str, str] | None = None) -> Report:
        variables = {name: value for name, value in os.environ.items() if name != "PLAIT_PLUGINS"}
        variables |= {} if plugins is None else {"PLAIT_PLUGINS": plugins}
        paths = json.dumps({name: str(path) for name, path in checkpoints.items()})
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, paths],
            env={**variables, **(environment or {})},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        report: Report = json.loads(done.stdout.splitlines()[-1])
        return report

    return run
