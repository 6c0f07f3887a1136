"""What a user does: clone, make a virtual environment, install some folders, plan a model."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from plait.testing.checkpoints import build_checkpoint

ROOT = Path(__file__).resolve().parents[2]
NOT_CLONED = shutil.ignore_patterns(
    ".*", "__pycache__", "*.egg-info", "build", "dist", "tests", "benchmarks", "docs", "examples"
)
SECONDS = 900


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tree, with nothing in it that a clone has not."""
    return shutil.copytree(ROOT, tmp_path_factory.mktemp("somewhere") / "plait", ignore=NOT_CLONED)


class Venv:
    """A fresh virtual environment, in which pip writes down everything that it asks."""

    def __init__(self, folder: Path, clone: Path) -> None:
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, timeout=SECONDS)
        self.folder, self.clone, self.logs = folder, clone, 0

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment in the clone."""
        program, *arguments = command
        environment = {
            n: v for n, v in os.environ.items() if n not in ("PLAIT_PLUGINS", "PYTHONPATH", "PIP_CONSTRAINT")
        }
        return subprocess.run(
            [str(self.folder / "bin" / program), *arguments],
            cwd=self.clone,
            env=environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )

    def install(self, *arguments: str) -> set[str]:
        """Run pip install; returns the names that an index was asked for."""
        self.logs += 1
        log = self.folder / f"pip-{self.logs}.log"
        # Compiling what is installed would take longer than installing it.
        done = self.run("pip", "install", "--no-compile", "--log", str(log), *arguments)
        assert done.returncode == 0, done.stderr
        return set(re.findall(r"location\(s\) to search for versions of ([\w.-]+):", log.read_text()))


@pytest.mark.network
def test_any_subset_installs_from_a_clone_and_plans(clone: Path, tmp_path: Path) -> None:
    venv = Venv(tmp_path / "venv", clone)
    asked = venv.install("./core", "./plugins/gdn")
    assert "attrs" in asked, "this is how pip's log tells what an index was asked for"
    assert not [name for name in asked if name.startswith("plait")], "no index knows our distributions"
    assert plan(venv, "qwen3_5", tmp_path) == {"attention", "gdn"}

    done = venv.run("plait", "doctor", "--json")
    found = json.loads(done.stdout)
    assert done.returncode == 0 and found["problems"] == [], (found, done.stderr)
    assert not any("metal" in info for info in found["loaded"])

    # And later the kernels, into the environment that has the rest.
    assert not [name for name in venv.install("./metal") if name.startswith("plait")]
    loaded = json.loads(venv.run("plait", "doctor", "--json").stdout)["loaded"]
    assert any(info.startswith("metal (plait-metal") for info in loaded)


def plan(venv: Venv, model: str, folder: Path) -> set[str]:
    """Plan a tiny checkpoint in the environment; returns the families that own its sites."""
    done = venv.run("plait", "plan", str(build_checkpoint(model, folder)), "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return {site["family"] for site in found["sites"]}
