"""Who owns which page."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable


class PageAllocator:
    """Hands out page ids 1 .. num_pages - 1; page 0 is the null page and belongs to nobody.

    A page has one owner at a time. Freed pages go to the end of the line, so that a page rests as long as it can
    before it is used again.
    """

    def __init__(self, num_pages: int) -> None:
        assert num_pages >= 2, num_pages
        self.num_pages = num_pages
        self._free = deque(range(1, num_pages))
        self._held = bytearray(num_pages)

    @property
    def free_pages(self) -> int:
        """Pages that nobody holds."""
        return len(self._free)

    @property
    def held_pages(self) -> int:
        """Pages that somebody holds."""
        return self.num_pages - 1 - len(self._free)

    def allocate(self, count: int) -> list[int]:
        """Return `count` pages; the caller has seen to it that they are there. Their contents are undefined."""
        assert count <= len(self._free), (count, len(self._free))
        pages = [self._free.popleft() for _ in range(count)]
        for page in pages:
            assert not self._held[page], f"page {page} is owned twice"
            self._held[page] = 1
        return pages

    def free(self, pages: Iterable[int]) -> None:
        """Take pages back."""
        for page in pages:
            assert self._held[page], f"page {page} is freed, but nobody holds it"
            self._held[page] = 0
            self._free.append(page)

    def check_integrity(self) -> None:
        """Assert that every page is either free, once, or held."""
        assert len(set(self._free)) == len(self._free)
        assert not any(self._held[page] for page in self._free)
        assert sum(self._held) + len(self._free) == self.num_pages - 1
        assert not self._held[0]
