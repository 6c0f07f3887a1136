"""What the user asked of an engine, checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from plait.errors import PlanError

DTYPES = ("auto", "float32", "bfloat16", "float16")
LAYOUTS = ("spanning", "unified")


@attrs.frozen(kw_only=True)
class Settings:
    """Settings of one engine; the names are vLLM's.

    Attributes:
        model: a directory, a GGUF file, a Hugging Face repository, or the name of a demo.
        dtype: of weights and activations; auto is float32 on CPU and the checkpoint's own elsewhere.
        max_model_len: tokens of prompt and output together; None takes the model's own limit.
        max_num_seqs: requests that run at one time.
        max_num_batched_tokens: tokens of one step; None chooses by device.
        gpu_memory_utilization: part of the memory that the device recommends that weights and pages may take together.
        kv_cache_memory_bytes: bytes for pages; wins over `gpu_memory_utilization`.
        block_size: tokens of a page (`spanning`: 16 or 32), or None.
        layout: how pages are laid out.
        enable_prefix_caching: plan for prefix caching.
        kv_cache_dtype: only "auto", the model's dtype.
        seed: of requests that bring none; None draws one.
        trust_remote_code: taken for compatibility of command lines; no remote code is ever run.
        options: values of the options that plugins added.
    """

    model: str
    dtype: str = "auto"
    max_model_len: int | None = None
    max_num_seqs: int = 32
    max_num_batched_tokens: int | None = None
    gpu_memory_utilization: float = 0.9
    kv_cache_memory_bytes: int | None = None
    block_size: int | None = None
    layout: str = "spanning"
    enable_prefix_caching: bool = False
    kv_cache_dtype: str = "auto"
    seed: int | None = None
    trust_remote_code: bool = False
    options: Mapping[str, Any] = attrs.field(factory=dict)

    def __attrs_post_init__(self) -> None:
        """Refuse what makes no sense. Raises `PlanError` with the name, the value and the choice."""
        _choose("dtype", self.dtype, DTYPES)
        _choose("layout", self.layout, LAYOUTS)
        for name in ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "kv_cache_memory_bytes", "block_size"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise PlanError(f"{_flag(name)} is {value!r}; wanted a whole number of 1 or more.")
        if not isinstance(self.gpu_memory_utilization, int | float) or not 0 < self.gpu_memory_utilization <= 1:
            raise PlanError(
                f"--gpu-memory-utilization is {self.gpu_memory_utilization!r}; wanted more than 0, at most 1."
            )
        if self.kv_cache_dtype != "auto":
            raise PlanError(
                f"--kv-cache-dtype is {self.kv_cache_dtype!r}; only auto (the model's dtype) is supported: "
                "quantised keys and values are not implemented."
            )
        if self.max_num_batched_tokens is not None and self.max_num_batched_tokens < self.max_num_seqs:
            raise PlanError(
                f"--max-num-batched-tokens is {self.max_num_batched_tokens}, less than --max-num-seqs "
                f"{self.max_num_seqs}: a step must hold one token of each running request. Raise the one, or lower the "
                "other."
            )


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _choose(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise PlanError(f"{_flag(name)} is {value!r}; choose one of {', '.join(choices)}.")
