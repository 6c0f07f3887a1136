"""Where one site lives."""

from __future__ import annotations

import attrs

from plait.spec import CacheSpec


@attrs.frozen
class Binding:
    """All that kernels and views need in order to find a site's memory.

    Attributes:
        site: name of the site.
        spec: what the site keeps.
        arena: index into `Plan.arenas`.
        table: index into `Plan.tables`.
        offset: bytes from the start of the page (growth token) or of the sequence's run (growth state) to the site's
            part; a multiple of 4.
        nbytes: bytes of the part: one block of rows (growth token), or all tensors with their roundings (state).
        tensor_offsets: bytes from `offset` to each tensor of `spec.tensors`, in order.
    """

    site: str
    spec: CacheSpec
    arena: int
    table: int
    offset: int
    nbytes: int
    tensor_offsets: tuple[int, ...]

    @property
    def end(self) -> int:
        """Bytes from the start of the page or run to the end of the part."""
        return self.offset + self.nbytes
