"""What a family may say about a site's memory, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import pytest

from plait.errors import FamilyContractError
from plait.spec import ITEMSIZE, CacheSpec, Growth, Resume, TensorSpec, check_spec

WHERE = "family 'wave' of plugin wave (plait-wave 1.2), site layers.0.mixer"


def tensor(**changes: Any) -> TensorSpec:
    return TensorSpec(**{"name": "kv", "shape": (2, 2, 8), "dtype": "float32", "block_axis": 2, **changes})


def spec(*tensors: Any, growth: Any = Growth.TOKEN, **fields: Any) -> CacheSpec:
    return CacheSpec(growth, tensors or (tensor(),), **fields)


@pytest.mark.parametrize(
    "good",
    [
        spec(),
        spec(tensor(shape=(576,), block_axis=0)),
        spec(tensor(shape=(576,), block_axis=1)),
        spec(tensor(dtype="bfloat16"), block_multiple=64, resume=Resume.TOKEN),
        spec(tensor(), tensor(name="other", dtype="uint8"), growth=Growth.STATE, resume=Resume.CHECKPOINT),
        spec(block_multiple=1),
    ],
)
def test_sound_specs_come_back_as_they_are(good: CacheSpec) -> None:
    assert check_spec(good, WHERE) is good
    assert hash(good) == hash(good)


@pytest.mark.parametrize("dtype", ITEMSIZE)
def test_bytes(dtype: str) -> None:
    size = {"float32": 4, "float16": 2, "bfloat16": 2, "uint32": 4, "int32": 4, "uint8": 1}[dtype]
    one = tensor(shape=(3, 5, 7), dtype=dtype)
    assert (one.itemsize, one.nbytes) == (size, 105 * size)
    both = spec(one, tensor(shape=(2,), dtype="float32"), growth=Growth.STATE)
    assert both.nbytes == 105 * size + 8


@pytest.mark.parametrize(
    ("bad", "what"),
    [
        (None, "`spec` returned NoneType, wanted CacheSpec"),
        ({"growth": "token"}, "`spec` returned dict, wanted CacheSpec"),
        (
            CacheSpec(Growth.STATE, ()),
            "the spec has no tensors, so zero bytes: a site that keeps nothing must not be claimed",
        ),
        (spec(tensor(), tensor()), "growth token takes one tensor, the spec has 2"),
        (spec(block_multiple=0), "block_multiple is 0, wanted 1 or more"),
        (
            spec(tensor(dtype="float64")),
            "tensor 'kv' has unknown dtype 'float64'; known: float32, float16, bfloat16, uint32, int32, uint8",
        ),
        (spec(tensor(shape=())), "tensor 'kv' has shape (): zero bytes or not a shape"),
        (spec(tensor(shape=(2, 0))), "tensor 'kv' has shape (2, 0): zero bytes or not a shape"),
        (spec(tensor(shape=(2, -1))), "tensor 'kv' has shape (2, -1): zero bytes or not a shape"),
        (spec(tensor(shape=(2, 1.5))), "tensor 'kv' has shape (2, 1.5): zero bytes or not a shape"),
        (spec(tensor(block_axis=4)), "tensor 'kv': block_axis 4 lies outside shape (2, 2, 8)"),
        (spec(tensor(block_axis=-1)), "tensor 'kv': block_axis -1 lies outside shape (2, 2, 8)"),
    ],
)
def test_what_is_unsound_is_refused_with_its_place(bad: object, what: str) -> None:
    with pytest.raises(FamilyContractError) as caught:
        check_spec(bad, WHERE)
    assert str(caught.value) == f"{WHERE}: {what}. Fix the family's `spec`."


WRONG_TYPES = {
    "growth is equal to Growth.TOKEN, but would be laid out as a state": spec(growth="token"),
    "two tensors per token by another name": spec(tensor(), tensor(), growth="token"),
    "unknown growth": spec(growth="paged"),
    "resume": spec(resume="token"),
    "a list cannot be hashed, which grouping needs": spec(tensor(shape=[2, 2, 8])),
    "tensors in a list": CacheSpec(Growth.TOKEN, [tensor()]),  # type: ignore[arg-type]
    "a tensor that is none": spec({"name": "kv"}),
    "block multiple in a text": spec(block_multiple="16"),
    "no block multiple": spec(block_multiple=None),
    "no block axis": spec(tensor(block_axis=None)),
    "no dtype": spec(tensor(dtype=None)),
}


@pytest.mark.parametrize("what", WRONG_TYPES)
def test_values_of_a_wrong_type_are_refused_and_not_taken_for_something_else(what: str) -> None:
    with pytest.raises(FamilyContractError) as caught:
        check_spec(WRONG_TYPES[what], WHERE)
    assert str(caught.value).startswith(f"{WHERE}: ")


def test_names_of_growth_and_resume() -> None:
    assert [growth.value for growth in Growth] == ["token", "state"]
    assert [resume.value for resume in Resume] == ["token", "checkpoint"]
    assert math.prod(tensor().shape) * tensor().itemsize == 128
