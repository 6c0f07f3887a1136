"""What a family says about a site's memory: frozen data, no arrays.

`CacheSpec` says *what* a site keeps between tokens; *where* it lies is the plan's business (`plait.plan`), and every
byte is counted here and nowhere else.
"""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Any

import attrs

from plait.errors import FamilyContractError

ITEMSIZE = {"float32": 4, "float16": 2, "bfloat16": 2, "uint32": 4, "int32": 4, "uint8": 1}
"""Bytes of one element of each dtype that may be kept in pages."""


class Growth(StrEnum):
    """How a site's memory grows with the sequence."""

    TOKEN = "token"  # bytes per token: keys and values, latents
    STATE = "state"  # fixed bytes per sequence: recurrent and convolution states


class Resume(StrEnum):
    """Where a cached prefix may be taken up again."""

    TOKEN = "token"  # at any token whose rows are there
    CHECKPOINT = "checkpoint"  # only where a state was kept


@attrs.frozen
class TensorSpec:
    """One tensor that a site keeps.

    Attributes:
        name: for reports and errors.
        shape: per token (growth `token`) or per sequence (growth `state`).
        dtype: a key of `ITEMSIZE`.
        block_axis: growth `token` only: the axis of the page's tensor that counts the block's tokens; a page of B
            tokens holds `shape` with B inserted there (attention: [kv_head, 2, B, head_dim], axis 2).
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    block_axis: int = 0

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return ITEMSIZE[self.dtype]

    @property
    def nbytes(self) -> int:
        """Bytes per token or per sequence."""
        return math.prod(self.shape) * self.itemsize


@attrs.frozen
class CacheSpec:
    """What one site keeps between tokens.

    Attributes:
        growth: per token or per sequence.
        tensors: what is kept; growth `token` takes exactly one tensor.
        block_multiple: growth `token` only: the tokens that a kernel wants together (the `unified` layout aligns its
            blocks to it).
        resume: where a cached prefix may be taken up again.
    """

    growth: Growth
    tensors: tuple[TensorSpec, ...]
    block_multiple: int = 16
    resume: Resume = Resume.TOKEN

    @property
    def nbytes(self) -> int:
        """Bytes per token or per sequence, without any rounding."""
        return sum(t.nbytes for t in self.tensors)


@attrs.frozen
class Site:
    """A place in the model that keeps something between tokens.

    Attributes:
        name: the path from the model's list of layers, as in "layers.3.self_attn".
        layer: index of the layer.
        path: the module's path below its layer.
        module: the stock module (an `mlx.nn.Module`); sizes are read from it, not from the config.
        config: the model's configuration, as a mapping.
        dtype: dtype of the model's activations, a key of `ITEMSIZE`.
        stock_caches: class names of the caches that mlx-lm makes for this layer.
    """

    name: str
    layer: int
    path: str
    module: Any
    config: dict[str, Any]
    dtype: str
    stock_caches: tuple[str, ...] = ()


@attrs.frozen
class Claim:
    """A family's word that a site, and everything below it, is its own.

    Attributes:
        family: the name of a family that `plait_families` returned.
    """

    family: str


def check_spec(spec: object, where: str) -> CacheSpec:
    """Return `spec` if it is sound.

    Args:
        spec: what a family returned for a site.
        where: the family, its distribution and the site, for the error.

    Raises:
        FamilyContractError: not a `CacheSpec`, no bytes, a bad shape, axis or multiple, or an unknown dtype.
    """

    def bad(what: str) -> FamilyContractError:
        return FamilyContractError(f"{where}: {what}. Fix the family's `spec`.")

    if not isinstance(spec, CacheSpec):
        raise bad(f"`spec` returned {type(spec).__name__}, wanted CacheSpec")
    if not isinstance(spec.growth, Growth) or not isinstance(spec.resume, Resume):
        raise bad(f"growth is {spec.growth!r} and resume is {spec.resume!r}; wanted a Growth and a Resume")
    if not isinstance(spec.tensors, tuple) or any(not isinstance(tensor, TensorSpec) for tensor in spec.tensors):
        raise bad(f"tensors is {spec.tensors!r}; wanted a tuple of TensorSpec")
    if not spec.tensors:
        raise bad("the spec has no tensors, so zero bytes: a site that keeps nothing must not be claimed")
    if spec.growth is Growth.TOKEN and len(spec.tensors) != 1:
        raise bad(f"growth token takes one tensor, the spec has {len(spec.tensors)}")
    if not isinstance(spec.block_multiple, int) or spec.block_multiple < 1:
        raise bad(f"block_multiple is {spec.block_multiple}, wanted 1 or more")
    for tensor in spec.tensors:
        if problem := _tensor_problem(tensor):
            raise bad(problem)
    return spec


def _tensor_problem(tensor: TensorSpec) -> str | None:
    """Say what is wrong with a tensor's spec, or return None."""
    name, shape, axis = tensor.name, tensor.shape, tensor.block_axis
    if not isinstance(tensor.dtype, str) or tensor.dtype not in ITEMSIZE:
        return f"tensor {name!r} has unknown dtype {tensor.dtype!r}; known: {', '.join(ITEMSIZE)}"
    if not isinstance(shape, tuple) or not shape or any(not isinstance(n, int) or n < 1 for n in shape):
        return f"tensor {name!r} has shape {shape}: zero bytes or not a shape"
    if not isinstance(axis, int) or not 0 <= axis <= len(shape):
        return f"tensor {name!r}: block_axis {axis} lies outside shape {shape}"
    return None
