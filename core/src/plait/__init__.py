"""Plait: serves hybrid-attention language models on MLX.

Importing this package comes first: on Linux it puts a real BLAS under MLX's CPU build, which binds when MLX loads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from plait import blas

blas.prepare()

if TYPE_CHECKING:
    from plait.engine.llm import LLM as LLM
    from plait.engine.sampling_params import SamplingParams as SamplingParams

__version__ = "0.1.0"
__all__ = ["LLM", "SamplingParams", "__version__"]

_LAZY = {"LLM": "plait.engine.llm", "SamplingParams": "plait.engine.sampling_params"}


def __getattr__(name: str) -> Any:
    """Load the engine when it is first asked for, so that `plait --help` stays quick."""
    if name not in _LAZY:
        raise AttributeError(f"module 'plait' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_LAZY[name]), name)
