"""Writes the C++ text of one kernel for one set of dtypes and template values.

The signature is the one that MLX gives a custom Metal kernel (its `write_signature`), less the address spaces, which
mean nothing here: inputs without axes are references, and `NAME_shape`, `NAME_strides`, `NAME_ndim` and the thread
attributes become parameters if the body names them.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import mlx.core as mx
import numpy as np

from plait.kernel import Kernel, Launch
from plait_metal.emulator.arrays import RawArray
from plait_metal.emulator.threadgroup_variables import rewrite

C_NAMES = {
    mx.bool_: "bool",
    mx.int8: "int8_t",
    mx.int16: "int16_t",
    mx.int32: "int32_t",
    mx.int64: "int64_t",
    mx.uint8: "uint8_t",
    mx.uint16: "uint16_t",
    mx.uint32: "uint32_t",
    mx.uint64: "uint64_t",
    mx.float16: "float16_t",
    mx.bfloat16: "bfloat16_t",
    mx.float32: "float",
}

ENTRY = "emu_entry"
"""Name of the function that the runtime calls, once per thread."""

_TRIPLES = {
    "dispatch_threads_per_threadgroup": "dispatch_threads_per_threadgroup",
    "grid_size": "threads_per_grid",
    "thread_position_in_grid": "thread_position_in_grid",
    "thread_position_in_threadgroup": "thread_position_in_threadgroup",
    "threadgroup_position_in_grid": "threadgroup_position_in_grid",
    "threadgroups_per_grid": "threadgroups_per_grid",
    "threads_per_grid": "threads_per_grid",
    "threads_per_threadgroup": "threads_per_threadgroup",
}

_NUMBERS = {
    "simdgroup_index_in_threadgroup": "ids->simdgroup_index_in_threadgroup",
    "simdgroups_per_threadgroup": "ids->simdgroups_per_threadgroup",
    "thread_execution_width": "emu::kSimdWidth",
    "thread_index_in_quadgroup": "ids->thread_index_in_simdgroup % 4",
    "thread_index_in_simdgroup": "ids->thread_index_in_simdgroup",
    "thread_index_in_threadgroup": "ids->thread_index_in_threadgroup",
    "threads_per_simdgroup": "emu::kSimdWidth",
}


@attrs.frozen
class Parameter:
    """One parameter of the kernel function: its declaration, and the expression that the entry passes for it."""

    declaration: str
    argument: str


def with_shapes(kernel: Kernel, inputs: Sequence[RawArray]) -> list[RawArray]:
    """The inputs as MLX passes them: each followed by its shape, strides and rank if the body names those."""
    passed = []
    for raw in inputs:
        passed.append(raw)
        if raw.bits.ndim == 0:
            continue
        strides = [stride // raw.bits.itemsize for stride in raw.bits.strides]
        extras = [
            RawArray(f"{raw.name}_shape", mx.int32, np.array(raw.bits.shape, np.int32)),
            RawArray(f"{raw.name}_strides", mx.int64, np.array(strides, np.int64)),
            RawArray(f"{raw.name}_ndim", mx.int32, np.array(raw.bits.ndim, np.int32)),
        ]
        passed += [extra for extra in extras if extra.name in kernel.source]
    return passed


def kernel_text(kernel: Kernel, inputs: Sequence[RawArray], launch: Launch) -> str:
    """The whole translation unit. `inputs` are those of `with_shapes`; buffers are numbered inputs first."""
    parameters = [_input(raw, index) for index, raw in enumerate(inputs)]
    parameters += [
        Parameter(f"{C_NAMES[dtype]}* {name}", f"static_cast<{C_NAMES[dtype]}*>(buffers[{len(inputs) + i}])")
        for i, (name, dtype) in enumerate(zip(kernel.outputs, launch.output_dtypes, strict=True))
    ]
    parameters += [
        Parameter(f"uint3 {name}", "uint3({0}[0], {0}[1], {0}[2])".format(f"ids->{field}"))
        for name, field in _TRIPLES.items()
        if name in kernel.source
    ]
    parameters += [Parameter(f"uint {name}", value) for name, value in _NUMBERS.items() if name in kernel.source]
    function = f"custom_kernel_{kernel.name}"
    template = ", ".join(f"{_template_kind(value)} {name}" for name, value in launch.template.items())
    values = ", ".join(_template_value(value) for value in launch.template.values())
    return "\n".join(
        [
            '#include "msl/stdlib.h"',
            f'#line 1 "{kernel.name}.header"',
            rewrite(kernel.header),
            *([f"template <{template}>"] if template else []),
            f"void {function}(",
            ",\n".join(f"    {p.declaration}" for p in parameters) + ") {",
            f'#line 1 "{kernel.name}"',
            rewrite(kernel.source),
            "}",
            '#line 1 "entry"',
            f'extern "C" MSL_UNCHECKED void {ENTRY}(void** buffers, const emu::ThreadIds* ids) {{',
            f"  {function}{f'<{values}>' if values else ''}(",
            ",\n".join(f"      {p.argument}" for p in parameters) + ");",
            "}",
            "",
        ]
    )


def _input(raw: RawArray, index: int) -> Parameter:
    ctype = C_NAMES[raw.dtype]
    pointer = f"static_cast<const {ctype}*>(buffers[{index}])"
    if raw.bits.ndim == 0:
        return Parameter(f"const {ctype}& {raw.name}", f"*{pointer}")
    return Parameter(f"const {ctype}* {raw.name}", pointer)


def _template_kind(value: int | bool | mx.Dtype) -> str:
    if isinstance(value, bool):
        return "bool"
    return "int" if isinstance(value, int) else "typename"


def _template_value(value: int | bool | mx.Dtype) -> str:
    return str(value).lower() if isinstance(value, int) else C_NAMES[value]
