"""The arenas: one allocation at start-up that holds every page."""

from __future__ import annotations

import os
from collections.abc import Sequence

import mlx.core as mx

from plait.errors import CapacityError
from plait.kernel import RowWriter
from plait.memory.rows import NumpyRows
from plait.memory.view import WORD, View, make_view
from plait.plan import Plan
from plait.step import Step


class Arenas:
    """All pages of an engine, and the one who writes them."""

    def __init__(self, plan: Plan, writer: RowWriter | None = None) -> None:
        self.plan = plan
        self.writer = writer or NumpyRows()
        self.arrays = _allocate(plan)
        assert sum(a.nbytes for a in self.arrays) == plan.nbytes
        kernel_blocks = plan.block_size // plan.kernel_block
        self.views: dict[str, View] = {
            b.site: make_view(b, self.arrays, plan.kernel_block, kernel_blocks) for b in plan.bindings
        }

    @property
    def nbytes(self) -> int:
        """Bytes allocated."""
        return sum(a.nbytes for a in self.arrays)

    def zero(self, pages: Sequence[int]) -> None:
        """Clear pages before a new owner reads them."""
        if pages:
            ids = mx.array(list(pages), dtype=mx.int32)
            mx.eval(ids)
            mx.eval([self.writer.zero_pages(arena, ids, ()) for arena in self.arrays])

    def commit(self, step: Step, blocks: Sequence[mx.array | None], slots: mx.array) -> None:
        """Write what a step's sites have added. The step's outputs and writes have been evaluated.

        Args:
            step: after its forward.
            blocks: per table, the kernel block of each token of the step, int32 [tokens]; None for state tables.
            slots: the place of each token in its kernel block, int32 [tokens].
        """
        fences = []
        for added in step.token_writes:
            view = added.view
            block = blocks[view.table]
            assert block is not None
            fences.append(self.writer.write_tokens(view.arena, added.rows, block, slots, view.window, ()))
        owners: dict[tuple[int, int, int], mx.array] = {}
        for state in step.state_writes:
            table = step.run_tables[state.view.table]
            assert table is not None
            count = state.tensors[0].shape[0]
            key = (state.view.table, state.first_row, count)
            if key not in owners:
                owners[key] = table[state.first_row : state.first_row + count]
            for tensor, window in zip(state.tensors, state.view.windows, strict=True):
                fences.append(self.writer.write_runs(state.view.arena, tensor, owners[key], window, ()))
        # The next step's readers do not depend on these writes, so they end here.
        mx.eval(fences)


def _allocate(plan: Plan) -> list[mx.array]:
    """Return the arenas, zeroed. Raises `CapacityError` if this machine cannot hold them."""
    try:
        if mx.default_device() == mx.cpu:
            _check_memory(plan.nbytes)
        # Words, not floats: no bit pattern is changed by moving it.
        arrays = [mx.zeros((a.num_pages, a.page_bytes // WORD), dtype=mx.uint32) for a in plan.arenas]
        mx.eval(arrays)
    except (MemoryError, RuntimeError) as error:
        raise CapacityError(
            f"The {plan.nbytes:,} bytes of the page arena cannot be allocated ({error}). "
            "Lower --kv-cache-memory-bytes or --gpu-memory-utilization."
        ) from error
    return arrays


def _check_memory(nbytes: int) -> None:
    """Raise `MemoryError` for more bytes than the machine has: MLX's CPU build does not check, and crashes."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if nbytes > total:
        raise MemoryError(f"this machine has {total:,} bytes")
