"""What a layout decides before the number of pages is known."""

from __future__ import annotations

import attrs

from plait.plan.binding import Binding
from plait.plan.table import TablePlan
from plait.spec import CacheSpec, Growth


@attrs.frozen
class Geometry:
    """Pages, tables and bindings of a model under one layout.

    Attributes:
        block_size: tokens that one page holds, and the spacing of checkpoints.
        kernel_block: tokens that kernels read together; divides `block_size`.
        page_bytes: bytes of one page of one arena.
        num_arenas: arenas; a page id takes `page_bytes` in each of them.
        tables: the tables of every request.
        bindings: one per site, in the order of the sites.
        notes: what a user should know about it.
    """

    block_size: int
    kernel_block: int
    page_bytes: int
    num_arenas: int
    tables: tuple[TablePlan, ...]
    bindings: tuple[Binding, ...]
    notes: tuple[str, ...] = ()


def round_up(value: int, unit: int) -> int:
    """The least multiple of `unit` that is not under `value`."""
    return -(-value // unit) * unit


def lay_tensors(spec: CacheSpec, unit: int) -> tuple[tuple[int, ...], int]:
    """Lay a spec's tensors end to end, each rounded up to `unit` bytes.

    Returns:
        The offset of each tensor, and the bytes of all, both multiples of `unit`.
    """
    offsets = []
    end = 0
    for tensor in spec.tensors:
        offsets.append(end)
        end += round_up(tensor.nbytes, unit)
    return tuple(offsets), end


def lay_part(spec: CacheSpec, block: int, unit: int) -> tuple[tuple[int, ...], int]:
    """Lay a site's part: `block` rows of its one tensor (growth token), or its tensors by `unit` (growth state).

    Returns:
        The offset of each tensor in the part, and the bytes of the part.
    """
    if spec.growth is Growth.TOKEN:
        return (0,), block * spec.nbytes
    return lay_tensors(spec, unit)
