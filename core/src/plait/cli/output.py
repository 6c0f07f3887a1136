"""What commands print: results on stdout, everything else on stderr."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from typing import Any

import typer
from rich.console import Console
from rich.text import Text

from plait.errors import PlaitError

FAILED = 1
USAGE = 2
INTERRUPTED = 130


def print_error(error: PlaitError) -> None:
    """Print an error as one message, which no terminal's width breaks."""
    note("error", str(error), style="bold red")


def note(label: str, text: str, style: str = "bold") -> None:
    """Print one line to stderr."""
    Console(stderr=True).print(Text.assemble((f"{label}: ", style), text), soft_wrap=True)


def print_json(value: Any) -> None:
    """Print a value to stdout as JSON."""
    print(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))


def print_rows(rows: Sequence[Sequence[str]]) -> None:
    """Print rows of equal length to stdout in columns, as wide as they need: what is cut cannot be copied."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


@contextlib.contextmanager
def usage() -> Iterator[None]:
    """Turn an error about values that the user typed into exit status 2."""
    try:
        yield
    except PlaitError as error:
        print_error(error)
        raise typer.Exit(USAGE) from error
