"""What holds for every plan, on random models."""

from __future__ import annotations

import re
from collections import defaultdict
from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from plait.errors import CapacityError, PlanError
from plait.plan import Layout, Plan, PlanRequest, SiteSpec, make_plan
from plait.spec import ITEMSIZE, CacheSpec, Growth, Resume, TensorSpec

DTYPES = st.sampled_from(sorted(ITEMSIZE))
SHAPES = st.lists(st.integers(1, 40), min_size=1, max_size=3).map(tuple)
TOKEN_SPECS = st.builds(
    lambda shape, dtype, multiple: CacheSpec(Growth.TOKEN, (TensorSpec("kv", shape, dtype),), block_multiple=multiple),
    SHAPES,
    DTYPES,
    st.sampled_from([1, 3, 8, 16, 24, 32, 64, 128]),
)
STATE_SPECS = st.builds(
    lambda tensors: CacheSpec(
        Growth.STATE,
        tuple(TensorSpec(f"part{i}", shape, dtype) for i, (shape, dtype) in enumerate(tensors)),
        resume=Resume.CHECKPOINT,
    ),
    st.lists(st.tuples(SHAPES, DTYPES), min_size=1, max_size=3),
)


@st.composite
def models(draw: st.DrawFn, token_specs: int = 3) -> list[SiteSpec]:
    """Sites drawn from a few specs, so that specs repeat as they do in models."""
    palette = draw(st.lists(TOKEN_SPECS, max_size=token_specs)) + draw(st.lists(STATE_SPECS, max_size=3))
    if not palette:
        palette = [draw(st.one_of(TOKEN_SPECS, STATE_SPECS))]
    specs = draw(st.lists(st.sampled_from(palette), min_size=1, max_size=16))
    return [SiteSpec(f"layers.{index}.mixer", spec) for index, spec in enumerate(specs)]


@st.composite
def requests(draw: st.DrawFn, layout: Layout, budgets: st.SearchStrategy[int | None]) -> PlanRequest:
    """Requests that are sound in themselves."""
    blocks = st.sampled_from([16, 32]) if layout is Layout.SPANNING else st.integers(1, 300)
    fields: dict[str, Any] = {
        "layout": layout,
        "block_size": draw(st.none() | blocks),
        "max_model_len": draw(st.integers(1, 5000)),
        "max_num_seqs": draw(st.integers(1, 64)),
        "enable_prefix_caching": draw(st.booleans()),
        "memory_bytes": draw(budgets),
    }
    return PlanRequest(**fields)


def check_places(plan: Plan, sites: list[SiteSpec]) -> None:
    """Every site is bound once, in order; nothing overlaps, nothing sticks out, everything starts on a word."""
    assert [(b.site, b.spec) for b in plan.bindings] == [(s.name, s.spec) for s in sites]
    parts: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    unit = 512 if plan.layout is Layout.SPANNING else 4
    for binding in plan.bindings:
        table = plan.tables[binding.table]
        assert binding.site in table.sites
        assert table.growth is binding.spec.growth
        room = plan.page_bytes if table.growth is Growth.TOKEN else table.pages * plan.page_bytes
        assert 0 <= binding.arena < len(plan.arenas)
        assert 0 <= binding.offset < binding.end <= room
        assert binding.offset % 4 == 0
        parts[binding.table, binding.arena].append((binding.offset, binding.end))
        ends = [0]
        for tensor, offset in zip(binding.spec.tensors, binding.tensor_offsets, strict=True):
            rows = plan.block_size if table.growth is Growth.TOKEN else 1
            assert offset >= ends[-1]
            assert table.growth is Growth.TOKEN or offset % unit == 0
            ends.append(offset + rows * tensor.nbytes)
        assert ends[-1] <= binding.nbytes
    for spans in parts.values():
        spans.sort()
        assert all(end <= start for (_, end), (start, _) in pairwise(spans))
    assert sorted(name for table in plan.tables for name in table.sites) == sorted(s.name for s in sites)


