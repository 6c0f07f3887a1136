"""The planner against exact plans: vLLM's own numbers (unified) and the design's rules (spanning)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from plait.errors import CapacityError, PlanError
from plait.plan import Layout, plan_layers_file

VECTORS = Path(__file__).parent / "data" / "page_plans.json"
PLANS: list[dict[str, Any]] = json.loads(VECTORS.read_text())["plans"]
LAYER = {"name": "layers.0.full", "growth": "token", "shapes": [[2, 2, 16]], "dtypes": ["float32"]}
PLAN = {"name": "tiny", "layers": [LAYER], "memory_bytes": 10**6, "max_model_len": 64, "prefix_caching": True}


def write(tmp_path: Path, data: object) -> Path:
    path = tmp_path / "layers.json"
    path.write_text(json.dumps(data))
    return path


def test_there_are_fifteen_vectors() -> None:
    assert len(PLANS) == 15


@pytest.mark.parametrize("index", range(15), ids=[plan["name"] for plan in PLANS])
@pytest.mark.parametrize("layout", [Layout.SPANNING, Layout.UNIFIED])
def test_vector(index: int, layout: Layout, tmp_path: Path) -> None:
    plan = PLANS[index]
    wanted = plan["expect_spanning" if layout is Layout.SPANNING else "expect"]
    assert plan_layers_file(write(tmp_path, plan), layout) == [{"name": plan["name"], **wanted}]


def test_whole_file_in_order_and_spanning_by_default() -> None:
    assert plan_layers_file(VECTORS) == [{"name": p["name"], **p["expect_spanning"]} for p in PLANS]


def test_a_list_of_plans_and_the_result_is_json(tmp_path: Path) -> None:
    path = write(tmp_path, PLANS[3:5])
    got = plan_layers_file(path, "unified")
    assert json.loads(json.dumps(got)) == [{"name": p["name"], **p["expect"]} for p in PLANS[3:5]]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"name": None}, "plan 0: field 'name' is None, wanted a text."),
        ({"layers": {}}, "plan 'tiny': field 'layers' is {}, wanted a list of layers."),
        ({"memory_bytes": "8G"}, "plan 'tiny': field 'memory_bytes' is '8G', wanted a whole number."),
        ({"memory_bytes": True}, "plan 'tiny': field 'memory_bytes' is True, wanted a whole number."),
        ({"max_model_len": 0}, "plan 'tiny': field 'max_model_len' is 0, wanted 1 or more."),
        ({"prefix_caching": 1}, "plan 'tiny': field 'prefix_caching' is 1, wanted true or false."),
        ({"layers": [7]}, "plan 'tiny', layer 0: is 7, wanted an object with 'name' and 'growth'."),
    ],
)
def test_malformed_plan(change: dict[str, Any], text: str, tmp_path: Path) -> None:
    path = write(tmp_path, {**PLAN, **change})
    with pytest.raises(PlanError) as error:
        plan_layers_file(path)
    assert str(error.value) == f"{path}, {text}"


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"growth": "both"}, "field 'growth' is 'both', wanted 'token', 'state' or 'none'."),
        ({"shapes": []}, "field 'shapes' has 0 shapes, wanted 1."),
        ({"shapes": [[2], [2]]}, "field 'shapes' has 2 shapes, wanted 1."),
        ({"growth": "state", "shapes": []}, "field 'shapes' has 0 shapes, wanted 1 or more."),
        ({"shapes": [[2, 0]]}, "field 'shapes' has [2, 0], wanted lists of whole numbers of 1 or more."),
        ({"shapes": [16]}, "field 'shapes' has 16, wanted lists of whole numbers of 1 or more."),
        ({"dtypes": []}, "field 'dtypes' has 0 dtypes for 1 shapes, wanted one per shape."),
        ({"dtypes": [[]]}, "field 'dtypes' has [], wanted one of float32, float16, bfloat16, uint32, int32, uint8."),
        ({"block_multiple_of": -1}, "field 'block_multiple_of' is -1, wanted 1 or more."),
    ],
)
def test_malformed_layer(change: dict[str, Any], text: str, tmp_path: Path) -> None:
    path = write(tmp_path, [PLAN, {**PLAN, "name": "second", "layers": [LAYER, {**LAYER, "name": "bad", **change}]}])
    with pytest.raises(PlanError) as error:
        plan_layers_file(path)
    assert str(error.value) == f"{path}, plan 'second', layer 1 'bad': {text}"


@pytest.mark.parametrize("field", ["name", "layers", "memory_bytes", "max_model_len", "prefix_caching"])
def test_missing_field_of_a_plan_is_named(field: str, tmp_path: Path) -> None:
    path = write(tmp_path, {key: value for key, value in PLAN.items() if key != field})
    with pytest.raises(PlanError, match=f"field '{field}' is missing"):
        plan_layers_file(path)


@pytest.mark.parametrize("field", ["name", "growth", "shapes", "dtypes"])
def test_missing_field_of_a_layer_is_named(field: str, tmp_path: Path) -> None:
    layer = {key: value for key, value in LAYER.items() if key != field}
    with pytest.raises(PlanError, match=f"plan 'tiny', layer 0.*field '{field}' is missing"):
        plan_layers_file(write(tmp_path, {**PLAN, "layers": [layer]}))


@pytest.mark.parametrize("data", [[], 5, {"plans": {}}, {"plans": []}])
def test_file_without_plans(data: object, tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="holds no list of plans"):
        plan_layers_file(write(tmp_path, data))


def test_file_that_is_missing_or_no_json(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"none\.json: cannot be read as JSON"):
        plan_layers_file(tmp_path / "none.json")
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(PlanError, match=r"bad\.json: cannot be read as JSON"):
        plan_layers_file(tmp_path / "bad.json")


def test_unknown_layout() -> None:
    with pytest.raises(PlanError, match=r"layout 'paged' is unknown\. Set --layout to one of: spanning, unified\."):
        plan_layers_file(VECTORS, "paged")


def test_errors_of_the_planner_name_the_plan(tmp_path: Path) -> None:
    stateless = {**PLAN, "layers": [{"name": "layers.0.mlp", "growth": "none"}]}
    with pytest.raises(PlanError, match=r"plan 'tiny': the model has no site .* \(1 layers, all stateless\)"):
        plan_layers_file(write(tmp_path, stateless))
    with pytest.raises(PlanError, match=r"plan 'tiny': sites named more than once: layers\.0\.full"):
        plan_layers_file(write(tmp_path, {**PLAN, "layers": [LAYER, LAYER]}))
    with pytest.raises(CapacityError, match="plan 'tiny': one request of max_model_len 100,000 does not fit"):
        plan_layers_file(write(tmp_path, {**PLAN, "max_model_len": 100_000}))
