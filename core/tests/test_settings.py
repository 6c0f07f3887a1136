"""Settings of an engine: the ranges, and the whole text of every refusal."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from plait.errors import PlanError
from plait.settings import Settings


def test_defaults() -> None:
    assert attrs.asdict(Settings(model="m")) == {
        "model": "m",
        "dtype": "auto",
        "max_model_len": None,
        "max_num_seqs": 32,
        "max_num_batched_tokens": None,
        "gpu_memory_utilization": 0.9,
        "kv_cache_memory_bytes": None,
        "block_size": None,
        "layout": "spanning",
        "enable_prefix_caching": False,
        "kv_cache_dtype": "auto",
        "seed": None,
        "trust_remote_code": False,
        "options": {},
    }


@pytest.mark.parametrize(
    "values",
    [
        {"dtype": "bfloat16"},
        {"layout": "unified", "block_size": 7},
        {"max_model_len": 1, "max_num_seqs": 1, "max_num_batched_tokens": 1},
        {"max_num_seqs": 32, "max_num_batched_tokens": 32},
        {"gpu_memory_utilization": 1},
        {"gpu_memory_utilization": 1e-9},
        {"kv_cache_memory_bytes": 1},
    ],
)
def test_what_is_taken(values: dict[str, Any]) -> None:
    settings = Settings(model="m", **values)
    assert {name: getattr(settings, name) for name in values} == values


NUMBERS = ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "kv_cache_memory_bytes", "block_size")


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", [0, -1, True, 1.5, "8"])
def test_numbers_that_are_none(name: str, value: Any) -> None:
    with pytest.raises(PlanError) as caught:
        Settings(model="m", **{name: value})
    flag = "--" + name.replace("_", "-")
    assert str(caught.value) == f"{flag} is {value!r}; wanted a whole number of 1 or more."


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"dtype": "int8"}, "--dtype is 'int8'; choose one of auto, float32, bfloat16, float16."),
        ({"dtype": None}, "--dtype is None; choose one of auto, float32, bfloat16, float16."),
        ({"layout": "paged"}, "--layout is 'paged'; choose one of spanning, unified."),
        (
            {"gpu_memory_utilization": 0},
            "--gpu-memory-utilization is 0; wanted more than 0, at most 1.",
        ),
        (
            {"gpu_memory_utilization": 1.5},
            "--gpu-memory-utilization is 1.5; wanted more than 0, at most 1.",
        ),
        (
            {"gpu_memory_utilization": float("nan")},
            "--gpu-memory-utilization is nan; wanted more than 0, at most 1.",
        ),
        (
            {"kv_cache_dtype": "fp8"},
            "--kv-cache-dtype is 'fp8'; only auto (the model's dtype) is supported: quantised keys and values are not "
            "implemented.",
        ),
        (
            {"max_num_seqs": 8, "max_num_batched_tokens": 7},
            "--max-num-batched-tokens is 7, less than --max-num-seqs 8: a step must hold one token of each running "
            "request. Raise the one, or lower the other.",
        ),
    ],
)
def test_refusals(values: dict[str, Any], text: str) -> None:
    with pytest.raises(PlanError) as caught:
        Settings(model="m", **values)
    assert str(caught.value) == text


@pytest.mark.parametrize("value", ["0.9", None])
def test_a_part_of_the_memory_that_is_no_number(value: Any) -> None:
    with pytest.raises(PlanError, match="--gpu-memory-utilization"):
        Settings(model="m", gpu_memory_utilization=value)


def test_settings_do_not_change() -> None:
    settings = Settings(model="m")
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        settings.dtype = "float16"  # type: ignore[misc]
    with pytest.raises(TypeError):
        Settings("m")  # type: ignore[misc]
    with pytest.raises(TypeError, match="max_num_sequences"):
        Settings(model="m", max_num_sequences=3)  # type: ignore[call-arg]


def test_every_setting_is_documented() -> None:
    text = Settings.__doc__ or ""
    assert [field.name for field in attrs.fields(Settings) if f"        {field.name}: " not in text] == []