def check_bytes(plan: Plan, sites: list[SiteSpec], tokens: int) -> None:
    """What the specs say plus the roundings that the plan names is what is allocated, to the byte."""
    per_token = sum(s.spec.nbytes for s in sites if s.spec.growth is Growth.TOKEN)
    per_sequence = sum(s.spec.nbytes for s in sites if s.spec.growth is Growth.STATE)
    blocks = -(-tokens // plan.block_size)
    waste = plan.waste
    assert plan.bytes_of(tokens) == (
        tokens * per_token
        + (blocks * plan.block_size - tokens) * per_token
        + blocks * (waste.page_rounding + waste.idle_per_block)
        + per_sequence
        + waste.tensor_rounding
        + waste.run_rounding
        + waste.idle_per_sequence
    )
    assert plan.tail_bytes(tokens) == (blocks * plan.block_size - tokens) * per_token
    for name in ("page_rounding", "idle_per_block", "tensor_rounding", "run_rounding", "idle_per_sequence"):
        assert getattr(waste, name) >= 0
    assert all((a.num_pages, a.page_bytes) == (plan.num_pages, plan.page_bytes) for a in plan.arenas)
    assert plan.nbytes == plan.num_pages * plan.page_bytes * len(plan.arenas)
    if plan.request.memory_bytes is not None:
        assert plan.nbytes + waste.unused_budget == plan.request.memory_bytes
        assert 0 <= waste.unused_budget < plan.page_id_bytes
    assert plan.page_bytes % 4 == 0
    if plan.layout is Layout.SPANNING:
        assert plan.page_bytes % 512 == 0
        assert waste.page_rounding < 512
        assert waste.run_rounding < plan.page_bytes


def check_pages(plan: Plan, tokens: int) -> None:
    """Pages grow with tokens, and as many requests fit as a pool can be dealt out to."""
    counts = [plan.pages_for(t) for t in range(0, 4 * plan.block_size)]
    assert counts == sorted(counts)
    assert plan.pages_for(tokens) <= plan.pages_for(tokens + 1)
    assert plan.pages_for(tokens) == sum(plan.table_pages(i, tokens) for i in range(len(plan.tables)))
    fit = plan.requests_that_fit(tokens)
    free = plan.num_pages - 1
    assert fit * plan.pages_for(tokens) <= free < (fit + 1) * plan.pages_for(tokens)
    assert plan.requests_that_fit(plan.request.max_model_len) >= 1
    assert 1 <= plan.max_num_seqs <= plan.request.max_num_seqs
    longest = plan.max_tokens_that_fit()
    if longest is None:
        assert plan.bytes_per_token == 0
    else:
        assert longest >= plan.request.max_model_len
        assert plan.pages_for(longest) <= free < plan.pages_for(longest + 1)
    assert plan.block_size % plan.kernel_block == 0
    assert plan.kernel_block in (8, 16, 32)


def check(plan: Plan, sites: list[SiteSpec], tokens: int) -> None:
    check_places(plan, sites)
    check_bytes(plan, sites, tokens)
    check_pages(plan, tokens)


@settings(max_examples=500, deadline=None, database=None, derandomize=True)
@given(data=st.data(), layout=st.sampled_from(Layout), sites=models(), tokens=st.integers(1, 5000))
def test_row_2_a_valid_plan_or_a_typed_error_that_names_both_sizes(
    data: st.DataObject, layout: Layout, sites: list[SiteSpec], tokens: int
) -> None:
    request = data.draw(requests(layout, st.integers(0, 10**8)))
    try:
        plan = make_plan(sites, request)
    except PlanError as error:
        sizes = {s.spec.nbytes for s in sites if s.spec.growth is Growth.TOKEN}
        assert layout is Layout.UNIFIED
        assert len(sizes) > 1
        assert all(f"{size:,} bytes (" in str(error) for size in sizes)
    except CapacityError as error:
        needed, available = re.findall(r"needs ([\d,]+) bytes .* and ([\d,]+) bytes in", str(error))[0]
        assert request.memory_bytes is not None
        assert int(needed.replace(",", "")) > request.memory_bytes >= int(available.replace(",", ""))
    else:
        check(plan, sites, tokens)


@settings(max_examples=200, deadline=None, database=None, derandomize=True)
@given(data=st.data(), layout=st.sampled_from(Layout), sites=models(token_specs=1), tokens=st.integers(1, 5000))
def test_without_a_budget_every_model_that_the_layout_takes_has_a_plan(
    data: st.DataObject, layout: Layout, sites: list[SiteSpec], tokens: int
) -> None:
    request = data.draw(requests(layout, st.none()))
    plan = make_plan(sites, request)
    check(plan, sites, tokens)
    assert plan.requests_that_fit(request.max_model_len) == plan.max_num_seqs == request.max_num_seqs
