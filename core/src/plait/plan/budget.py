"""How many bytes the arenas may take."""

from __future__ import annotations

import math

from plait.errors import CapacityError, PlanError
from plait.plan.sizes import parse_bytes

CPU_DEFAULT = 4 * 1024**3
"""Bytes; where the device reports no memory size, no more is taken unless it is asked for."""


def arena_budget(
    *,
    device_bytes: int | None,
    weight_bytes: int,
    need_bytes: int,
    state_bytes: int,
    request_bytes: int,
    gpu_memory_utilization: float = 0.9,
    kv_cache_memory_bytes: int | str | None = None,
) -> int:
    """Decide the budget for all arenas, in bytes. The explicit size wins over everything else.

    Args:
        device_bytes: memory that the device recommends using, or has in all; None where it reports none (CPU).
        weight_bytes: bytes of the model's weights.
        need_bytes: what max_num_seqs requests of max_model_len need: `Plan.nbytes` of a plan without a budget.
        state_bytes: one sequence's states, for the error.
        request_bytes: one request of max_model_len, for the error.
        gpu_memory_utilization: the part of the device's memory that weights and arenas may take together.
        kv_cache_memory_bytes: an explicit size, as a number or as text ("4G").

    Raises:
        PlanError: gpu_memory_utilization is not over 0 and up to 1, or the explicit size is not a size.
        CapacityError: nothing is left for pages.
    """
    each = f"One sequence's states take {state_bytes:,} bytes and one request of max_model_len {request_bytes:,}"
    none_fit = f"{each}, so the largest workable --max-num-seqs is 0"
    if not 0 < gpu_memory_utilization <= 1:
        raise PlanError(
            f"gpu_memory_utilization is {gpu_memory_utilization}. Set --gpu-memory-utilization over 0 and up to 1."
        )
    if kv_cache_memory_bytes is not None:
        explicit = parse_bytes(kv_cache_memory_bytes)
        if explicit == 0:
            raise CapacityError(
                f"kv_cache_memory_bytes is 0, so no memory is left for pages beside {weight_bytes:,} bytes of "
                f"weights. {none_fit}. Set --kv-cache-memory-bytes to {need_bytes} for all sequences, or leave it out."
            )
        return explicit
    if device_bytes is None:
        return min(CPU_DEFAULT, need_bytes)
    usable = int(device_bytes * gpu_memory_utilization)
    if usable > weight_bytes:
        return usable - weight_bytes
    raise CapacityError(
        f"no memory is left for pages: gpu_memory_utilization {gpu_memory_utilization} of {device_bytes:,} device "
        f"bytes is {usable:,}, and the weights take {weight_bytes:,} ({weight_bytes - usable:,} too many). {none_fit}. "
        f"{_way_out(device_bytes, weight_bytes + request_bytes)}"
    )


def _way_out(device_bytes: int, least: int) -> str:
    """What to do when `least` bytes do not fit the part of the device that may be used."""
    others = "set --kv-cache-memory-bytes, or take weights of fewer bits"
    percent = math.ceil(100 * least / device_bytes)
    if percent > 100:
        return f"No --gpu-memory-utilization is enough: {others}."
    return f"Raise --gpu-memory-utilization to {percent / 100} or more, {others}."
