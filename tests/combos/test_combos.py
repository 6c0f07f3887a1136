"""Every set of plugins: what is named loads and nothing else, and whoever can serve a model gives the same answer."""

from __future__ import annotations

import importlib
import os
import sysconfig
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

OURS = {"gdn": "plait-gdn", "metal": "plait-metal"}
"""Plugins of this repository, by the name of their entry point, and the distribution that ships each."""

CORE = ("attention", "demo")
FAMILIES = {"attention", "gdn"}


@cache
def installed() -> frozenset[str]:
    """Our plugins that are installed here."""
    names = {distribution.name for distribution in metadata.distributions()}
    return frozenset(plugin for plugin, distribution in OURS.items() if distribution in names)


SETS = [None, "", *sorted(OURS), "gdn,metal", " metal , gdn,"]


def named(plugins: str | None) -> frozenset[str]:
    """The plugins that a value of PLAIT_PLUGINS admits here."""
    return installed() if plugins is None else frozenset(name.strip() for name in plugins.split(",") if name.strip())


@pytest.mark.skipif("PLAIT_WHEELS" not in os.environ, reason="an editable install, not an environment of tox")
def test_only_what_is_installed_is_imported() -> None:
    site = Path(sysconfig.get_path("purelib")).resolve()
    for name in ("plait", *(f"plait_{plugin}" for plugin in installed())):
        assert Path(str(importlib.import_module(name).__file__)).resolve().is_relative_to(site)


@pytest.fixture(scope="module")
def everything(look: Any) -> Any:
    """The report of a process that loads all that is installed."""
    return look(None)


@pytest.mark.parametrize("plugins", SETS, ids=lambda value: "unset" if value is None else repr(value))
def test_a_set_of_plugins(plugins: str | None, look: Any, everything: Any) -> None:
    wanted = named(plugins)
    if missing := wanted - installed():
        pytest.skip(f"needs {', '.join(sorted(OURS[name] for name in missing))}")
    found = everything if plugins is None else look(plugins)

    assert found["loaded"] == sorted([*CORE, *wanted]) and found["set_aside"] == {}
    assert set(found["families"]) == {"attention"} | (wanted & FAMILIES)
    assert set(found["modules"]) == {"plait", *(f"plait_{name}" for name in wanted)}
    if "metal" not in wanted:
        assert found["backend"] is None

    llama, hybrid = found["answers"]["llama"], found["answers"]["qwen3_5"]
    assert llama == everything["answers"]["llama"], "a plugin that the model does not need changes its answer"
    assert [len(tokens) for tokens in llama["tokens"]] == [12, 12]
    assert len({token for tokens in llama["tokens"] for token in tokens}) > 4, "one token over and over proves little"
    if "gdn" in wanted:
        assert hybrid == everything["answers"]["qwen3_5"]
        assert [len(tokens) for tokens in hybrid["tokens"]] == [12, 12]
    else:
        assert hybrid["error"] == "SiteClaimError"
        assert "GatedDeltaNet" in hybrid["text"] and "pip install ./plugins/gdn" in hybrid["text"]
        limited = f"PLAIT_PLUGINS={plugins} limits what is loaded"
        assert (limited in hybrid["text"]) == (plugins is not None)


def test_a_name_that_is_not_installed_is_named(look: Any) -> None:
    with pytest.raises(AssertionError, match="PLAIT_PLUGINS names rwkv, which is not installed"):
        look("rwkv")
