"""Fills pages that nobody owns with values that show when somebody reads them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from plait.memory.allocator import PageAllocator
from plait.memory.arena import Arenas

NAN = 0x7FC07FC0
"""A word that is NaN as float32, and twice NaN as bfloat16."""

MILLION = 0x49742400
"""A word that is 1e6 as float32; as bfloat16, a million and a number near 0."""


class Poison:
    """Spoils an engine's pages: those freed, at once, with NaN; those free before a run, with NaN and 1e6 in turn."""

    def __init__(self, arenas: Arenas, allocator: PageAllocator) -> None:
        self._arenas = arenas
        self._allocator = allocator
        self._take_back = allocator.free
        allocator.free = self._free  # type: ignore[method-assign]

    def spoil_free_pages(self) -> None:
        """Spoil every page that nobody holds. The null page must stay finite, for short rows end in it."""
        free = list(self._allocator._free)
        self._fill(free[::2], NAN)
        self._fill(free[1::2], MILLION)
        self._fill([0], MILLION)

    def _free(self, pages: Iterable[int]) -> None:
        pages = list(pages)
        self._take_back(pages)
        self._fill(pages, NAN)

    def _fill(self, pages: list[int], word: int) -> None:
        for arena in self._arenas.arrays:
            np.array(arena, copy=False)[pages] = word
