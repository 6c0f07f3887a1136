"""Public bug reports of this field, retold as numbers: each would have been caught by the planner's test."""

from __future__ import annotations

import pytest

from plait.errors import CapacityError
from plait.plan import Layout, PlanRequest, SiteSpec, arena_budget, make_plan
from plait.spec import CacheSpec, Growth, Resume, TensorSpec

MIB = 1024**2


def token(nbytes: int, multiple: int = 16) -> CacheSpec:
    return CacheSpec(Growth.TOKEN, (TensorSpec("kv", (nbytes,), "uint8"),), block_multiple=multiple)


def state(nbytes: int) -> CacheSpec:
    return CacheSpec(Growth.STATE, (TensorSpec("state", (nbytes // 4,), "float32"),), resume=Resume.CHECKPOINT)


def named(*specs: CacheSpec) -> list[SiteSpec]:
    return [SiteSpec(f"layers.{index}.mixer", spec) for index, spec in enumerate(specs)]


DELTA = CacheSpec(  # a small delta-rule layer: 2 key heads, 4 value heads of 32, convolution of 4
    Growth.STATE,
    (TensorSpec("conv", (3, 256), "float32"), TensorSpec("state", (4, 32, 32), "float32")),
    resume=Resume.CHECKPOINT,
)
SMALL = named(DELTA, DELTA, DELTA, CacheSpec(Growth.TOKEN, (TensorSpec("kv", (2, 2, 32), "float32", 2),)))


@pytest.mark.parametrize("layout", list(Layout))
def test_row_1_pages_of_unlike_size_are_padded_and_the_padding_is_told(layout: Layout) -> None:
    sites = named(state(12_648_448), token(12_416 // 16))
    plan = make_plan(sites, PlanRequest(max_model_len=4096, max_num_seqs=2, layout=layout))
    waste = plan.waste
    assert waste.per_sequence == plan.state_pages * plan.page_id_bytes - 12_648_448
    assert 0 < waste.per_sequence < 0.01 * 12_648_448


def test_row_3_a_token_page_may_be_larger_than_a_state() -> None:
    sites = named(state(4096), state(4096), token(1024))
    plan = make_plan(sites, PlanRequest(max_model_len=64, max_num_seqs=1, layout="unified"))
    assert plan.page_bytes == 16 * 1024
    assert all(b.end <= plan.page_bytes for b in plan.bindings)


def test_row_7_a_short_request_costs_its_states_and_one_block() -> None:
    fixed = make_plan(SMALL, PlanRequest(max_model_len=16, max_num_seqs=1))
    assert fixed.pages_for(12) == fixed.state_pages + 1
    assert fixed.state_pages == -(-3 * (3072 + 16384) // 8192)
    pages = 1 + 8 * fixed.state_pages + 64
    plan = make_plan(SMALL, PlanRequest(max_model_len=64, max_num_seqs=8, memory_bytes=pages * fixed.page_bytes))
    assert plan.num_pages == pages
    assert plan.requests_that_fit(12) >= 8
    assert plan.max_num_seqs == 8


def test_row_9_fewer_sequences_than_asked_start_and_a_budget_of_nothing_says_why_not() -> None:
    sites = named(state(MIB), token(64))
    plan = make_plan(sites, PlanRequest(max_model_len=2048, max_num_seqs=256, memory_bytes=64 * MIB))
    assert 60 <= plan.max_num_seqs < 64
    with pytest.raises(CapacityError, match=r"54,000,000,000 .*states take 1,048,576 .*--max-num-seqs is 0"):
        arena_budget(
            device_bytes=32_000_000_000,
            weight_bytes=54_000_000_000,
            need_bytes=256 * MIB,
            state_bytes=plan.state_bytes,
            request_bytes=plan.bytes_of(2048),
        )


def test_row_10_more_sequences_than_fit_are_lowered_with_one_note() -> None:
    each = make_plan(SMALL, PlanRequest(max_model_len=16, max_num_seqs=1))
    memory = (1 + 5 * each.pages_for(16)) * each.page_bytes
    plan = make_plan(SMALL, PlanRequest(max_model_len=16, max_num_seqs=64, memory_bytes=memory))
    assert plan.max_num_seqs == plan.requests_that_fit(16) == 5
    assert plan.notes == (
        "max_num_seqs lowered from 64 to 5: a sequence takes 73,728 bytes at least (states 58,368), and 45 pages of "
        "8,192 bytes are there",
    )


@pytest.mark.parametrize("layout", list(Layout))
def test_row_13_capacity_times_bytes_is_what_is_allocated(layout: Layout) -> None:
    latent = CacheSpec(Growth.TOKEN, (TensorSpec("latent", (576,), "bfloat16"),), block_multiple=64)
    mixer = CacheSpec(
        Growth.STATE,
        (TensorSpec("conv", (3, 12288), "bfloat16"), TensorSpec("state", (32, 128, 128), "float32")),
        resume=Resume.CHECKPOINT,
    )
    sites = named(*[mixer, mixer, mixer, latent] * 7)
    plan = make_plan(
        sites, PlanRequest(max_model_len=32_768, max_num_seqs=64, layout=layout, memory_bytes=64 * 1024 * MIB)
    )
    slots = plan.requests_that_fit(32_768)
    told = slots * (32_768 * plan.bytes_per_token + plan.state_bytes)
    assert told == pytest.approx(plan.nbytes, rel=0.05)


def test_row_15_unlike_block_multiples_meet_at_their_least_multiple_and_it_is_told() -> None:
    sites = named(token(128, 16), token(128, 24))
    unified = make_plan(sites, PlanRequest(max_model_len=64, max_num_seqs=1, layout="unified"))
    assert unified.smallest_cacheable_prefix == 48
    assert "token sites want blocks of 16 and 24 tokens: blocks are multiples of 48 tokens" in unified.notes
    spanning = make_plan(sites, PlanRequest(max_model_len=64, max_num_seqs=1))
    assert spanning.smallest_cacheable_prefix == 16
