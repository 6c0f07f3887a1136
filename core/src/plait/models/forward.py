"""Puts bound sites into an mlx-lm model, so that its own code runs a packed batch.

The batch is one sequence of shape [1, tokens]; the `Step` takes the place of the cache list. A mixer is replaced by a
`SiteModule`, which finds the step where the stock mixer would find its cache; everything around the mixers (norms,
MLPs, experts, scaling) is mlx-lm's. A `Backbone` around the stack of layers keeps only the hidden states whose logits
are wanted, so that the head runs on few rows.
"""

from __future__ import annotations

import inspect
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from plait.errors import CheckpointError
from plait.family import BoundSite
from plait.models.sites import takes_cache
from plait.step import Step


class SiteModule(nn.Module):  # type: ignore[misc]
    """A bound site in the place of the stock mixer, taking its arguments."""

    def __init__(self, name: str, stock: nn.Module, site: BoundSite) -> None:
        super().__init__()
        self._name = name
        self._site = site
        parameters = list(inspect.signature(type(stock).__call__).parameters)[1:]
        self._parameters = frozenset(parameters)
        self._place = parameters.index("cache") - 1  # among the arguments after x

    def __call__(self, x: mx.array, *args: Any, **kwargs: Any) -> mx.array:
        """Run the site; masks are not needed, and an argument that the stock mixer does not have is an error."""
        if not kwargs.keys() <= self._parameters:
            raise TypeError(f"{self._name}: unknown arguments {sorted(kwargs.keys() - self._parameters)}")
        step = kwargs["cache"] if "cache" in kwargs else args[self._place]
        assert isinstance(step, Step), f"{self._name} was called without a step"
        y: mx.array = self._site(x, step)
        return y


class Backbone(nn.Module):  # type: ignore[misc]
    """The stack of layers, keeping the hidden states of `step.logit_tokens` only."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def __call__(self, inputs: mx.array, cache: Any = None, *args: Any, **kwargs: Any) -> mx.array:
        """Run the layers on [1, tokens]; returns [1, wanted, hidden]."""
        hidden: mx.array = self.inner(inputs, cache, *args, **kwargs)
        return hidden[:, cache[0].logit_tokens]

    def __getattr__(self, key: str) -> Any:
        """Stand for the inner module: model code reaches for its embeddings and layers."""
        if key == "inner":
            return super().__getattr__(key)
        return getattr(self["inner"], key)


def _parent(root: nn.Module, path: str) -> tuple[Any, str]:
    """Return what holds the last step of a dotted path, and that step."""
    *steps, last = path.split(".")
    value: Any = root
    for step in steps:
        value = value[int(step)] if isinstance(value, list | tuple) else value[step]
    return value, last


def replace(root: nn.Module, path: str, module: nn.Module) -> None:
    """Put `module` at a dotted path below `root`."""
    parent, last = _parent(root, path)
    if isinstance(parent, list):
        parent[int(last)] = module
    else:
        setattr(parent, last, module)


def wrap_backbone(model: nn.Module) -> None:
    """Put a `Backbone` around the module that holds the layers.

    Raises:
        CheckpointError: the model has no such module of its own.
    """
    count = len(model.layers)
    for path, module in model.named_modules():
        if path and isinstance(module.get("layers"), list) and len(module["layers"]) == count and takes_cache(module):
            replace(model, path, Backbone(module))
            return
    raise CheckpointError(
        f"{type(model).__module__} has no module of its own around its {count} layers; Plait cannot run it."
    )


class Steps(list[Step]):
    """One step for every layer, and for the layer of a kind that a model has none of, which it asks for a mask."""

    def __getitem__(self, index: Any) -> Any:
        """Return the step, whatever the place."""
        return super().__getitem__(index if isinstance(index, slice) else 0)


class Forward:
    """A model whose mixers are bound to pages: packed tokens in, logits out."""

    def __init__(self, model: nn.Module) -> None:
        wrap_backbone(model)
        self._model = model
        self._caches = len(model.layers)

    def __call__(self, tokens: mx.array, step: Step) -> mx.array:
        """Return the logits of `step.logit_tokens`.

        Args:
            tokens: int32 [tokens], the packed batch.
            step: the batch; its writes are collected in it.

        Returns:
            float32 [wanted, vocabulary].
        """
        logits: mx.array = self._model(tokens[None], cache=Steps([step] * self._caches))
        return logits[0].astype(mx.float32)
