"""The texts of the planner's errors, whole: each says what, where, the numbers, and the flag to change."""

from __future__ import annotations

from typing import Any

import pytest

from plait.errors import CapacityError, PlanError
from plait.plan import LayerRole, PlanRequest, SiteSpec, make_plan
from plait.spec import CacheSpec, Growth, TensorSpec

ATTENTION = CacheSpec(Growth.TOKEN, (TensorSpec("kv", (2, 2, 16), "bfloat16", block_axis=2),))
LATENT = CacheSpec(Growth.TOKEN, (TensorSpec("latent", (24,), "bfloat16"),))
STATE = CacheSpec(Growth.STATE, (TensorSpec("state", (4, 32, 32), "float32"),))


def request(**fields: Any) -> PlanRequest:
    return PlanRequest(**{"max_model_len": 64, "max_num_seqs": 4, **fields})


def named(*specs: CacheSpec) -> list[SiteSpec]:
    return [SiteSpec(f"layers.{index}.mixer", spec) for index, spec in enumerate(specs)]


def test_unlike_token_bytes_under_unified() -> None:
    with pytest.raises(PlanError) as error:
        make_plan(named(ATTENTION, STATE, LATENT, LATENT, LATENT, LATENT), request(layout="unified"))
    assert str(error.value) == (
        "token sites keep unlike bytes per token: 128 bytes (layers.0.mixer: [2, 2, 16] bfloat16); 48 bytes "
        "(layers.2.mixer, layers.3.mixer and 2 more: [24] bfloat16). The unified layout gives every site a page of "
        "the same size and the same number of tokens. Use --layout spanning, where unlike token sites share a page."
    )


def test_max_model_len_too_large() -> None:
    with pytest.raises(CapacityError) as error:
        make_plan(named(STATE, ATTENTION), request(memory_bytes=100_000, max_model_len=1000))
    assert str(error.value) == (
        "one request of max_model_len 1,000 does not fit: it needs 147,456 bytes (states 16,384 per sequence, 128 per "
        "token, in 71 pages of 2,048 and the null page), and 98,304 bytes in 48 pages are available of a budget of "
        "100,000. Lower --max-model-len to 624 or less, or raise --kv-cache-memory-bytes to 147456 or more."
    )


@pytest.mark.parametrize("layout", ["spanning", "unified"])
def test_both_ways_out_of_a_max_model_len_that_is_too_large_work(layout: str) -> None:
    sites = named(STATE, STATE, ATTENTION)
    with pytest.raises(CapacityError) as error:
        make_plan(sites, request(layout=layout, memory_bytes=10**6, max_model_len=12_345))
    words = str(error.value).removesuffix(".").split()
    length, memory = int(words[words.index("--max-model-len") + 2]), int(words[-3])
    make_plan(sites, request(layout=layout, memory_bytes=10**6, max_model_len=length))
    make_plan(sites, request(layout=layout, memory_bytes=memory, max_model_len=12_345))
    with pytest.raises(CapacityError):
        make_plan(sites, request(layout=layout, memory_bytes=10**6, max_model_len=length + 1))
    with pytest.raises(CapacityError):
        make_plan(sites, request(layout=layout, memory_bytes=memory - 1, max_model_len=12_345))


def test_states_alone_too_large() -> None:
    with pytest.raises(CapacityError) as error:
        make_plan(named(STATE, ATTENTION), request(memory_bytes=10_000))
    assert str(error.value) == (
        "one request of max_model_len 64 does not fit: it needs 26,624 bytes (states 16,384 per sequence, 128 per "
        "token, in 12 pages of 2,048 and the null page), and 8,192 bytes in 4 pages are available of a budget of "
        "10,000. No --max-model-len is short enough: raise --kv-cache-memory-bytes to 26624 or more."
    )


def test_largest_buffer_too_small_for_one_request() -> None:
    with pytest.raises(CapacityError) as error:
        make_plan(named(STATE, ATTENTION), request(max_model_len=1000, max_buffer_bytes=100_000))
    assert str(error.value) == (
        "one request of max_model_len 1,000 does not fit: it needs 147,456 bytes (states 16,384 per sequence, 128 per "
        "token, in 71 pages of 2,048 and the null page), and 98,304 bytes in 48 pages are available. Lower "
        "--max-model-len to 624 or less; more memory cannot help: the device's largest buffer is 100,000 bytes."
    )


def test_budget_of_nothing() -> None:
    with pytest.raises(CapacityError, match="0 bytes in 0 pages are available of a budget of 0"):
        make_plan(named(STATE, ATTENTION), request(memory_bytes=0))


@pytest.mark.parametrize("size", [-16, 0, 1, 8, 24, 48, 544])
def test_block_size_that_spanning_does_not_take(size: int) -> None:
    with pytest.raises(PlanError) as error:
        request(block_size=size)
    assert str(error.value) == (
        f"block_size is {size}: a page of the spanning layout holds 16 or 32 tokens of every site. Set --block-size to "
        f"16 or 32, or leave it out (16)."
    )


def test_block_size_that_unified_does_not_take() -> None:
    with pytest.raises(PlanError) as error:
        request(block_size=0, layout="unified")
    assert str(error.value) == (
        "block_size is 0: the unified layout takes the least number of tokens that a block shall hold. Set "
        "--block-size to 1 or more, or leave it out (16)."
    )


def test_no_site() -> None:
    with pytest.raises(PlanError) as error:
        make_plan([], request(), [LayerRole.STATELESS] * 3)
    assert str(error.value) == (
        "the model has no site that keeps anything between tokens (3 layers, all stateless), so there is nothing to "
        "plan. Install the plugin that owns its layers: `plait doctor` lists what is installed and what was set aside."
    )


def test_one_name_twice() -> None:
    with pytest.raises(PlanError) as error:
        make_plan([SiteSpec("layers.0.mixer", STATE)] * 2, request())
    assert str(error.value) == ("sites named more than once: layers.0.mixer. Every site needs a name of its own.")


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("max_model_len", 0, "max_model_len is 0. Set --max-model-len to 1 or more."),
        ("max_num_seqs", 0, "max_num_seqs is 0. Set --max-num-seqs to 1 or more."),
        ("memory_bytes", -1, "memory_bytes is -1. Set --kv-cache-memory-bytes to 0 or more."),
        ("max_buffer_bytes", 0, "max_buffer_bytes is 0. Set --max-buffer-bytes to 1 or more."),
        ("layout", "paged", "layout 'paged' is unknown. Set --layout to one of: spanning, unified."),
    ],
)
def test_request_out_of_range(field: str, value: object, text: str) -> None:
    with pytest.raises(PlanError) as error:
        request(**{field: value})
    assert str(error.value) == text
