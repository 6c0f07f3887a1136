"""What the entry point `plait.v1: metal` registers."""

from __future__ import annotations

import mlx.core as mx

from plait.hooks import hookimpl
from plait.kernel import KernelBackend
from plait_metal.backend import CudaBackend, MetalBackend


@hookimpl
def plait_kernel_backend() -> KernelBackend | None:
    """The backend of the GPU that MLX computes on by default, or None on a CPU.

    A GPU that is present but not the default device is left alone: kernels must run in the same stream as the
    operations around them, for their in-place writes are ordered within it.
    """
    if mx.default_device().type != mx.gpu:
        return None
    if mx.metal.is_available():
        return MetalBackend()
    if mx.cuda.is_available():
        return CudaBackend()
    return None
