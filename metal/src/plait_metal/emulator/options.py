"""How the emulator runs a kernel."""

from __future__ import annotations

import attrs


@attrs.frozen
class EmulatorOptions:
    """Where GPUs may differ, and what counts as a defect. A kernel's tolerances should hold under each choice.

    Attributes:
        reduction_order: how SIMD reductions combine lanes: 0 butterfly with lanes 1, 2, 4, 8, 16 apart, 1 butterfly
            with 16 first, 2 one lane after another.
        contract: fuse a * b + c into one rounding where the text does not say.
        order: SIMD groups start at this one; odd numbers run the lanes of a group backwards.
        flush_denormals: treat denormal floats as zero.
        check_races: report unordered accesses.
        lockstep_orders_memory: SIMD operations also order memory. True of today's hardware, not of Metal's
            specification, so off.
        allow_unwritten: output bytes that no thread wrote are no defect.
        threadgroup_memory: bytes of a threadgroup's memory.
        budget: memory accesses and branches of one launch before a loop counts as endless.
    """

    reduction_order: int = attrs.field(default=0, validator=attrs.validators.in_((0, 1, 2)))
    contract: bool = False
    order: int = 0
    flush_denormals: bool = False
    check_races: bool = True
    lockstep_orders_memory: bool = False
    allow_unwritten: bool = False
    threadgroup_memory: int = 32768
    budget: int = 10**9
