"""What is installed works by itself, away from the tree."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import sysconfig
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


def plait(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the installed command."""
    command = Path(sysconfig.get_path("scripts"), "plait")
    environment = {name: value for name, value in os.environ.items() if name not in ("PLAIT_PLUGINS", "PYTHONPATH")}
    return subprocess.run([command, *arguments], capture_output=True, text=True, timeout=300, env=environment)


def test_this_runs_outside_the_tree() -> None:
    assert ROOT not in [Path.cwd().resolve(), *Path.cwd().resolve().parents]
    assert not [entry for entry in sys.path if Path(entry).name == "src"]


def test_imports_come_from_the_wheels(wheel: Any) -> None:
    module = importlib.import_module(wheel.package)
    site = Path(sysconfig.get_path("purelib")).resolve()
    assert Path(str(module.__file__)).resolve().is_relative_to(site)
    record = metadata.distribution(wheel.name)
    assert record.version == wheel.metadata["Version"]
    origin = json.loads(record.read_text("direct_url.json") or "{}")
    assert origin["url"].endswith(".whl") and "archive_info" in origin


def test_the_command_tells_its_version(wheels: dict[str, Any]) -> None:
    done = plait("--version")
    assert (done.returncode, done.stdout) == (0, f"plait {wheels['plait'].metadata['Version']}\n"), done.stderr


def test_the_command_lists_families_and_who_ships_them() -> None:
    done = plait("families", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["set_aside"] == []
    assert {(row["family"], row["distribution"]) for row in found["families"]} == {
        ("attention", "plait"),
        ("gdn", "plait-gdn"),
    }


def test_doctor_finds_nothing_broken() -> None:
    done = plait("doctor", "--json")
    found = json.loads(done.stdout)
    assert done.returncode == 0 and found["problems"] == [], (found, done.stderr)
    assert any("plait-metal" in info for info in found["loaded"])


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere MLX brings its own BLAS")
def test_doctor_says_which_blas_serves() -> None:
    found = json.loads(plait("doctor", "--json").stdout)
    wanted = {"off": "off", "": "preloaded"}.get(os.environ.get("PLAIT_BLAS", ""), "custom")
    assert found["blas"].startswith(wanted)
