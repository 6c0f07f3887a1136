"""Which backend is chosen, what reaches MLX, what is refused, and how fences tie arrays together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from plait.errors import FamilyContractError, PluginError
from plait.kernel import BuiltKernel, Kernel, KernelBackend, Launch, RunWindow, TokenWindow
from plait_metal import plugin
from plait_metal.backend import CudaBackend, GpuBackend, MetalBackend
from plait_metal.emulator import EmulatorBackend, compiler
from plait_metal.fence import fence_after, join
from plait_metal.resources import read_text
from plait_metal.row_writer import KernelRowWriter


def reference(x: mx.array, **template: Any) -> Sequence[mx.array]:
    return (x,)


KERNEL = Kernel("twice", ("x",), ("y",), "y[0] = 2 * x[0];", reference, header="// helpers\n")
LAUNCH = Launch((32, 1, 1), (32, 1, 1), [(1,)], [mx.float32])


@pytest.mark.parametrize(
    ("device", "metal", "cuda", "expected"),
    [
        (mx.cpu, False, False, None),
        (mx.gpu, True, False, MetalBackend),
        (mx.gpu, False, True, CudaBackend),
        (mx.cpu, True, False, None),  # a Mac that was told to compute on its CPU
        (mx.cpu, False, True, None),
        (mx.gpu, False, False, None),
    ],
)
def test_the_hook_follows_the_default_device(
    monkeypatch: pytest.MonkeyPatch, device: Any, metal: bool, cuda: bool, expected: type[GpuBackend] | None
) -> None:
    monkeypatch.setattr(mx, "default_device", lambda: mx.Device(device))
    monkeypatch.setattr(mx.metal, "is_available", lambda: metal)
    monkeypatch.setattr(mx.cuda, "is_available", lambda: cuda)
    chosen = plugin.plait_kernel_backend()
    assert (type(chosen) if chosen else None) is expected


def test_the_hook_is_marked_for_plait() -> None:
    assert hasattr(plugin.plait_kernel_backend, "plait_impl")


class Takes:
    """Stands in for one of MLX's kernel functions and records what it is given."""

    def __init__(self) -> None:
        self.texts: list[dict[str, Any]] = []
        self.calls: list[dict[str, Any]] = []

    def __call__(self, **text: Any) -> Any:
        self.texts.append(text)

        def run(**call: Any) -> list[mx.array]:
            self.calls.append(call)
            return [mx.zeros(1)]

        return run


@pytest.mark.parametrize(
    ("backend", "function", "prelude"),
    [(MetalBackend, "metal_kernel", ""), (CudaBackend, "cuda_kernel", read_text("cuda", "prelude.h"))],
)
def test_one_text_reaches_mlx_once(
    monkeypatch: pytest.MonkeyPatch, backend: type[GpuBackend], function: str, prelude: str
) -> None:
    takes = Takes()
    monkeypatch.setattr(mx.fast, function, takes)
    gpu = backend()
    x = mx.ones(1)
    launch = Launch((32, 1, 1), (32, 1, 1), [(1,)], [mx.float32], {"N": 3})
    assert len(gpu.build(KERNEL)([x], launch)) == 1
    gpu.build(KERNEL)([x], launch)
    assert takes.texts == [
        {
            "name": "twice",
            "input_names": ["x"],
            "output_names": ["y"],
            "source": KERNEL.source,
            "header": prelude + KERNEL.header,
        }
    ]
    assert takes.calls[0] == {
        "inputs": [x],
        "template": [("N", 3)],
        "grid": (32, 1, 1),
        "threadgroup": (32, 1, 1),
        "output_shapes": [(1,)],
        "output_dtypes": [mx.float32],
    }
    gpu.build(Kernel("twice", ("x",), ("y",), "y[0] = x[0] + x[0];", reference))
    assert len(takes.texts) == 2, "another text under the same name is another kernel"


