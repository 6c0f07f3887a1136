"""Options that plugins add, as options of a command."""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection
from typing import Any

from plait.cli.parameters import option
from plait.errors import PluginError
from plait.options import Option, Options

_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


def plugin_parameters(options: Options, command: str, flags: Collection[str]) -> dict[str, inspect.Parameter]:
    """Return the options of plugins by name, each as a parameter for typer.

    Args:
        options: what plugins added.
        command: the command that gets them, for errors.
        flags: the command's own, as in "--port".

    Raises:
        PluginError: a name that is no flag, or a flag that is taken.
    """
    taken = set(flags)
    parameters = {}
    for entry in options.entries.values():
        wanted = _flags(entry)
        if clash := [flag for flag in wanted if flag in taken]:
            raise PluginError(
                f"a plugin adds option --{entry.name} ({entry.help!r}), but `plait {command}` has {clash[0]} already. "
                "The plugin must rename its option, best by beginning it with its own name; until then leave it out "
                "with PLAIT_PLUGINS."
            )
        taken.update(wanted)
        parameters[entry.name] = _parameter(entry, wanted)
    return parameters


def _flags(entry: Option) -> tuple[str, ...]:
    if not _NAME.fullmatch(entry.name):
        raise PluginError(
            f"a plugin adds option {entry.name!r} ({entry.help!r}), which is no name for an option: wanted are "
            'lower-case words joined by "-". Leave the plugin out with PLAIT_PLUGINS.'
        )
    return (f"--{entry.name}", f"--no-{entry.name}") if entry.type is bool else (f"--{entry.name}",)


def _parameter(entry: Option, flags: tuple[str, ...]) -> inspect.Parameter:
    kind: Any = entry.type if entry.default is not None else entry.type | None
    name = "plugin_" + entry.name.replace("-", "_")
    return option(name, kind, entry.default, f"{entry.help} (of a plugin)", "/".join(flags))
