"""The arrays of a step, against ones that are put together token by token."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import plait  # noqa: F401  before MLX
from plait.engine.batch import SPREAD, Batch, BatchBuilder
from plait.plan import Plan, PlanRequest, SiteSpec, make_plan
from plait.scheduler.request import Request
from plait.scheduler.scheduler import Row, Schedule
from plait.spec import CacheSpec, Growth, Resume, TensorSpec

import mlx.core as mx  # isort: skip

KV = CacheSpec(Growth.TOKEN, (TensorSpec("kv", (2, 2, 8), "float32", block_axis=2),))
OTHER = CacheSpec(Growth.TOKEN, (TensorSpec("rows", (32,), "float32"),))
STATE = CacheSpec(Growth.STATE, (TensorSpec("s", (1536,), "float32"),), resume=Resume.CHECKPOINT)
GREAT = CacheSpec(Growth.STATE, (TensorSpec("s", (8900,), "float32"),), resume=Resume.CHECKPOINT)
MODELS = {
    "tokens": ("spanning", 16, [KV, KV]),
    "blocks of 32": ("spanning", 32, [KV, STATE]),
    "states": ("spanning", 16, [STATE, GREAT]),
    "both": ("spanning", 16, [STATE, KV, OTHER, GREAT]),
    "unified": ("unified", 16, [KV, OTHER, KV, OTHER]),
    "unified, kernel blocks": ("unified", 16, [GREAT, KV, STATE, OTHER, GREAT]),
    "unified, three to a page": ("unified", 48, [KV]),
    "unified states": ("unified", 16, [STATE, GREAT]),
}


def plan_of(model: str) -> Plan:
    layout, block, specs = MODELS[model]
    sites = [SiteSpec(f"layers.{index}.mixer", spec) for index, spec in enumerate(specs)]
    return make_plan(sites, PlanRequest(max_model_len=3000, max_num_seqs=8, layout=layout, block_size=block))


PLANS = {model: plan_of(model) for model in MODELS}


def row_of(plan: Plan, name: str, start: int, stop: int, total: int, dice: np.random.Generator) -> Row:
    """A row of a request of `total` known tokens, the last few of them generated, on pages in any order."""
    tokens = dice.integers(0, 5000, size=total).tolist()
    cut = max(1, total - int(dice.integers(0, 5)))
    tables = [dice.permutation(np.arange(1, plan.num_pages))[: table.pages_for(total)] for table in plan.tables]
    request = Request(name, tokens[:cut], 99, output=tokens[cut:], computed=start, tables=[t.tolist() for t in tables])
    return Row(request, start, stop, stop == total, request.tables)


def schedule_of(plan: Plan, decode: list[int], chunks: list[tuple[int, int, int]], seed: int) -> Schedule:
    """Decode rows by their contexts; chunks by context, size, and tokens left after them."""
    dice = np.random.default_rng(seed)
    rows = [row_of(plan, f"d{i}", context, context + 1, context + 1, dice) for i, context in enumerate(decode)]
    for index, (context, size, rest) in enumerate(chunks):
        rows.append(row_of(plan, f"c{index}", context, context + size, context + size + rest, dice))
    return Schedule(rows, len(decode), [], [], [])


def kernel_block(plan: Plan, row: Row, table: int, token: int) -> int:
    """The kernel block that a token lies in: a page is its kernel blocks one after another."""
    page = row.tables[table][token // plan.block_size]
    return page * (plan.block_size // plan.kernel_block) + token % plan.block_size // plan.kernel_block


def known(row: Row) -> list[int]:
    return [*row.request.prompt, *row.request.output]


def check(plan: Plan, schedule: Schedule, batch: Batch) -> None:
    step = batch.step
    check_rows(schedule, batch)
    check_tokens(plan, batch)
    for table, kind in enumerate(plan.tables):
        if kind.growth is Growth.STATE and kind.sites:
            assert step.run_tables[table].tolist() == [list(row.tables[table]) for row in batch.rows]
            assert step.run_tables[table].dtype == mx.int32
            assert batch.blocks[table] is None
            assert all(part.blocks[table] is None for part in (*step.groups, *step.chunks))
        else:
            assert step.run_tables[table] is None
        if kind.growth is Growth.TOKEN and kind.sites:
            check_reads(plan, batch, table)
    assert len(step.run_tables) == len(batch.blocks) == len(plan.tables)
    check_bias(plan, batch)
    assert step.token_writes == [] and step.state_writes == [] and step.produced() == []


def check_rows(schedule: Schedule, batch: Batch) -> None:
    """Decode rows first, sorted by context; chunks as they came; groups and chunks cover all rows and tokens once."""
    step = batch.step
    decode = schedule.decode
    assert step.decode == decode and step.rows == len(batch.rows) == len(schedule.rows)
    assert {id(row) for row in batch.rows[:decode]} == {id(row) for row in schedule.rows[:decode]}
    contexts = [row.start for row in batch.rows[:decode]]
    assert contexts == sorted(contexts)
    assert [id(row) for row in batch.rows[decode:]] == [id(row) for row in schedule.rows[decode:]]
    edges = [0, *(group.stop for group in step.groups)]
    assert [group.start for group in step.groups] == edges[:-1] and edges[-1] == decode
    assert [chunk.row for chunk in step.chunks] == list(range(decode, step.rows))
    place = decode
    for chunk in step.chunks:
        row = batch.rows[chunk.row]
        assert (chunk.start, chunk.stop, chunk.context) == (place, place + row.stop - row.start, row.start)
        place = chunk.stop
    assert place == step.tokens == schedule.tokens


def check_tokens(plan: Plan, batch: Batch) -> None:
    tokens, positions, logits, slots = [], [], [], []
    targets: list[list[int]] = [[] for _ in plan.tables]
    for row in batch.rows:
        for token in range(row.start, row.stop):
            tokens.append(known(row)[token])
            positions.append(token)
            slots.append(token % plan.block_size % plan.kernel_block)
            for table, kind in enumerate(plan.tables):
                if kind.growth is Growth.TOKEN and kind.sites:
                    targets[table].append(kernel_block(plan, row, table, token))
        if row.samples:
            logits.append(len(tokens) - 1)
    assert batch.tokens.tolist() == tokens and batch.tokens.dtype == mx.int32
    assert batch.step.positions.tolist() == positions and batch.step.positions.dtype == mx.int32
    assert batch.step.logit_tokens.tolist() == logits
    assert [id(row) for row in batch.sampling] == [id(row) for row in batch.rows if row.samples]
    assert batch.slots.tolist() == slots and batch.slots.dtype == mx.int32
    for table, wanted in enumerate(targets):
        if wanted:
            assert batch.blocks[table].tolist() == wanted and batch.blocks[table].dtype == mx.int32


def check_reads(plan: Plan, batch: Batch, table: int) -> None:
    """Each row reads the kernel blocks of its context, and null blocks after them."""
    for group in batch.step.groups:
        ids = group.blocks[table]
        rows = batch.rows[group.start : group.stop]
        assert ids.dtype == mx.int32
        width = max(math.ceil(row.start / plan.kernel_block) for row in rows)
        assert ids.shape == (len(rows), width), "no wider than the longest row"
        for row, listed in zip(rows, ids.tolist(), strict=True):
            wanted = [kernel_block(plan, row, table, t) for t in range(0, row.start, plan.kernel_block)]
            assert listed == wanted + [0] * (width - len(wanted))
    for chunk in batch.step.chunks:
        row = batch.rows[chunk.row]
        assert chunk.blocks[table].dtype == mx.int32
        assert chunk.blocks[table].tolist() == [
            kernel_block(plan, row, table, t) for t in range(0, row.start, plan.kernel_block)
        ]


def check_bias(plan: Plan, batch: Batch) -> None:
    for group in batch.step.groups:
        bias = np.array(group.bias)
        rows = batch.rows[group.start : group.stop]
        width = max(math.ceil(row.start / plan.kernel_block) for row in rows) * plan.kernel_block
        assert bias.shape == (len(rows), width) and bias.dtype == np.float32
        for row, line in zip(rows, bias, strict=True):
            assert (line[: row.start] == 0).all() and (line[row.start :] == -np.inf).all()


@pytest.mark.parametrize("model", MODELS)
@settings(max_examples=25, deadline=None, database=None, derandomize=True)
@given(
    decode=st.lists(st.integers(1, 60) | st.integers(1, 1500), max_size=6),
    chunks=st.lists(
        st.tuples(st.just(0) | st.integers(1, 400), st.integers(1, 70), st.just(0) | st.integers(1, 90)), max_size=3
    ),
    seed=st.integers(0, 1000),
)
def test_any_batch(model: str, decode: list[int], chunks: list[tuple[int, int, int]], seed: int) -> None:
    if not decode and not chunks:
        decode = [1]
    plan = PLANS[model]
    schedule = schedule_of(plan, decode, chunks, seed)
    check(plan, schedule, BatchBuilder(plan).build(schedule))


@pytest.mark.parametrize("model", MODELS)
def test_block_borders(model: str) -> None:
    """Contexts and chunks that end on, before and after a kernel block and a page."""
    plan = PLANS[model]
    edges = sorted({e + d for e in (plan.kernel_block, plan.block_size, 2 * plan.block_size) for d in (-1, 0, 1)})
    chunks = [(context, size, 0) for context in (0, *edges) for size in (1, plan.kernel_block, plan.block_size + 1)]
    for some in (chunks[i : i + 4] for i in range(0, len(chunks), 4)):
        schedule = schedule_of(plan, edges, some, seed=3)
        check(plan, schedule, BatchBuilder(plan).build(schedule))


def groups_of(contexts: list[int], model: str = "tokens") -> list[list[int]]:
    schedule = schedule_of(PLANS[model], contexts, [], seed=1)
    batch = BatchBuilder(PLANS[model]).build(schedule)
    check(PLANS[model], schedule, batch)
    return [[row.start for row in batch.rows[g.start : g.stop]] for g in batch.step.groups]


def test_contexts_that_are_alike_are_read_together() -> None:
    assert groups_of([100, 30, 1, 250]) == [[1, 30, 100, 250]]
    assert groups_of([900, 500]) == [[500, 900]]


def test_contexts_that_are_far_apart_are_read_in_groups_of_their_own() -> None:
    """A short row beside a long one would read its padding at the long one's length."""
    assert groups_of([20, 2000, 30, 1500]) == [[20, 30], [1500, 2000]]
    assert groups_of([1, 1000, 20, 2900, 400]) == [[1, 20], [400], [1000], [2900]]
    assert groups_of([16, 17 * 16, 18 * 16]) == [[16, 17 * 16], [18 * 16]], "over 16 blocks more, and over twice"
    assert groups_of([20 * 16, 40 * 16]) == [[20 * 16, 40 * 16]], "20 blocks more, but not over twice"
    assert SPREAD == 16


@pytest.mark.parametrize("model", ["tokens", "unified, three to a page"])
def test_padding_is_bounded(model: str) -> None:
    dice = np.random.default_rng(0)
    for _ in range(20):
        contexts = (2 ** dice.uniform(0, 11.5, size=8)).astype(int).tolist()
        schedule = schedule_of(PLANS[model], contexts, [], seed=1)
        step = BatchBuilder(PLANS[model]).build(schedule).step
        block = PLANS[model].kernel_block
        read = sum(group.bias.size // block for group in step.groups)
        needed = sum(math.ceil(context / block) for context in contexts)
        assert read <= 2 * needed + SPREAD * len(contexts)
