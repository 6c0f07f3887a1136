"""The backend that tests use: kernels run in the emulator, at once, on the memory of MLX's CPU arrays."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import mlx.core as mx

from plait.errors import PluginError
from plait.kernel import BuiltKernel, Kernel, Launch
from plait_metal.checks import check_call, check_kernel
from plait_metal.emulator.arrays import as_in_place, as_input, new_output, to_mlx
from plait_metal.emulator.compiler import compile_kernel, unavailable_reason
from plait_metal.emulator.launcher import run
from plait_metal.emulator.options import EmulatorOptions
from plait_metal.emulator.source import kernel_text, with_shapes
from plait_metal.row_writer import KernelRowWriter


@attrs.frozen
class EmulatedKernel:
    """A kernel that runs in the emulator when it is called. Arrays in `Kernel.writes` are written where they lie."""

    kernel: Kernel
    options: EmulatorOptions

    def __call__(self, inputs: Sequence[mx.array], launch: Launch) -> Sequence[mx.array]:
        """Run once.

        Raises:
            KernelDefectError: the text does not compile, or a check found a defect.
        """
        check_call(self.kernel, inputs, launch)
        mx.eval(*inputs)
        raw = [
            as_in_place(name, array) if name in self.kernel.writes else as_input(name, array)
            for name, array in zip(self.kernel.inputs, inputs, strict=True)
        ]
        passed = with_shapes(self.kernel, raw)
        outputs = [
            new_output(name, tuple(shape), dtype)
            for name, shape, dtype in zip(self.kernel.outputs, launch.output_shapes, launch.output_dtypes, strict=True)
        ]
        library = compile_kernel(kernel_text(self.kernel, passed, launch), self.kernel.name, self.options)
        run(library, self.kernel, passed, outputs, launch, self.options)
        return [to_mlx(output) for output in outputs]


class EmulatorBackend(KernelRowWriter):
    """Runs kernels and row writers in the emulator.

    Raises:
        PluginError: this machine cannot run it (`unavailable_reason` says why).
    """

    name = "emulator"

    def __init__(self, options: EmulatorOptions | None = None) -> None:
        reason = unavailable_reason()
        if reason is not None:
            raise PluginError(f"plait-metal: {reason}")
        self.options = options or EmulatorOptions()

    def build(self, kernel: Kernel) -> BuiltKernel:
        """The kernel; its text is compiled when the dtypes of a call are known, and kept in the cache folder."""
        check_kernel(kernel)
        return EmulatedKernel(kernel, self.options)
