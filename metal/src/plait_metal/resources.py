"""The texts that ship inside the package."""

from __future__ import annotations

import functools
from importlib import resources


@functools.cache
def read_text(*path: str) -> str:
    """The text of a packaged file, e.g. `read_text("kernels", "zero_pages.metal")`."""
    return resources.files("plait_metal").joinpath(*path).read_text(encoding="utf-8")
