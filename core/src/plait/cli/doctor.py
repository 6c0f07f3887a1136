"""`plait doctor`: is everything here as it should be?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import attrs
import typer

import plait  # noqa: F401  puts a BLAS under MLX before the checkup imports it
from plait import logs
from plait.cli.output import FAILED, print_json, print_rows

if TYPE_CHECKING:
    from plait.cli.checkup import Checkup
    from plait.selfcheck import MatmulCheck


def doctor(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Check versions, device, BLAS, kernels, plugins and matrix products.

    Exits with status 1 if something is broken.
    """
    logs.configure("error")  # what was set aside is printed here
    from plait.cli.checkup import examine

    found = examine()
    if as_json:
        print_json(_json(found))
    else:
        _print(found)
    if found.problems:
        raise typer.Exit(FAILED)


def _json(found: Checkup) -> dict[str, Any]:
    values = attrs.asdict(found)
    for check in values["checks"]:
        if not math.isfinite(check["max_relative_error"]):  # JSON has no such number
            check["max_relative_error"] = None
    return values


def _print(found: Checkup) -> None:
    print_rows(_facts(found))
    print()
    print_rows(_checks(found.checks))
    print()
    for problem in found.problems:
        print(f"broken: {problem}")
    if not found.problems:
        print("nothing is broken")


def _facts(found: Checkup) -> list[tuple[str, str]]:
    rows = list(found.versions.items())
    rows += [(name.replace("_", " "), _text(value)) for name, value in found.device.items()]
    rows.append(("MLX back end", ", ".join(found.back_ends) or "none found"))
    rows.append(("BLAS", found.blas))
    if found.gflops is not None:
        rows.append(("", f"{found.gflops:.0f} GFLOP/s measured, float32"))
    rows.append(("kernels", found.kernels))
    rows += [("plugin", info) for info in found.loaded]
    rows += [("set aside", f"{a['plugin']} ({a['distribution']} {a['version']})") for a in found.set_aside]
    rows += [("", line) for line in found.headers]
    return rows


def _checks(checks: Sequence[MatmulCheck]) -> list[tuple[str, ...]]:
    head = ("matmul (m, k, n)", "dtype", "error", "tolerance", "")
    return [
        head,
        *(
            (str(c.shape), c.dtype, f"{c.max_relative_error:.1e}", f"{c.tolerance:.1e}", "ok" if c.ok else "WRONG")
            for c in checks
        ),
    ]


def _text(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
