"""The GPU backends: the same kernel text through `mx.fast.metal_kernel` or `mx.fast.cuda_kernel`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import cast

import attrs
import mlx.core as mx

from plait.kernel import BuiltKernel, Kernel, Launch
from plait_metal.checks import check_call, check_kernel
from plait_metal.resources import read_text
from plait_metal.row_writer import KernelRowWriter

Run = Callable[..., Sequence[mx.array]]
"""What MLX's `metal_kernel` and `cuda_kernel` return."""


@attrs.frozen
class GpuKernel:
    """A kernel that MLX compiles for the GPU when it first runs, once per set of dtypes and template values."""

    kernel: Kernel
    run: Run

    def __call__(self, inputs: Sequence[mx.array], launch: Launch) -> Sequence[mx.array]:
        """Enqueue one run; nothing is waited for."""
        check_call(self.kernel, inputs, launch)
        return self.run(
            inputs=list(inputs),
            template=list(launch.template.items()),
            grid=launch.grid,
            threadgroup=launch.threadgroup,
            output_shapes=list(launch.output_shapes),
            output_dtypes=list(launch.output_dtypes),
        )


class GpuBackend(KernelRowWriter):
    """What the GPU backends share; they differ in the MLX function that takes the text."""

    def __init__(self) -> None:
        self._built: dict[tuple[str, str, str], BuiltKernel] = {}

    def build(self, kernel: Kernel) -> BuiltKernel:
        """The kernel, from the cache if one of this name and text was built before.

        Raises:
            FamilyContractError: the record's names are unusable.
        """
        key = (kernel.name, kernel.header, kernel.source)
        if key not in self._built:
            check_kernel(kernel)
            self._built[key] = GpuKernel(kernel, self._take(kernel))
        return self._built[key]

    @abstractmethod
    def _take(self, kernel: Kernel) -> Run:
        """Hand the text to MLX."""


class MetalBackend(GpuBackend):
    """Apple GPUs."""

    name = "metal"

    def _take(self, kernel: Kernel) -> Run:
        run = mx.fast.metal_kernel(
            name=kernel.name,
            input_names=list(kernel.inputs),
            output_names=list(kernel.outputs),
            source=kernel.source,
            header=kernel.header,
        )
        return cast(Run, run)


class CudaBackend(GpuBackend):
    """NVIDIA GPUs, through the prelude that gives CUDA the words of the dialect."""

    name = "cuda"

    def _take(self, kernel: Kernel) -> Run:
        run = mx.fast.cuda_kernel(
            name=kernel.name,
            input_names=list(kernel.inputs),
            output_names=list(kernel.outputs),
            source=kernel.source,
            header=read_text("cuda", "prelude.h") + kernel.header,
        )
        return cast(Run, run)
