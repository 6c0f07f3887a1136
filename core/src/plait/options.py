"""Options that plugins add to the commands that run an engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from plait.errors import FamilyContractError, PlanError


@attrs.frozen
class Option:
    """One option: `--name VALUE`, or a flag `--name` when its type is bool."""

    name: str
    type: type
    default: object
    help: str


@attrs.define
class Options:
    """What `plait_add_options` fills; the command line and `LLM(options=...)` read it."""

    entries: dict[str, Option] = attrs.field(factory=dict)

    def add(self, name: str, *, type: type = str, default: object = None, help: str) -> None:
        """Add an option.

        Args:
            name: lower case, words joined by "-", best begun with the plugin's name.
            type: str, int, float or bool.
            default: the value when the user says nothing.
            help: one line for `--help`.

        Raises:
            FamilyContractError: the name is taken, or the type is another.
        """
        if name in self.entries:
            raise FamilyContractError(f"option --{name} is added twice; rename one, best by its plugin's name.")
        if type not in (str, int, float, bool):
            raise FamilyContractError(f"option --{name} has type {type!r}; wanted str, int, float or bool.")
        self.entries[name] = Option(name, type, default, help)

    def values(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the value of every option, by name: as given, or its default. Raises `PlanError` for unknown names."""
        unknown = sorted(given.keys() - self.entries.keys())
        if unknown:
            raise PlanError(
                f"options {', '.join(unknown)}: no installed plugin has them; there are "
                f"{', '.join(self.entries) or 'none'}."
            )
        return {name: given.get(name, option.default) for name, option in self.entries.items()}
