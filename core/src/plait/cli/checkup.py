"""What `plait doctor` finds out about this machine, this environment and its plugins."""

from __future__ import annotations

import platform
import sys
from importlib import metadata
from typing import Any

import attrs
import mlx.core as mx

from plait import blas
from plait.cli.families import set_aside
from plait.errors import PlaitError
from plait.plugins import Plugins
from plait.selfcheck import MatmulCheck, matmul_self_check
from plait.settings import Settings

VERSIONS = ("plait", "mlx", "mlx-lm", "transformers", "numpy")
BACK_ENDS = ("mlx-cpu", "mlx-cuda", "mlx-metal")
"""Beginnings of the names of the distributions that bring MLX's own library; each owns the same file."""

NO_MODEL = "(no model)"


@attrs.frozen
class Checkup:
    """What was found.

    Attributes:
        versions: of Python, the platform and the packages that matter.
        device: the default one, and what MLX says of it, bytes of memory included.
        back_ends: distributions of MLX's library, with versions.
        blas: which BLAS MLX's CPU products use.
        gflops: its measured speed; None where no model would run on the CPU.
        kernels: who runs kernels.
        loaded: plugins in use.
        set_aside: plugins that cannot be used, with reasons.
        headers: lines of the plugins.
        checks: products that were compared with float64.
        problems: what is broken, each with what to do.
    """

    versions: dict[str, str]
    device: dict[str, Any]
    back_ends: list[str]
    blas: str
    gflops: float | None
    kernels: str
    loaded: list[str]
    set_aside: list[dict[str, str | None]]
    headers: list[str]
    checks: list[MatmulCheck]
    problems: list[str]


def examine() -> Checkup:
    """Look at everything. Raises `PlaitError` only if plugins cannot be looked for at all."""
    problems: list[str] = []
    back_ends = installed_back_ends()
    problems += back_end_problems(back_ends)
    plugins = Plugins()
    aside = set_aside(plugins)
    problems += [f"plugin {a['plugin']} of {a['distribution']} is set aside: {a['reason']}" for a in aside]
    checks = matmul_self_check()
    problems += [check_problem(check) for check in checks if not check.ok]
    kernels = _kernels(plugins, problems)
    headers = _headers(plugins, problems)
    return Checkup(
        versions=_versions(),
        device=_device(),
        back_ends=[f"{name} {version}" for name, version in back_ends.items()],
        blas=blas.status().describe().removeprefix("BLAS "),
        gflops=blas.measure_gflops() if mx.default_device() == mx.cpu else None,
        kernels=kernels,
        loaded=[str(info) for info in plugins.loaded],
        set_aside=aside,
        headers=headers,
        checks=checks,
        problems=problems,
    )


def installed_back_ends() -> dict[str, str]:
    """Return the distributions that bring MLX's library, by name, with their versions."""
    found = {}
    for distribution in metadata.distributions():
        name = (distribution.metadata["Name"] or "").lower().replace("_", "-")
        if name.startswith(BACK_ENDS):
            found[name] = distribution.version
    return dict(sorted(found.items()))


def back_end_problems(back_ends: dict[str, str]) -> list[str]:
    """Say what to do about several back ends in one environment, which overwrite each other's library."""
    if len(back_ends) < 2:
        return []
    names = list(back_ends)
    keep = next((name for name in names if name != "mlx-cpu"), names[0])
    others = [name for name in names if name != keep]
    return [
        f"{len(names)} back ends of MLX are installed ({', '.join(names)}), and each owns the same library file: the "
        f"one installed last works, and removing either breaks it. To use {keep}: pip uninstall -y {' '.join(others)} "
        f"&& pip install --force-reinstall --no-deps {keep}=={back_ends[keep]}"
    ]


def check_problem(check: MatmulCheck) -> str:
    """Say what a wrong product means."""
    m, k, n = check.shape
    return (
        f"matmul of [{m}, {k}] by [{k}, {n}] in {check.dtype} is wrong: relative error {check.max_relative_error:.2e}, "
        f"rounding explains {check.tolerance:.2e}. Models in {check.dtype} will talk nonsense here: choose another "
        "--dtype, or another release of MLX."
    )


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version(), "platform": f"{platform.platform()}, {sys.platform}"}
    for name in VERSIONS:
        versions[name] = metadata.version(name)
    return versions


def _device() -> dict[str, Any]:
    """Return the default device and what MLX says of it; only of a GPU does that include memory."""
    memory = "not reported by MLX on a CPU" if mx.default_device() == mx.cpu else "below, in bytes"
    return {"device": str(mx.default_device()), "memory": memory, **mx.device_info()}


def _kernels(plugins: Plugins, problems: list[str]) -> str:
    try:
        backend = plugins.kernel_backend()
    except PlaitError as error:
        problems.append(str(error))
        return "none that can be used"
    if backend is not None:
        return backend.name
    if mx.default_device() == mx.cpu:
        return "none on a CPU: references in MLX run"
    return (
        "none installed: references in MLX run, which is slow on a GPU; install plait-metal (from a clone: pip install "
        "./metal)"
    )


def _headers(plugins: Plugins, problems: list[str]) -> list[str]:
    try:
        return plugins.report_header(Settings(model=NO_MODEL, options=plugins.options().values({})))
    except PlaitError as error:
        problems.append(str(error))
        return []
