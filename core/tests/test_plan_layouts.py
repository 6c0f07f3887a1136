"""Both layouts on small models whose numbers can be counted by hand."""

from __future__ import annotations

from typing import Any

import pytest

from plait.plan import Layout, Mode, Plan, PlanRequest, SiteSpec, make_plan
from plait.spec import CacheSpec, Growth, Resume, TensorSpec

ATTENTION = CacheSpec(Growth.TOKEN, (TensorSpec("kv", (2, 2, 16), "bfloat16", block_axis=2),))  # 128 bytes per token
LATENT = CacheSpec(Growth.TOKEN, (TensorSpec("latent", (24,), "bfloat16"),), block_multiple=64)  # 48 bytes per token
STATE = CacheSpec(
    Growth.STATE,
    (TensorSpec("conv", (3, 50), "bfloat16"), TensorSpec("state", (2, 16, 16), "float32")),  # 300 + 2,048 bytes
    resume=Resume.CHECKPOINT,
)
ODD = CacheSpec(
    Growth.STATE,
    (TensorSpec("conv", (3, 1), "bfloat16"), TensorSpec("state", (5,), "float32")),  # 6 + 20 bytes
    resume=Resume.CHECKPOINT,
)


def named(*specs: CacheSpec) -> list[SiteSpec]:
    return [SiteSpec(f"layers.{index}.mixer", spec) for index, spec in enumerate(specs)]


def plan_of(*specs: CacheSpec, **request: Any) -> Plan:
    request = {"max_model_len": 64, "max_num_seqs": 4, **request}
    return make_plan(named(*specs), PlanRequest(**request))


def places(plan: Plan) -> list[tuple[int, int, int, int, tuple[int, ...]]]:
    return [(b.arena, b.table, b.offset, b.nbytes, b.tensor_offsets) for b in plan.bindings]


def test_spanning_puts_unlike_token_sites_in_one_page_and_states_in_one_run() -> None:
    plan = plan_of(STATE, ATTENTION, STATE, LATENT, memory_bytes=100_000)
    assert plan.page_bytes == 3072  # 16 * (128 + 48) = 2,816, rounded up to 512
    assert places(plan) == [
        (0, 1, 0, 512 + 2048, (0, 512)),
        (0, 0, 0, 2048, (0,)),
        (0, 1, 2560, 2560, (0, 512)),
        (0, 0, 2048, 768, (0,)),
    ]
    assert [b.site for b in plan.bindings] == [f"layers.{i}.mixer" for i in range(4)]
    assert (plan.state_bytes, plan.run_bytes, plan.bytes_per_token) == (2 * 2348, 5120, 176)
    assert [(t.growth, t.block, t.pages) for t in plan.tables] == [(Growth.TOKEN, 16, 0), (Growth.STATE, 0, 2)]
    assert plan.num_pages == 32  # 100,000 // 3,072
    assert plan.nbytes == 32 * 3072
    assert [arena.nbytes for arena in plan.arenas] == [32 * 3072]
    assert plan.kernel_block == 16
    assert plan.smallest_cacheable_prefix == 16


def test_spanning_pages_of_requests() -> None:
    plan = plan_of(STATE, ATTENTION, STATE, LATENT, memory_bytes=100_000)
    assert [plan.pages_for(t) for t in (0, 1, 16, 17, 64)] == [2, 3, 3, 4, 6]
    assert [plan.table_pages(0, t) for t in (0, 1, 16, 17)] == [0, 1, 1, 2]
    assert [plan.table_pages(1, t) for t in (0, 1, 17)] == [2, 2, 2]
    assert plan.bytes_of(17) == 4 * 3072
    assert [plan.requests_that_fit(t) for t in (0, 1, 16, 17, 64)] == [10, 10, 10, 7, 5]
    assert plan.max_tokens_that_fit() == 29 * 16
    assert plan.tail_bytes(17) == 15 * 176


def test_spanning_block_of_32() -> None:
    plan = plan_of(ATTENTION, LATENT, block_size=32)
    assert (plan.block_size, plan.kernel_block, plan.page_bytes) == (32, 32, 32 * 176)


def test_spanning_of_tokens_only_keeps_an_empty_state_table() -> None:
    plan = plan_of(ATTENTION)
    assert plan.mode is Mode.NONE
    assert [(t.growth, t.pages, t.sites) for t in plan.tables] == [
        (Growth.TOKEN, 0, ("layers.0.mixer",)),
        (Growth.STATE, 0, ()),
    ]
    assert plan.pages_for(17) == 2
    assert plan.state_pages == 0


def test_spanning_of_states_only() -> None:
    plan = plan_of(*[STATE] * 30, max_model_len=10**9)
    assert plan.page_bytes == 64 * 1024
    assert plan.state_pages == 2  # 30 * 2,560 = 76,800
    assert plan.bindings[0].table == 1
    assert plan.pages_for(10**9) == plan.pages_for(1) == 2
    assert plan.block_size == plan.smallest_cacheable_prefix == 16
    assert plan.max_tokens_that_fit() is None
    assert plan.mode is Mode.ALIGN


def test_without_a_budget_all_sequences_fit_exactly() -> None:
    plan = plan_of(STATE, ATTENTION, max_num_seqs=5, max_model_len=100)
    assert plan.num_pages == 1 + 5 * plan.pages_for(100)
    assert plan.requests_that_fit(100) == plan.max_num_seqs == 5
    assert plan.waste.unused_budget == 0
    assert plan.notes == ()


