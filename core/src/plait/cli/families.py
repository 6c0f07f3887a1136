"""`plait families`: who can keep what between tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from plait import logs
from plait.cli.output import print_json, print_rows

if TYPE_CHECKING:
    from plait.plugins import Plugins


def families(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """List state families, their plugins, and plugins set aside."""
    logs.configure("error")  # what was set aside is printed here
    from plait.plugins import Plugins

    plugins = Plugins()
    rows = _rows(plugins)
    if as_json:
        print_json({"families": rows, "set_aside": set_aside(plugins)})
        return
    head = ("family", "plugin", "distribution", "version", "kernels")
    lines = [(*(row[name] for name in head[:-1]), ", ".join(row["kernels"]) or "-") for row in rows]
    print_rows([head, *lines])
    for info in set_aside(plugins):
        print(f"\nset aside: {info['plugin']} ({info['distribution']} {info['version']})\n  {info['reason']}")


def set_aside(plugins: Plugins) -> list[dict[str, str | None]]:
    """Return the plugins that cannot be used, with the reasons."""
    return [
        {"plugin": info.name, "distribution": info.distribution, "version": info.version, "reason": info.reason}
        for info in plugins.set_aside
    ]


def _rows(plugins: Plugins) -> list[dict[str, Any]]:
    rows = []
    for name, family in plugins.families().items():
        owner = plugins.owner(name)
        rows.append(
            {
                "family": name,
                "plugin": owner.name,
                "distribution": owner.distribution,
                "version": owner.version,
                "kernels": [kernel.name for kernel in family.kernels],
            }
        )
    return rows
