"""What a kernel record and a call of it must satisfy before any text reaches a compiler."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import mlx.core as mx

from plait.errors import FamilyContractError
from plait.kernel import Kernel, Launch

SIMD_WIDTH = 32
MAX_THREADS = 1024


def check_kernel(kernel: Kernel) -> None:
    """Raise `FamilyContractError` where the record's names cannot become C names or contradict each other."""
    names = (*kernel.inputs, *kernel.outputs)
    for name in (kernel.name, *names):
        if not (name.isascii() and name.isidentifier()):
            raise FamilyContractError(f"kernel {kernel.name!r}: {name!r} is no C identifier; rename it")
    doubles = sorted({name for name in names if names.count(name) > 1})
    if doubles:
        raise FamilyContractError(f"kernel {kernel.name}: {doubles} name more than one array; rename them")
    if not kernel.outputs:
        raise FamilyContractError(f"kernel {kernel.name} has no output; give it at least a fence")
    strangers = sorted(set(kernel.writes) - set(kernel.inputs))
    if strangers:
        raise FamilyContractError(f"kernel {kernel.name}: it writes {strangers}, which are not among its inputs")


def check_call(kernel: Kernel, inputs: Sequence[mx.array], launch: Launch) -> None:
    """Raise `FamilyContractError` where a call does not fit its kernel or no GPU could run it."""
    expected = (len(kernel.inputs), len(kernel.outputs), len(kernel.outputs))
    given = (len(inputs), len(launch.output_shapes), len(launch.output_dtypes))
    if given != expected:
        raise FamilyContractError(
            f"kernel {kernel.name}: called with {given[0]} inputs, {given[1]} output shapes and {given[2]} output "
            f"dtypes, but it has {expected[0]} inputs {kernel.inputs} and {expected[1]} outputs {kernel.outputs}"
        )
    threads = prod(launch.threadgroup)
    if threads % SIMD_WIDTH or not 0 < threads <= MAX_THREADS or min(launch.grid) < 1:
        raise FamilyContractError(
            f"kernel {kernel.name}: grid {launch.grid} with threadgroup {launch.threadgroup}: a threadgroup is a whole "
            f"number of {SIMD_WIDTH}-lane SIMD groups, at most {MAX_THREADS} threads, and a grid is not empty"
        )