@pytest.mark.parametrize(
    ("kernel", "match"),
    [
        (Kernel("two words", ("x",), ("y",), "", reference), "two words"),
        (Kernel("k", ("x", "a-b"), ("y",), "", reference), "a-b"),
        (Kernel("k", ("x",), ("x",), "", reference), "more than one"),
        (Kernel("k", ("x",), (), "", reference), "no output"),
        (Kernel("k", ("x",), ("y",), "", reference, writes=("z",)), "not among its inputs"),
    ],
)
def test_records_that_no_backend_can_take(emulator: EmulatorBackend, kernel: Kernel, match: str) -> None:
    with pytest.raises(FamilyContractError, match=match):
        emulator.build(kernel)


@pytest.mark.parametrize(
    ("inputs", "launch"),
    [
        (2, LAUNCH),
        (1, Launch((32, 1, 1), (32, 1, 1), [], [])),
        (1, Launch((32, 1, 1), (16, 1, 1), [(1,)], [mx.float32])),
        (1, Launch((2048, 1, 1), (32, 33, 1), [(1,)], [mx.float32])),
        (1, Launch((0, 1, 1), (32, 1, 1), [(1,)], [mx.float32])),
    ],
)
def test_calls_that_do_not_fit_are_refused(emulator: EmulatorBackend, inputs: int, launch: Launch) -> None:
    with pytest.raises(FamilyContractError, match="twice"):
        emulator.build(KERNEL)([mx.ones(1)] * inputs, launch)


def test_in_place_arrays_must_be_contiguous(emulator: EmulatorBackend) -> None:
    kernel = Kernel("k", ("x",), ("y",), "y[0] = 0;", reference, writes=("x",))
    with pytest.raises(FamilyContractError, match="not contiguous"):
        emulator.build(kernel)([mx.ones((4, 8)).T], LAUNCH)


def test_no_compiler_is_an_error_that_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "find_compiler", lambda: None)
    with pytest.raises(PluginError, match=r"install g\+\+ or clang\+\+|runs on Linux"):
        EmulatorBackend()


class Unrun(KernelRowWriter):
    """Launches nothing: a fence made of what a kernel would be given as `after`."""

    name = "unrun"

    def build(self, kernel: Kernel) -> BuiltKernel:
        return lambda inputs, launch: [inputs[-1].astype(mx.int32)]


@pytest.mark.parametrize("rows", [0, 2])
def test_every_write_waits_for_what_comes_before(rows: int, tmp_path: Path) -> None:
    """Also one that has nothing to write: it stays a link of the chain."""
    writer, arena = Unrun(), mx.zeros((3, 256), dtype=mx.uint32)
    after, ids = [mx.ones(3), mx.erfinv(mx.zeros(3))], mx.ones((rows,), dtype=mx.int32)
    values, tables = mx.ones((rows, 1, 8)), mx.ones((rows, 2), dtype=mx.int32)
    fences = [
        writer.write_tokens(arena, values, ids, ids, TokenWindow(256, 0, 16, 1, 8, 4), after),
        writer.write_runs(arena, values, tables, RunWindow(256, 0, 128), after),
        writer.zero_pages(arena, ids, after),
        writer.copy_pages(arena, ids, ids, after),
    ]
    for fence in fences:
        graph = tmp_path / "graph.dot"
        mx.export_to_dot(str(graph), fence)
        assert "ErfInv" in graph.read_text(encoding="utf-8")
        assert fence.shape == (1,) and fence.dtype == mx.int32


def test_a_fence_joins_every_array(backend: KernelBackend, tmp_path: Path) -> None:
    """What is joined reaches every array through kernels that read it, not through mx.depends."""
    arrays = [mx.ones((3, 4)) + 1, mx.arange(5).astype(mx.bfloat16), mx.zeros((0, 2)), mx.array(True)]
    for joined in (join(arrays), fence_after(arrays)):
        graph = tmp_path / "graph.dot"
        mx.export_to_dot(str(graph), joined)
        text = graph.read_text(encoding="utf-8")
        assert text.count("Slice") >= 3 and "Depends" not in text
    assert (join(arrays).shape, join(arrays).dtype) == ((1,), mx.uint8)
    assert fence_after(arrays).tolist() == [0] and fence_after(arrays).dtype == mx.int32
    assert join([]).tolist() == [0] and join([mx.zeros((0,))]).tolist() == [0]
