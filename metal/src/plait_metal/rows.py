"""The kernels that write an arena in place, as records.

Each writes through its input `arena` and returns a fence. Its reference returns the fence and the new arena: outputs
first, then the new contents of `Kernel.writes`. Geometry comes in the int32 array `window`, so that sites which differ
only in their offsets share one compiled kernel:

    write_tokens  [page, offset, block, outer, inner, rows * outer, pages in the arena], in units of T
    write_runs    [page, offset, units per row, rows, pages in the arena, width of the tables], in units of T
    zero_pages    [words per page, pages to zero, pages in the arena]
    copy_pages    [words per page, pages to copy, pages in the arena]

A window's page may be a part of the arena's own (a kernel block), as long as a whole number of them fills it.

`after` is one byte that no kernel reads; see `plait_metal.fence`.
"""

from __future__ import annotations

from plait.kernel import Kernel
from plait_metal import references
from plait_metal.resources import read_text

THREADS = 256
"""Threads of a threadgroup; the texts rely on it."""

PIECES = THREADS // 32
"""Row pieces that one threadgroup of `write_tokens` moves."""

CHUNK = 8 * THREADS
"""Units that one threadgroup of the other kernels moves."""

WRITE_TOKENS = Kernel(
    name="plait_write_tokens",
    inputs=("arena", "rows", "pages", "slots", "window", "after"),
    outputs=("fence",),
    source=read_text("kernels", "write_tokens.metal"),
    reference=references.write_tokens,
    writes=("arena",),
)

WRITE_RUNS = Kernel(
    name="plait_write_runs",
    inputs=("arena", "rows", "tables", "window", "after"),
    outputs=("fence",),
    source=read_text("kernels", "write_runs.metal"),
    reference=references.write_runs,
    writes=("arena",),
)

ZERO_PAGES = Kernel(
    name="plait_zero_pages",
    inputs=("arena", "pages", "window", "after"),
    outputs=("fence",),
    source=read_text("kernels", "zero_pages.metal"),
    reference=references.zero_pages,
    writes=("arena",),
)

COPY_PAGES = Kernel(
    name="plait_copy_pages",
    inputs=("arena", "sources", "targets", "window", "after"),
    outputs=("fence",),
    source=read_text("kernels", "copy_pages.metal"),
    reference=references.copy_pages,
    writes=("arena",),
)

ROW_KERNELS = (WRITE_TOKENS, WRITE_RUNS, ZERO_PAGES, COPY_PAGES)
