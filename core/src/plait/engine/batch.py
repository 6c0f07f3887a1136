"""Turns scheduled rows into the arrays of a step. Plain NumPy: this runs between any two forwards."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import mlx.core as mx
import numpy as np
import numpy.typing as npt

from plait.plan import Plan
from plait.scheduler.scheduler import Row, Schedule
from plait.spec import Growth
from plait.step import Chunk, DecodeGroup, Step

Ints = npt.NDArray[np.int32]
SPREAD = 16  # kernel blocks by which contexts may differ before rows are read in groups of their own


@attrs.frozen
class Batch:
    """A step's arrays, and where its results go.

    Attributes:
        rows: in the order of the step: decode rows by context, then chunks.
        sampling: the rows whose last token's logits are wanted, in the order of the logits.
        tokens: the packed batch, int32 [tokens].
        step: what the families see.
        blocks: per table, the kernel block that each token is written to, int32 [tokens]; None for states.
        slots: its place in there, int32 [tokens].
    """

    rows: Sequence[Row]
    sampling: Sequence[Row]
    tokens: mx.array
    step: Step
    blocks: Sequence[mx.array | None]
    slots: mx.array


class BatchBuilder:
    """Builds batches for one plan."""

    def __init__(self, plan: Plan) -> None:
        self._block = plan.block_size
        self._kernel_block = plan.kernel_block
        self._per_page = plan.block_size // plan.kernel_block
        self._token_tables = [i for i, t in enumerate(plan.tables) if t.growth is Growth.TOKEN and t.sites]
        self._state_tables = [i for i, t in enumerate(plan.tables) if t.growth is Growth.STATE and t.sites]
        self._tables = len(plan.tables)

    def build(self, schedule: Schedule) -> Batch:
        """Return the batch of a schedule that has rows."""
        decode = sorted(schedule.rows[: schedule.decode], key=lambda row: row.start)
        rows = [*decode, *schedule.rows[schedule.decode :]]
        tokens: list[int] = []
        ends: list[int] = []
        for row in rows:
            tokens.extend(row.request.token_ids(row.start, row.stop))
            ends.append(len(tokens))
        positions = np.concatenate([np.arange(row.start, row.stop, dtype=np.int32) for row in rows])
        sampling = [index for index, row in enumerate(rows) if row.samples]
        step = Step(
            decode=len(decode),
            tokens=len(tokens),
            rows=len(rows),
            positions=mx.array(positions),
            logit_tokens=mx.array([ends[index] - 1 for index in sampling], dtype=mx.int32),
            groups=tuple(self._group(decode, start, stop) for start, stop in self._spans(decode)),
            chunks=tuple(self._chunk(index, rows[index], ends) for index in range(len(decode), len(rows))),
            run_tables=self._run_tables(rows),
        )
        blocks, slots = self._targets(rows, positions)
        ids = mx.array(np.array(tokens, dtype=np.int32))
        return Batch(rows, [rows[index] for index in sampling], ids, step, blocks, slots)

    def _kernel_blocks(self, row: Row, table: int, count: int) -> Ints:
        """Return the first `count` kernel blocks of a row's table."""
        pages = np.array(row.tables[table][: -(-count // self._per_page)], dtype=np.int32)
        if self._per_page == 1:
            return pages
        within = np.arange(self._per_page, dtype=np.int32)
        blocks: Ints = np.add.outer(pages * np.int32(self._per_page), within)
        return blocks.reshape(-1)[:count]

    def _spans(self, decode: Sequence[Row]) -> list[tuple[int, int]]:
        """Cut the decode rows, which are sorted by context, where reading them together would read much padding."""
        spans = []
        start = 0
        for index, row in enumerate(decode):
            first, here = self._count(decode[start]), self._count(row)
            if here > 2 * first and here - first > SPREAD:
                spans.append((start, index))
                start = index
        if decode:
            spans.append((start, len(decode)))
        return spans

    def _count(self, row: Row) -> int:
        """Return the kernel blocks that hold a row's context."""
        return -(-row.start // self._kernel_block)

    def _group(self, decode: Sequence[Row], start: int, stop: int) -> DecodeGroup:
        rows = decode[start:stop]
        width = max(map(self._count, rows))
        blocks: list[mx.array | None] = [None] * self._tables
        for table in self._token_tables:
            ids = np.zeros((len(rows), width), dtype=np.int32)
            for index, row in enumerate(rows):
                count = self._count(row)
                ids[index, :count] = self._kernel_blocks(row, table, count)
            blocks[table] = mx.array(ids)
        context = np.array([row.start for row in rows])
        empty = np.arange(width * self._kernel_block)[None] >= context[:, None]
        bias = np.where(empty, np.float32(-np.inf), np.float32(0))
        return DecodeGroup(start, stop, tuple(blocks), mx.array(bias))

    def _chunk(self, index: int, row: Row, ends: Sequence[int]) -> Chunk:
        blocks: list[mx.array | None] = [None] * self._tables
        for table in self._token_tables:
            blocks[table] = mx.array(self._kernel_blocks(row, table, self._count(row)))
        return Chunk(index, ends[index] - (row.stop - row.start), ends[index], row.start, tuple(blocks))

    def _run_tables(self, rows: Sequence[Row]) -> tuple[mx.array | None, ...]:
        tables: list[mx.array | None] = [None] * self._tables
        for table in self._state_tables:
            tables[table] = mx.array(np.array([row.tables[table] for row in rows], dtype=np.int32))
        return tuple(tables)

    def _targets(self, rows: Sequence[Row], positions: Ints) -> tuple[list[mx.array | None], mx.array]:
        """Return where each token's rows are written: kernel blocks per table, and slots."""
        places = positions // self._kernel_block
        blocks: list[mx.array | None] = [None] * self._tables
        for table in self._token_tables:
            targets = np.empty_like(positions)
            done = 0
            for row in rows:
                count = row.stop - row.start
                if count == 1:
                    place = int(places[done])
                    page = row.tables[table][place // self._per_page]
                    targets[done] = page * self._per_page + place % self._per_page
                else:
                    known = self._kernel_blocks(row, table, -(-row.stop // self._kernel_block))
                    targets[done : done + count] = known[places[done : done + count]]
                done += count
            blocks[table] = mx.array(targets)
        return blocks, mx.array(positions % self._kernel_block)
