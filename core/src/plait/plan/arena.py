"""One array of pages."""

from __future__ import annotations

import attrs


@attrs.frozen
class ArenaPlan:
    """An array of unsigned 32-bit words that holds pages.

    Attributes:
        num_pages: pages, the null page 0 among them; the same for every arena of a plan.
        page_bytes: bytes of one page, a multiple of 4.
    """

    num_pages: int
    page_bytes: int

    @property
    def nbytes(self) -> int:
        """Bytes of the whole arena."""
        return self.num_pages * self.page_bytes
