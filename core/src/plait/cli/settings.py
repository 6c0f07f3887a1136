"""Settings of an engine, from what was typed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plait.cli.output import note, usage
from plait.plan import parse_bytes
from plait.settings import Settings


def engine_settings(model: str, values: Mapping[str, Any], options: Mapping[str, Any]) -> Settings:
    """Return the settings; a value that makes no sense ends the command with status 2.

    Args:
        model: as typed.
        values: of the fields of `Settings` that the command has options for.
        options: values of the options that plugins added.
    """
    fields = dict(values)
    with usage():
        if fields["kv_cache_memory_bytes"] is not None:
            fields["kv_cache_memory_bytes"] = parse_bytes(fields["kv_cache_memory_bytes"])
        return Settings(model=model, options=options, **fields)


def note_remote_code(settings: Settings) -> None:
    """Answer --trust-remote-code."""
    if settings.trust_remote_code:
        note("note", "--trust-remote-code is taken, and changes nothing: Plait never runs remote code")
