"""`plait doctor` and `plait families`: what is broken is found, named, and the exit status."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import structlog
from typer.testing import CliRunner

import plait
from plait import blas, selfcheck
from plait.cli import checkup
from plait.cli.app import build_app
from plait.kernel import Kernel
from plait.plugins import PluginInfo, Plugins

import mlx.core as mx  # isort: skip


GOOD = selfcheck.MatmulCheck((1, 512, 257), "float32", 1e-7, 1e-5, True)
BAD = selfcheck.MatmulCheck((129, 500, 257), "bfloat16", float("nan"), 0.0078125, False)


@pytest.fixture(autouse=True)
def core_alone(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Core's own plugins only, nothing that takes long, and the logs as they were."""
    monkeypatch.setenv("PLAIT_PLUGINS", "")
    monkeypatch.setattr(checkup, "matmul_self_check", lambda: [GOOD])
    monkeypatch.setattr(blas, "measure_gflops", lambda: 123.4)
    yield
    structlog.reset_defaults()


def cli(*args: str) -> Any:
    return CliRunner().invoke(build_app(), list(args))


def broken_plugin(folder: Path, monkeypatch: pytest.MonkeyPatch, group: str = "plait.v1") -> None:
    """Install a plugin that cannot be imported."""
    (folder / "plait_wreck_for_test.py").write_text("raise RuntimeError('washed up')")
    info = folder / "plait_wreck-0.4.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plait-wreck\nVersion: 0.4\n")
    (info / "entry_points.txt").write_text(f"[{group}]\nwreck = plait_wreck_for_test\n")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PLAIT_PLUGINS", "wreck")


def test_a_sound_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkup, "matmul_self_check", selfcheck.matmul_self_check)
    done = cli("doctor")
    assert done.exit_code == 0, done.stdout
    assert done.stdout.endswith("nothing is broken\n") and done.stderr == ""
    for part in (f"plait         {plait.__version__}", "mlx-lm", "numpy", "attention (plait", "bfloat16"):
        assert part in done.stdout
    if mx.default_device() == mx.cpu:
        assert "123 GFLOP/s" in done.stdout and "references in MLX run" in done.stdout


def test_a_sound_machine_in_json() -> None:
    done = cli("doctor", "--json")
    found = json.loads(done.stdout)
    assert done.exit_code == 0 and found["problems"] == [] and found["set_aside"] == []
    assert {"python", "platform", "plait", "mlx", "mlx-lm", "transformers", "numpy"} == set(found["versions"])
    assert [check["ok"] for check in found["checks"]] == [True]
    assert found["device"]["device"] == str(mx.default_device()) and found["loaded"][0].startswith("attention (plait ")


def test_a_wrong_product_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkup, "matmul_self_check", lambda: [GOOD, BAD])
    done = cli("doctor")
    assert done.exit_code == 1 and "nothing is broken" not in done.stdout and "WRONG" in done.stdout
    assert "broken: matmul of [129, 500] by [500, 257] in bfloat16 is wrong" in done.stdout
    as_json = cli("doctor", "--json")
    found = json.loads(as_json.stdout)
    assert as_json.exit_code == 1 and found["checks"][1]["max_relative_error"] is None
    assert len(found["problems"]) == 1


@pytest.mark.parametrize(
    ("group", "says"), [("plait.v1", "washed up"), ("plait.v0", "written for hook API 'plait.v0'")]
)
def test_a_plugin_that_was_set_aside(group: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken_plugin(tmp_path, monkeypatch, group)
    done = cli("doctor")
    assert done.exit_code == 1 and done.stderr == ""
    assert "set aside" in done.stdout and "wreck (plait-wreck 0.4)" in done.stdout and says in done.stdout
    listed, as_json = cli("families"), json.loads(cli("families", "--json").stdout)
    assert listed.exit_code == 0 and "set aside: wreck (plait-wreck 0.4)\n" in listed.stdout and says in listed.stdout
    assert [(a["plugin"], a["version"]) for a in as_json["set_aside"]] == [("wreck", "0.4")]


def test_two_back_ends_of_mlx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("mlx_cpu", "mlx_cuda_13"):
        info = tmp_path / f"{name}-9.8.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: 9.8\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert {"mlx-cpu", "mlx-cuda-13"} <= set(checkup.installed_back_ends())
    monkeypatch.setattr(checkup, "installed_back_ends", lambda: {"mlx-cpu": "9.8", "mlx-cuda-13": "9.8"})
    done = cli("doctor")
    assert done.exit_code == 1
    assert "pip uninstall -y mlx-cpu && pip install --force-reinstall --no-deps mlx-cuda-13==9.8" in done.stdout


def test_the_back_ends_here_are_no_problem() -> None:
    assert checkup.back_end_problems(checkup.installed_back_ends()) == []
    assert checkup.back_end_problems({}) == []


def test_two_kernel_backends_are_broken_and_none_on_a_gpu_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from plait.errors import PluginError

    def two(_: Plugins) -> None:
        raise PluginError("two kernel backends: a and b")

    monkeypatch.setattr(Plugins, "kernel_backend", two)
    done = cli("doctor")
    assert done.exit_code == 1 and "broken: two kernel backends: a and b" in done.stdout
    monkeypatch.setattr(Plugins, "kernel_backend", lambda _: None)
    monkeypatch.setattr(mx, "default_device", lambda: mx.gpu)
    problems: list[str] = []
    assert "pip install ./metal" in checkup._kernels(Plugins(), problems) and problems == []


def test_headers_of_plugins_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Plugins, "report_header", lambda _, settings: [f"moon: full, model {settings.model}"])
    done = cli("doctor")
    assert done.exit_code == 0 and f"moon: full, model {checkup.NO_MODEL}" in done.stdout


def test_families_say_who_ships_them() -> None:
    done = cli("families")
    assert done.exit_code == 0
    head, row = done.stdout.splitlines()
    assert head.split() == ["family", "plugin", "distribution", "version", "kernels"]
    assert row.split() == ["attention", "attention", "plait", plait.__version__, "-"]
    found = json.loads(cli("families", "--json").stdout)
    assert found["set_aside"] == [] and found["families"][0]["distribution"] == "plait"


def test_families_name_their_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    class Family:
        name = "moon"
        kernels = (Kernel("moon_step", ("x",), ("y",), "", lambda x: [x]), Kernel("moon_chunk", (), (), "", list))

    monkeypatch.setattr(Plugins, "families", lambda _: {"moon": Family()})
    monkeypatch.setattr(Plugins, "owner", lambda _, name: PluginInfo(name, "plait-moon", "1.2"))
    assert cli("families").stdout.splitlines()[1].split(maxsplit=4)[4] == "moon_step, moon_chunk"
