"""Typed windows on arenas: all that a family sees of memory."""

from __future__ import annotations

import math
from collections.abc import Sequence

import mlx.core as mx

from plait.kernel import RunWindow, TokenWindow
from plait.plan import Binding
from plait.spec import Growth
from plait.step import StateWrite, Step, TokenWrite

DTYPES = {
    "float32": mx.float32,
    "float16": mx.float16,
    "bfloat16": mx.bfloat16,
    "uint32": mx.uint32,
    "int32": mx.int32,
    "uint8": mx.uint8,
}
WORD = 4  # bytes of a word of the arena


class TokenView:
    """A token site's window: [.., n] kernel blocks in, [.., n, *page shape] out.

    Attributes:
        table: index of the site's table in the plan.
        block: tokens of one kernel block.
        page_shape: the spec's shape with the block's axis inserted.
        dtype: of the rows.
    """

    def __init__(self, binding: Binding, arena: mx.array, kernel_block: int, blocks_per_page: int) -> None:
        spec = binding.spec.tensors[0]
        self.table = binding.table
        self.block = kernel_block
        self.dtype = DTYPES[spec.dtype]
        self.shape = spec.shape
        axis = spec.block_axis
        self.page_shape = (*spec.shape[:axis], kernel_block, *spec.shape[axis:])
        self.arena = arena.reshape(arena.shape[0] * blocks_per_page, -1)
        self.window = TokenWindow(
            page=self.arena.shape[1] * WORD // spec.itemsize,
            offset=binding.offset // spec.itemsize,
            block=kernel_block,
            outer=math.prod(spec.shape[:axis]),
            inner=math.prod(spec.shape[axis:]),
            unit=spec.itemsize,
        )
        first = binding.offset // WORD
        # A lazy slice is cheap to make, but one per layer and step adds up.
        self._part = self.arena[:, first : first + kernel_block * spec.nbytes // WORD]

    def gather(self, tables: Sequence[mx.array | None]) -> mx.array:
        """Return the kernel blocks that a step's decode group or chunk lists for this site, [.., n, *page_shape].

        Args:
            tables: `DecodeGroup.blocks` or `Chunk.blocks`: per table of the plan, ids int32 [.., n].
        """
        blocks = tables[self.table]
        assert blocks is not None
        return self._part[blocks].view(self.dtype).reshape(*blocks.shape, *self.page_shape)

    def write(self, step: Step, rows: mx.array) -> None:
        """Add `rows` [tokens, *shape], one for each token of the step; they are in pages after the step."""
        assert rows.shape == (step.tokens, *self.shape), (rows.shape, self.shape)
        step.token_writes.append(TokenWrite(self, rows if rows.dtype == self.dtype else rows.astype(self.dtype)))


class StateView:
    """A state site's window on the runs of a step's rows.

    Attributes:
        shapes: shape of each tensor, per sequence.
        dtypes: dtype of each tensor.
    """

    def __init__(self, binding: Binding, arena: mx.array) -> None:
        self.table = binding.table
        self.arena_index = binding.arena
        self.arena = arena
        self.shapes = tuple(t.shape for t in binding.spec.tensors)
        self.dtypes = tuple(DTYPES[t.dtype] for t in binding.spec.tensors)
        self.windows = tuple(
            RunWindow(page=arena.shape[1], offset=(binding.offset + offset) // WORD, words=-(-t.nbytes // WORD))
            for t, offset in zip(binding.spec.tensors, binding.tensor_offsets, strict=True)
        )

    def read(self, step: Step) -> tuple[mx.array, ...]:
        """Return the states of all rows of the step, each [rows, *shape]; zeros for a sequence that just began."""
        runs = step.runs(self.arena_index, self.arena, self.table)
        tensors = []
        for window, shape, dtype in zip(self.windows, self.shapes, self.dtypes, strict=True):
            words = runs[:, window.offset : window.offset + window.words]
            flat = words if dtype == mx.uint32 else words.view(dtype)
            tensors.append(flat[:, : math.prod(shape)].reshape(step.rows, *shape))
        return tuple(tensors)

    def write(self, step: Step, first_row: int, tensors: Sequence[mx.array]) -> None:
        """Give the new states, each [n, *shape], of the n rows from `first_row` on; in pages after the step."""
        cast = []
        for tensor, shape, dtype in zip(tensors, self.shapes, self.dtypes, strict=True):
            assert tensor.shape[1:] == shape, (tensor.shape, shape)
            cast.append(tensor if tensor.dtype == dtype else tensor.astype(dtype))
        step.state_writes.append(StateWrite(self, first_row, cast))


View = TokenView | StateView


def make_view(binding: Binding, arenas: Sequence[mx.array], kernel_block: int, blocks_per_page: int) -> View:
    """Return the view of one binding."""
    arena = arenas[binding.arena]
    if binding.spec.growth is Growth.TOKEN:
        return TokenView(binding, arena, kernel_block, blocks_per_page)
    return StateView(binding, arena)
