"""MLX arrays as NumPy arrays of raw bits, and back. NumPy has no bfloat16, so those bits travel as uint16."""

from __future__ import annotations

from typing import Any

import attrs
import mlx.core as mx
import numpy as np

from plait.errors import FamilyContractError

Bits = np.ndarray[Any, np.dtype[Any]]

_NUMPY: dict[mx.Dtype, type[np.generic]] = {
    mx.bool_: np.bool_,
    mx.int8: np.int8,
    mx.int16: np.int16,
    mx.int32: np.int32,
    mx.int64: np.int64,
    mx.uint8: np.uint8,
    mx.uint16: np.uint16,
    mx.uint32: np.uint32,
    mx.uint64: np.uint64,
    mx.float16: np.float16,
    mx.bfloat16: np.uint16,
    mx.float32: np.float32,
}


@attrs.frozen(eq=False)
class RawArray:
    """An array as a kernel receives it.

    Attributes:
        name: its name in the kernel's text.
        dtype: its MLX dtype.
        bits: C-contiguous NumPy array of the same shape; of the same memory if the kernel writes it in place.
    """

    name: str
    dtype: mx.Dtype
    bits: Bits


def as_input(name: str, array: mx.array) -> RawArray:
    """A contiguous copy of `array`."""
    return RawArray(name, array.dtype, np.array(_viewable(array), order="C"))


def as_in_place(name: str, array: mx.array) -> RawArray:
    """The memory of `array` itself: what is written there, `array` has.

    Raises:
        FamilyContractError: the array is not contiguous, so a GPU would be given a copy.
    """
    bits = np.array(_viewable(array), copy=False)
    if not bits.flags.c_contiguous:
        raise FamilyContractError(
            f"input {name} {array.shape} is written in place but is not contiguous: MLX would hand the kernel a copy"
        )
    return RawArray(name, array.dtype, bits)


def new_output(name: str, shape: tuple[int, ...], dtype: mx.Dtype) -> RawArray:
    """Room for an output."""
    return RawArray(name, dtype, np.empty(shape, _NUMPY[dtype]))


def to_mlx(raw: RawArray) -> mx.array:
    """A copy of the bits as an MLX array of the right dtype."""
    array = mx.array(raw.bits)
    return array.view(raw.dtype) if raw.dtype == mx.bfloat16 else array


def _viewable(array: mx.array) -> mx.array:
    """`array`, evaluated, in a dtype that NumPy has."""
    if array.dtype not in _NUMPY:
        raise FamilyContractError(f"kernels take no {array.dtype} arrays; cast it first")
    viewable = array.view(mx.uint16) if array.dtype == mx.bfloat16 else array
    mx.eval(viewable)
    return viewable
