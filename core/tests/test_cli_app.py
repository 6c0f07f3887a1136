"""The command line as a whole: quick help, errors without tracebacks, options of plugins."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from typer.testing import CliRunner

import plait
from plait import plugins
from plait.cli.app import build_app
from plait.engine import thread
from plait.errors import CheckpointError
from plait.settings import Settings


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


def cli(*args: str) -> Any:
    return CliRunner().invoke(build_app(), list(args))


class Stopped(Exception):
    """Ends a command where the engine would start."""


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """The settings of the engines that would have started."""
    seen: list[Settings] = []

    def engine(settings: Settings, _: plugins.Plugins) -> None:
        seen.append(settings)
        raise CheckpointError("stopped here")

    monkeypatch.setattr(thread, "EngineThread", engine)
    return seen


PLUGIN = """
import os
from plait.hooks import hookimpl

@hookimpl
def plait_add_options(parser):
    {options}
"""


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str, group: str = "plait.v1") -> None:
    """Put a plugin's module and its metadata into a folder on sys.path, as an installer would."""
    module = f"plait_{name}_for_test"
    (folder / f"{module}.py").write_text(text)
    info = folder / f"plait_{name}-3.2.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: plait-{name}\nVersion: 3.2.1\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{name} = {module}\n")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PLAIT_PLUGINS", name)
    monkeypatch.delitem(sys.modules, module, raising=False)


def test_building_the_app_imports_neither_mlx_nor_a_plugin() -> None:
    code = (
        "import sys; from plait.cli.app import build_app; from typer.main import get_command; get_command(build_app());"
        "print([m for m in sys.modules if m.split('.')[0] in ('mlx', 'mlx_lm', 'transformers', 'fastapi', 'pluggy')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_plait_alone_prints_help_and_version_is_one_line() -> None:
    alone, asked_for = cli(), cli("--help")
    assert alone.exit_code == asked_for.exit_code == 0
    for command in ("serve", "generate", "plan", "doctor", "families"):
        assert f"\n  {command}" in alone.stdout and f"\n  {command}" in asked_for.stdout
    version = cli("--version")
    assert (version.exit_code, version.stdout) == (0, f"plait {plait.__version__}\n")


@pytest.mark.parametrize(
    ("args", "status", "says"),
    [
        (["generate", "/no/such", "--prompt", "x"], 1, "'/no/such' is not a path"),
        (["plan", "/no/such"], 1, "'/no/such' is not a path"),
        (["plan", "x", "--dtype", "int3"], 2, "--dtype is 'int3'"),
        (["plan", "x", "--layout", "both"], 2, "--layout is 'both'"),
        (["plan", "x", "--max-model-len", "0"], 2, "--max-model-len is 0"),
        (["plan", "x", "--kv-cache-memory-bytes", "4Q"], 2, "'4Q'"),
        (["plan", "x", "--gpu-memory-utilization", "1.5"], 2, "--gpu-memory-utilization is 1.5"),
        (["plan", "x", "--kv-cache-dtype", "fp8"], 2, "--kv-cache-dtype is 'fp8'"),
        (["plan"], 2, "nothing to plan"),
        (["plan", "x", "--layers", "y"], 2, "both"),
        (["plan", "--layers", "y", "--block-size", "32"], 2, "--block-size does not go with --layers"),
        (["plan", "--layers", "/no/such.json"], 1, "/no/such.json"),
        (["generate", "x", "--prompt", "x", "--temperature", "-1"], 2, "temperature is -1"),
        (["generate", "x", "--prompt", "x", "--max-tokens", "0"], 2, "max_tokens is 0"),
        (["generate", "x", "--prompt", "x", "--prompt-file", "y"], 2, "both"),
        (["generate", "x", "--prompt-file", "/no/such.txt"], 2, "/no/such.txt"),
        (["generate", "x", "--prompt", " "], 2, "a prompt is empty"),
        (["generate", "x"], 2, "a prompt is empty"),  # standard input is
        (["generate", "x", "--prompt", "x", "--max-num-batched-tokens", "3"], 2, "less than --max-num-seqs"),
        (["serve", "x", "--max-num-seqs", "0"], 2, "--max-num-seqs is 0"),
    ],
)
def test_an_error_is_one_line(args: list[str], status: int, says: str) -> None:
    done = cli(*args)
    assert done.exit_code == status and done.stdout == ""
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1 and says in done.stderr


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["serve"], "MODEL"),
        (["serv"], "serve"),
        (["serve", "x", "--prt", "3"], "--port"),
        (["serve", "x", "--port", "http"], "--port"),
        (["serve", "x", "--log-level", "loud"], "loud"),
        (["serve", "x", "--log-level"], "--log-level"),
    ],
)
def test_a_line_that_cannot_be_understood(args: list[str], says: str) -> None:
    done = cli(*args)
    assert done.exit_code == 2 and done.stdout == ""
    assert says in done.stderr and "Traceback" not in done.stderr


