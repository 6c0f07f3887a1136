"""The texts behind the CUDA prelude, through nvcc: they compile. Whether they run right, only a GPU can tell."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from plait.kernel import Kernel
from plait_metal.resources import read_text
from plait_metal.rows import CHUNK, COPY_PAGES, WRITE_RUNS, WRITE_TOKENS, ZERO_PAGES

INCLUDES = "#include <cstdint>\n#include <cstring>\n#include <cuda_bf16.h>\n#include <cuda_fp16.h>\n"

EVERY_WORD = """
const uint lane = thread_index_in_simdgroup, i = thread_position_in_grid.x, t = thread_index_in_threadgroup;
threadgroup float shared[256];
if (simdgroup_index_in_threadgroup < simdgroups_per_threadgroup) shared[t] = static_cast<float>(x[i]);
threadgroup_barrier(mem_flags::mem_threadgroup | mem_flags::mem_device);
simdgroup_barrier(mem_flags::mem_threadgroup);
const float v = shared[t] + static_cast<float>(threads_per_threadgroup.x + threadgroups_per_grid.y);
float s = simd_sum(v) + simd_product(v) + simd_max(v) + simd_min(v) + simd_shuffle(v, 3) + simd_shuffle_xor(v, 1);
s += simd_shuffle_down(v, 2) + simd_shuffle_up(v, 2) + simd_broadcast(v, 4) + simd_broadcast_first(v);
s += simd_prefix_inclusive_sum(v) + simd_prefix_exclusive_sum(v) + static_cast<float>(simd_sum(static_cast<T>(v)));
s += simd_and(lane) + simd_or(lane) + simd_xor(lane) + simd_any(lane > 3) + simd_all(lane < 40);
s += metal::exp(v) + metal::log(v) + metal::precise::exp2(v) + metal::fast::exp(v) + fast::log(v) + precise::tanh(v);
s += metal::fma(v, s, 1.0f) + metal::max(v, s) + metal::min(3, 4) + metal::max(3u, 4u) + metal::clamp(v, 0.0f, 1.0f);
s += metal::rsqrt(v) + metal::pow(v, 2.0f) + metal::abs(v) + metal::select(v, s, v < s);
s += as_type<float>(as_type<uint>(v));
if (metal::isnan(v) || metal::isinf(v) || v == -INFINITY || v != NAN) s *= M_LOG2E_F * M_LN2_F * M_PI_F;
auto words = const_cast<device uint32_t*>(arena);
words[i] = threadgroup_position_in_grid.x + thread_position_in_threadgroup.y;
words[i] += threads_per_simdgroup;
y[i] = static_cast<T>(s);
"""


def as_mlx_writes_it(kernel: Kernel, name: str, types: dict[str, str], template: dict[str, str | int]) -> str:
    """The function that MLX's CUDA backend makes of a body: template values become constants inside it."""
    inputs = [f"const {types[n]}* {n}" for n in kernel.inputs]
    outputs = [f"{types[n]}* {n}" for n in kernel.outputs]
    constants = "".join(
        f"  using {n} = {v};\n" if isinstance(v, str) else f"  constexpr int {n} = {v};\n" for n, v in template.items()
    )
    return f"__global__ void {name}({', '.join(inputs + outputs)}) {{\n{constants}{kernel.source}\n}}\n"


def test_the_prelude_and_the_row_kernels_compile(tmp_path: Path) -> None:
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("no nvcc on this machine")
    ints = dict.fromkeys(("pages", "slots", "tables", "sources", "targets", "window", "fence"), "int32_t")
    common = {"arena": "uint32_t", "after": "uint8_t", **ints}
    functions = [
        as_mlx_writes_it(kernel, f"{kernel.name}_{unit}", {**common, "rows": unit}, {"T": unit, "CHUNK": CHUNK})
        for kernel in (WRITE_TOKENS, WRITE_RUNS)
        for unit in ("uint8_t", "uint16_t", "uint32_t")
    ]
    functions += [
        as_mlx_writes_it(kernel, kernel.name, common, {"CHUNK": CHUNK}) for kernel in (ZERO_PAGES, COPY_PAGES)
    ]
    words = Kernel("every_word", ("x", "arena"), ("y",), EVERY_WORD, lambda *arrays: arrays)
    functions += [
        as_mlx_writes_it(words, f"every_word_{n}", {"x": ctype, "y": ctype, "arena": "uint32_t"}, {"T": ctype})
        for n, ctype in enumerate(("float", "__half", "__nv_bfloat16"))
    ]
    text = INCLUDES + read_text("cuda", "prelude.h") + "namespace mlx::core::cu {\n" + "".join(functions) + "}\n"
    source = tmp_path / "kernels.cu"
    source.write_text(text, encoding="utf-8")
    command = [nvcc, "-std=c++17", "-arch=sm_90", "-c", str(source), "-o", str(tmp_path / "kernels.o")]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr[:4000]


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
def test_the_same_words_run_in_the_emulator(run_text: Callable[..., Any], dtype: mx.Dtype) -> None:
    arena = mx.zeros((256,), dtype=mx.uint32)
    x = mx.random.uniform(0.9, 1.1, (256,), key=mx.random.key(1)).astype(dtype)
    (y,) = run_text(
        EVERY_WORD,
        {"x": x, "arena": arena},
        {"y": ((256,), dtype)},
        (256, 1, 1),
        (256, 1, 1),
        template={"T": dtype},
        writes=("arena",),
    )
    assert y.size == 256 and arena.tolist() == [32] * 256