@pytest.mark.parametrize("layout", list(Layout))
def test_largest_buffer_caps_the_pages_and_is_noted(layout: Layout) -> None:
    plan = plan_of(ATTENTION, ATTENTION, layout=layout, memory_bytes=10**6, max_buffer_bytes=123_456)
    wanted = {Layout.SPANNING: (244, 30), Layout.UNIFIED: (244, 60)}[layout]
    assert plan.num_pages == wanted[1]
    assert all(arena.nbytes <= 123_456 for arena in plan.arenas)
    assert plan.notes == (
        f"pages capped from {wanted[0]} to {wanted[1]}: the device's largest buffer is 123,456 bytes",
    )
    assert plan.waste.unused_budget == 10**6 - plan.nbytes


def test_largest_buffer_that_is_large_enough_changes_nothing() -> None:
    plan = plan_of(ATTENTION, memory_bytes=2048 * 10, max_buffer_bytes=2048 * 10)
    assert (plan.num_pages, plan.notes) == (10, ())


def test_unified_pads_a_state_to_the_page_of_a_block() -> None:
    plan = plan_of(STATE, ATTENTION, layout="unified", memory_bytes=100_000)
    # 300 + 2,048 = 2,348 bytes of state at 16 * 128 bytes: two times 16 tokens
    assert (plan.block_size, plan.kernel_block, plan.page_bytes) == (32, 32, 4096)
    assert places(plan) == [(0, 0, 0, 2348, (0, 300)), (0, 1, 0, 4096, (0,))]
    assert [(t.growth, t.block, t.pages) for t in plan.tables] == [(Growth.STATE, 0, 1), (Growth.TOKEN, 32, 0)]
    assert plan.waste.run_rounding == 4096 - 2348
    assert plan.num_pages == 100_000 // 4096
    assert plan.notes == ("block_size raised from 16 to 32 tokens: a state of 2,348 bytes must fit one page",)


def test_unified_starts_each_tensor_of_a_state_on_a_word() -> None:
    plan = plan_of(ODD, layout="unified", block_size=100)
    assert places(plan) == [(0, 0, 0, 28, (0, 8))]
    assert plan.page_bytes == 512
    assert plan.waste.tensor_rounding == 2
    assert plan.block_size == 104  # only spaces checkpoints


def test_unified_groups_share_page_ids_over_arenas() -> None:
    plan = plan_of(*[STATE, STATE, STATE, ATTENTION] * 2, layout="unified")
    assert [table.sites for table in plan.tables] == [
        ("layers.0.mixer", "layers.4.mixer"),
        ("layers.1.mixer", "layers.5.mixer"),
        ("layers.2.mixer", "layers.6.mixer"),
        ("layers.3.mixer", "layers.7.mixer"),
    ]
    assert [(b.arena, b.table) for b in plan.bindings] == [(0, t) for t in range(4)] + [(1, t) for t in range(4)]
    assert len(plan.arenas) == 2
    assert [plan.pages_for(t) for t in (1, 32, 33)] == [4, 4, 5]
    assert plan.bytes_of(1) == 4 * 2 * plan.page_bytes
    assert plan.max_tokens_that_fit() == 32 * (plan.num_pages - 1 - 3)


def test_unified_group_size_is_the_largest_bucket_if_that_is_little_over_the_smallest() -> None:
    plan = plan_of(*[STATE] * 4, *[ATTENTION] * 3, layout="unified")
    assert [len(table.sites) for table in plan.tables] == [4, 3]
    assert plan.waste.idle_per_block == plan.page_bytes
    plan = plan_of(*[STATE] * 3, *[ATTENTION] * 2, layout="unified")  # 1.5 times is not under 1.5 times
    assert [len(table.sites) for table in plan.tables] == [2, 1, 2]
    assert plan.waste.idle_per_sequence == plan.page_bytes


def test_unified_with_several_token_groups_counts_each() -> None:
    other = CacheSpec(Growth.TOKEN, (TensorSpec("kv", (4, 2, 8), "bfloat16", block_axis=2),))
    plan = plan_of(ATTENTION, other, layout="unified", memory_bytes=2048 * 12)
    assert [plan.pages_for(t) for t in (1, 17)] == [2, 4]
    assert plan.max_tokens_that_fit() == 5 * 16  # 11 pages for two tables


def test_unified_takes_the_asked_block_as_a_minimum() -> None:
    plan = plan_of(STATE, ATTENTION, layout="unified", block_size=100)
    assert (plan.block_size, plan.kernel_block) == (112, 16)
    assert plan.notes == ("block_size raised from 100 to 112 tokens, a multiple of 16",)
    plan = plan_of(LATENT, layout="unified", block_size=8)
    assert (plan.block_size, plan.kernel_block) == (64, 32)


def test_unified_block_has_a_kernel_block_whatever_the_multiple() -> None:
    three = CacheSpec(Growth.TOKEN, (TensorSpec("kv", (3,), "uint8"),), block_multiple=3)
    plan = plan_of(three, layout="unified")
    assert (plan.block_size, plan.kernel_block, plan.page_bytes) == (24, 8, 72)


@pytest.mark.parametrize("layout", list(Layout))
@pytest.mark.parametrize("caching", [True, False])
def test_mode(layout: Layout, caching: bool) -> None:
    with_state = plan_of(STATE, ATTENTION, layout=layout, enable_prefix_caching=caching)
    without = plan_of(ATTENTION, layout=layout, enable_prefix_caching=caching)
    assert with_state.mode is (Mode.ALIGN if caching else Mode.NONE)
    assert without.mode is Mode.NONE