def test_an_error_of_the_engine_is_a_message_and_another_exception_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def engine(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(thread, "EngineThread", engine)
    done = cli("generate", "x", "--prompt", "x")
    assert isinstance(done.exception, ZeroDivisionError) and "error:" not in done.stderr


def test_every_setting_arrives(asked: list[Settings]) -> None:
    values = {
        "dtype": "bfloat16", "max_model_len": 77, "max_num_seqs": 5, "max_num_batched_tokens": 99,
        "gpu_memory_utilization": 0.5, "kv_cache_memory_bytes": 3 << 20, "block_size": 32, "layout": "unified",
        "enable_prefix_caching": True, "kv_cache_dtype": "auto", "seed": 11, "trust_remote_code": True,
    }  # fmt: skip
    line = ["generate", "some/model", "--prompt", "x"]
    for name, value in values.items():
        flag = "--" + name.replace("_", "-")
        line += [flag] if value is True else [flag, "3M" if name == "kv_cache_memory_bytes" else str(value)]
    done = cli(*line)
    assert asked == [Settings(model="some/model", **values)]  # type: ignore[arg-type]
    assert done.stderr.count("--trust-remote-code") == 1 and "never runs remote code" in done.stderr
    assert cli("generate", "some/model", "--prompt", "x").exit_code == 1 and asked[1] == Settings(model="some/model")


def test_options_of_a_plugin_are_shown_taken_and_given_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: list[Settings]
) -> None:
    options = """
    parser.add("probe-depth", type=int, default=3, help="How deep.")
    parser.add("probe-path", help="Where.")
    parser.add("probe-loud", type=bool, default=True, help="Whether.")
"""
    install(tmp_path, monkeypatch, "probe", PLUGIN.format(options=options))
    for command in ("serve", "generate"):
        help_text = cli(command, "--help").stdout
        assert "--probe-depth" in help_text and "--no-probe-loud" in help_text and "default: 3" in help_text
    assert "--probe-depth" not in cli("plan", "--help").stdout
    cli("generate", "x", "--prompt", "x")
    cli("generate", "--probe-depth", "9", "x", "--no-probe-loud", "--prompt", "x", "--probe-path=here")
    assert [dict(settings.options) for settings in asked] == [
        {"probe-depth": 3, "probe-path": None, "probe-loud": True},
        {"probe-depth": 9, "probe-path": "here", "probe-loud": False},
    ]
    wrong = cli("generate", "x", "--prompt", "x", "--probe-depth", "deep")
    assert wrong.exit_code == 2 and "--probe-depth" in wrong.stderr


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ('"port", help="Mine."', "`plait serve` has --port already"),
        ('"enable-prefix-caching", type=bool, help="Mine."', "has --enable-prefix-caching already"),
        ('"help", help="Mine."', "has --help already"),
        ('"Two Words", help="Mine."', "'Two Words'"),
    ],
)
def test_an_option_of_a_plugin_that_cannot_be(
    option: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch, "clash", PLUGIN.format(options=f"parser.add({option})"))
    done = cli("serve", "x")
    assert done.exit_code == 1 and done.stderr.startswith("error: a plugin adds option") and says in done.stderr


def test_a_broken_plugin_is_logged_and_strict_makes_it_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: list[Settings]
) -> None:
    install(tmp_path, monkeypatch, "torn", "raise RuntimeError('torn apart')")
    done = cli("generate", "x", "--prompt", "x", "--log-json")
    assert len(asked) == 1 and '"event": "plugin set aside"' in done.stderr and "torn apart" in done.stderr
    assert "torn apart" not in cli("generate", "x", "--prompt", "x", "--log-level", "error").stderr
    strict = cli("generate", "x", "--prompt", "x", "--strict-plugins")
    assert strict.exit_code == 1 and len(asked) == 2
    assert strict.stderr.startswith("error: ") and "torn (plait-torn 3.2.1)" in strict.stderr


def test_an_error_of_the_real_command_is_one_line() -> None:
    line = [sys.executable, "-m", "plait.cli", "plan", "x", "--dtype", "int3"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr == "error: --dtype is 'int3'; choose one of auto, float32, bfloat16, float16.\n"


def test_plan_shows_plugins_the_defaults_of_their_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = """
from plait.errors import PlanError
from plait.hooks import hookimpl

@hookimpl
def plait_add_options(parser):
    parser.add("door-word", default="open", help="The word.")

@hookimpl
def plait_configure(config):
    raise PlanError("the word is " + config.options["door-word"])
"""
    install(tmp_path, monkeypatch, "door", text)
    assert cli("plan", "x").stderr == "error: the word is open\n"


def test_typer_is_asked_through_its_public_names_only() -> None:
    """What `plait.cli` imports of typer: its internals change from release to release."""
    folder = Path(plait.__file__).parent / "cli"
    used = {line for path in folder.glob("*.py") for line in path.read_text().splitlines() if "typer" in line}
    imports = {line.strip() for line in used if line.strip().startswith(("import", "from"))}
    assert imports == {"import typer", "from typer.core import TyperGroup", "from typer.main import get_command"}
