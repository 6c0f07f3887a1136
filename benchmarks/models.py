"""The checkpoints of the comparison, in the form that each side takes."""

from __future__ import annotations

import json
from pathlib import Path

import attrs
import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten
from mlx_lm.models import llama
from mlx_lm.utils import dequantize_model

from plait.models.demo import fetch_demo
from plait.models.gguf import GgufCheckpoint
from plait.testing.checkpoints import build_checkpoint


@attrs.frozen
class Model:
    """One model, three times.

    Attributes:
        plait: what Plait is given.
        stock: what mlx-lm is given in a process of its own: what its user would run.
        same: what mlx-lm is given in Plait's process: the weights as Plait holds them.
    """

    plait: str
    stock: Path
    same: Path


def prepare(name: str, folder: Path) -> Model:
    """Return a model by name, building or fetching it."""
    if name == "demo":
        return _demo(folder)
    path = Path(name) if Path(name).is_dir() else build_checkpoint(name, folder)
    return Model(str(path), path, path)


def _demo(folder: Path) -> Model:
    checkpoint = GgufCheckpoint(fetch_demo())
    model = llama.Model(llama.ModelArgs.from_dict(checkpoint.config))
    nn.quantize(model, class_predicate=lambda path, _: checkpoint.quantization(path) or False)
    model.load_weights(list(checkpoint.load_weights().items()))
    quantised = {
        path: checkpoint.quantization(path) for path, _ in model.named_modules() if checkpoint.quantization(path)
    }
    stock = _save(
        model, dict(checkpoint.config, quantization={"group_size": 32, "bits": 4, **quantised}), folder / "stock"
    )
    dequantize_model(model)
    model.set_dtype(mx.float32)
    return Model("demo", stock, _save(model, checkpoint.config, folder / "float32"))


def _save(model: nn.Module, config: dict[str, object], path: Path) -> Path:
    path.mkdir()
    mx.save_safetensors(
        str(path / "model.safetensors"), dict(tree_flatten(model.parameters())), metadata={"format": "mlx"}
    )
    (path / "config.json").write_text(json.dumps(config))
    return path
