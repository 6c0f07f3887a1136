"""Brings loaded weights into the form that the device runs best."""

from __future__ import annotations

import os

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.models.switch_layers import QuantizedSwitchLinear, SwitchLinear
from mlx_lm.utils import dequantize_model, get_total_parameters

from plait.errors import CheckpointError
from plait.memory.view import DTYPES

QUANTISED = (nn.QuantizedLinear, nn.QuantizedEmbedding, QuantizedSwitchLinear)
SPARE = 0.8  # of the free memory that dequantised weights may take


class UpcastSwitchLinear(SwitchLinear):  # type: ignore[misc]
    """Experts in float32 within a 16-bit model: MLX's gathered product is float32 only on CPU."""

    def __call__(self, x: mx.array, indices: mx.array, sorted_indices: bool = False) -> mx.array:
        """See `SwitchLinear`; takes and returns the model's dtype."""
        out: mx.array = super().__call__(x.astype(mx.float32), indices, sorted_indices=sorted_indices)
        return out.astype(x.dtype)


def settle_weights(model: nn.Module, dtype: str) -> list[str]:
    """Convert the weights in place and evaluate them; returns lines that say what was converted and why.

    Floating-point weights take `dtype`, but where the model keeps some in float32 by itself. On CPU quantised weights
    are dequantised if memory allows, and the experts of a 16-bit model are kept in float32.

    Raises:
        CheckpointError: the weights cannot be read.
    """
    on_cpu = mx.default_device() == mx.cpu
    notes = []
    if on_cpu:
        notes += _dequantise(model, dtype)
    _cast(model, DTYPES[dtype])
    if on_cpu and dtype != "float32":
        notes += _upcast_experts(model, dtype)
    try:
        mx.eval(model.parameters())
    except RuntimeError as error:
        raise CheckpointError(f"the weights cannot be read: {error}. Fetch the checkpoint again.") from error
    return notes


def _cast(model: nn.Module, dtype: mx.Dtype) -> None:
    wanted = getattr(model, "cast_predicate", lambda _: True)
    weights = [
        (name, value.astype(dtype) if mx.issubdtype(value.dtype, mx.floating) and wanted(name) else value)
        for name, value in tree_flatten(model.parameters())
    ]
    model.update(tree_unflatten(weights))


def _dequantise(model: nn.Module, dtype: str) -> list[str]:
    count = sum(isinstance(module, QUANTISED) for _, module in model.named_modules())
    if not count:
        return []
    need = get_total_parameters(model) * DTYPES[dtype].size
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if "SC_AVPHYS_PAGES" in os.sysconf_names else need
    if need > SPARE * free:
        return [
            f"{count} quantised layers stay quantised: dequantised they take {need:,} bytes and {free:,} are free; "
            "MLX's quantised products are slow on CPU"
        ]
    dequantize_model(model)
    return [f"{count} quantised layers dequantised to {dtype}: MLX's quantised products are slow on CPU"]


def _upcast_experts(model: nn.Module, dtype: str) -> list[str]:
    layers = [module for _, module in model.named_modules() if type(module) is SwitchLinear]
    for module in layers:
        module.update({name: value.astype(mx.float32) for name, value in module.parameters().items()})
        module.__class__ = UpcastSwitchLinear
    if not layers:
        return []
    return [
        f"{len(layers)} expert layers kept in float32 beside {dtype}: MLX multiplies experts in float32 only on CPU"
    ]
