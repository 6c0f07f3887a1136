"""The budget for the arenas, and byte sizes as people write them."""

from __future__ import annotations

from typing import Any

import pytest

from plait.errors import CapacityError, PlanError
from plait.plan import arena_budget, parse_bytes

GIB = 1024**3


def budget(**changes: Any) -> int:
    return arena_budget(
        **{
            "device_bytes": 32 * GIB,
            "weight_bytes": 10 * GIB,
            "need_bytes": 7 * GIB,
            "state_bytes": 1_000_000,
            "request_bytes": 2_000_000,
            **changes,
        }
    )


def test_device_takes_its_share_less_the_weights() -> None:
    assert budget() == int(32 * GIB * 0.9) - 10 * GIB
    assert budget(gpu_memory_utilization=0.5) == 6 * GIB
    assert budget(gpu_memory_utilization=1) == 22 * GIB


def test_cpu_takes_the_need_up_to_four_gib() -> None:
    assert budget(device_bytes=None) == 4 * GIB
    assert budget(device_bytes=None, need_bytes=123_456) == 123_456


def test_explicit_size_wins_even_over_a_device_that_is_full() -> None:
    assert budget(kv_cache_memory_bytes="3G") == 3 * GIB
    assert budget(kv_cache_memory_bytes=12345, weight_bytes=99 * GIB) == 12345
    assert budget(kv_cache_memory_bytes="5GiB", device_bytes=None) == 5 * GIB


def test_nothing_left_says_the_numbers_and_the_ways_out() -> None:
    with pytest.raises(CapacityError) as error:
        budget(device_bytes=10_000_000_000, weight_bytes=9_500_000_000)
    assert str(error.value) == (
        "no memory is left for pages: gpu_memory_utilization 0.9 of 10,000,000,000 device bytes is 9,000,000,000, and "
        "the weights take 9,500,000,000 (500,000,000 too many). One sequence's states take 1,000,000 bytes and one "
        "request of max_model_len 2,000,000, so the largest workable --max-num-seqs is 0. Raise "
        "--gpu-memory-utilization to 0.96 or more, set --kv-cache-memory-bytes, or take weights of fewer bits."
    )


def test_utilization_is_not_advised_where_it_cannot_help() -> None:
    with pytest.raises(CapacityError, match="No --gpu-memory-utilization is enough: set --kv-cache-memory-bytes"):
        budget(device_bytes=10_000_000_000, weight_bytes=9_999_999_999)


def test_weights_that_fill_the_share_exactly_leave_nothing() -> None:
    with pytest.raises(CapacityError):
        budget(device_bytes=GIB, weight_bytes=GIB, gpu_memory_utilization=1.0)


def test_explicit_nothing_lists_weights_states_and_sequences() -> None:
    with pytest.raises(CapacityError) as error:
        budget(kv_cache_memory_bytes=0, weight_bytes=5, need_bytes=77)
    assert str(error.value) == (
        "kv_cache_memory_bytes is 0, so no memory is left for pages beside 5 bytes of weights. One sequence's states "
        "take 1,000,000 bytes and one request of max_model_len 2,000,000, so the largest workable --max-num-seqs is 0. "
        "Set --kv-cache-memory-bytes to 77 for all sequences, or leave it out."
    )


@pytest.mark.parametrize("share", [0, -0.5, 1.01, float("nan")])
def test_utilization_out_of_range(share: float) -> None:
    with pytest.raises(PlanError, match="Set --gpu-memory-utilization over 0 and up to 1"):
        budget(gpu_memory_utilization=share)


@pytest.mark.parametrize(
    ("value", "nbytes"),
    [
        (0, 0),
        (4096, 4096),
        ("4096", 4096),
        ("4096B", 4096),
        ("4G", 4 * GIB),
        ("4g", 4 * GIB),
        (" 4 GiB ", 4 * GIB),
        ("4GB", 4 * 10**9),
        ("512M", 512 * 1024**2),
        ("1.5K", 1536),
        ("2T", 2 * 1024**4),
        ("0.3KB", 300),
    ],
)
def test_parse_bytes(value: int | str, nbytes: int) -> None:
    assert parse_bytes(value) == nbytes


@pytest.mark.parametrize("value", [-1, True, 1.5, None, "", "G", "-1G", "4X", "4 G B", "1e9", "1_000"])
def test_parse_bytes_refuses(value: Any) -> None:
    with pytest.raises(PlanError, match=r"--flag is .*, which is not a size in bytes"):
        parse_bytes(value, "--flag")
