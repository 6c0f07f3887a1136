"""Plugins of strangers: a broken one is set aside and serving goes on, unless a site is then nobody's."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

Install = Callable[..., dict[str, str]]


@pytest.fixture
def install(tmp_path: Path) -> Install:
    """Puts a plugin on PYTHONPATH as pip would lay it out; returns the environment that has it."""

    def write(name: str, source: str, group: str = "plait.v1", module: str | None = None) -> dict[str, str]:
        module = module or f"plait_{name}"
        (tmp_path / f"{module}.py").write_text(source)
        info = tmp_path / f"plait_{name}-0.4.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: plait-{name}\nVersion: 0.4\n")
        (info / "entry_points.txt").write_text(f"[{group}]\n{name} = {module}\n")
        return {"PYTHONPATH": str(tmp_path)}

    return write


BROKEN = {
    "raises": ("raise RuntimeError('washed up')", "plait.v1", "washed up"),
    "does not exist": ("import plait_that_is_not_there", "plait.v1", "No module named 'plait_that_is_not_there'"),
    "another API": ("raise SystemExit('imported')", "plait.v0", "written for hook API 'plait.v0'"),
    "an unknown hook": (
        "from plait.hooks import hookimpl\n@hookimpl\ndef plait_familys(): return []",
        "plait.v1",
        "plait_familys is not a hook of Plait",
    ),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_plugin_is_set_aside_and_serving_goes_on(kind: str, install: Install, look: Any) -> None:
    source, group, reason = BROKEN[kind]
    found = look("wreck", install("wreck", source, group))
    assert reason in found["set_aside"]["wreck"] and "plait-wreck 0.4" in found["set_aside"]["wreck"]
    assert "wreck" not in found["loaded"] and found["families"] == ["attention"]
    assert [len(tokens) for tokens in found["answers"]["llama"]["tokens"]] == [12, 12]
    # It might have been the owner of the sites that nobody claims now, so the error tells its reason.
    hybrid = found["answers"]["qwen3_5"]
    assert hybrid["error"] == "SiteClaimError" and reason in hybrid["text"]


def test_a_broken_owner_is_fatal_for_its_own_models_only(install: Install, look: Any, tmp_path: Path) -> None:
    names = {distribution.name for distribution in metadata.distributions()}
    if "plait-gdn" not in names:
        pytest.skip("needs plait-gdn")
    # A module of the same name that comes first on the path: as if an upgrade had gone wrong half-way.
    (tmp_path / "plait_gdn").mkdir()
    (tmp_path / "plait_gdn" / "__init__.py").write_text("raise ImportError('half an upgrade')")
    found = look("gdn", {"PYTHONPATH": str(tmp_path)})
    assert "half an upgrade" in found["set_aside"]["gdn"]
    assert len(found["answers"]["llama"]["tokens"]) == 2
    hybrid = found["answers"]["qwen3_5"]
    assert hybrid["error"] == "SiteClaimError"
    assert "half an upgrade" in hybrid["text"] and "plait-gdn" in hybrid["text"]


def test_an_observer_that_raises_disturbs_nobody(install: Install, look: Any) -> None:
    source = """
from plait.hooks import hookimpl

@hookimpl
def plait_step_done(report):
    raise RuntimeError("its own affair")
"""
    found = look("meter", install("meter", source))
    assert "meter" in found["loaded"]
    assert [len(tokens) for tokens in found["answers"]["llama"]["tokens"]] == [12, 12]


def test_two_owners_of_a_site_are_refused_and_both_named(install: Install, look: Any) -> None:
    source = """
from plait.hooks import hookimpl
from plait.spec import Claim

@hookimpl
def plait_claim_site(site):
    return Claim("attention") if site.config["model_type"] == "llama" else None
"""
    refused = look("rival", install("rival", source))["answers"]["llama"]
    assert refused["error"] == "SiteClaimError" and "claimed twice" in refused["text"]
    assert "attention (plait " in refused["text"] and "rival (plait-rival 0.4)" in refused["text"]


@pytest.mark.parametrize("strict", [False, True])
def test_strict_plugins_end_the_command(strict: bool, install: Install, checkpoints: dict[str, Path]) -> None:
    environment = {**os.environ, "PLAIT_PLUGINS": "wreck", **install("wreck", "raise RuntimeError('washed up')")}
    command = [sys.executable, "-m", "plait.cli", "generate", str(checkpoints["llama"]), "--prompt", "Once"]
    command += ["--max-tokens", "3", "--max-model-len", "64", *(["--strict-plugins"] if strict else [])]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert "washed up" in done.stderr and "Traceback" not in done.stderr
    assert done.returncode == (1 if strict else 0), done.stderr
