"""Plans for lists of layers that stand in a file, without any model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import attrs

from plait.errors import CapacityError, PlanError
from plait.plan.make import make_plan
from plait.plan.plan import Plan
from plait.plan.request import Layout, PlanRequest
from plait.plan.role import LayerRole
from plait.plan.site import SiteSpec
from plait.spec import ITEMSIZE, CacheSpec, Growth, Resume, TensorSpec

STATELESS = "none"
LENGTHS = (12, 100, 1000, 10000)
"""Tokens of the requests whose number is told."""


@attrs.frozen
class Entry:
    """A part of the file: its fields, and where it stands, for errors.

    Attributes:
        where: as in "layers.json, plan 'tiny', layer 3 'layers.3.full'".
        fields: the JSON object.
    """

    where: str
    fields: dict[str, Any]

    def bad(self, field: str, what: str) -> PlanError:
        """The error for one field."""
        return PlanError(f"{self.where}: field {field!r} {what}.")

    def get(self, field: str, kind: type, wanted: str) -> Any:
        """The field's value, which must be there and of the kind."""
        if field not in self.fields:
            raise self.bad(field, f"is missing, wanted {wanted}")
        value = self.fields[field]
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise self.bad(field, f"is {value!r}, wanted {wanted}")
        return value

    def count(self, field: str, default: int | None = None) -> int:
        """The field's value, a whole number of 1 or more."""
        if default is not None and field not in self.fields:
            return default
        value: int = self.get(field, int, "a whole number")
        if value < 1:
            raise self.bad(field, f"is {value}, wanted 1 or more")
        return value


def plan_layers_file(path: Path, layout: Layout | str = Layout.SPANNING) -> list[dict[str, Any]]:
    """Plan every layer list in a JSON file.

    The file holds one plan, a list of plans, or an object with the list under "plans". A plan has "name", "layers",
    "memory_bytes", "max_model_len" and "prefix_caching"; a layer has "name", "growth" ("token", "state" or "none"),
    and unless that is "none" also "shapes" (per token or per sequence), "dtypes", and for growth token
    "block_multiple_of" (16 if left out).

    Returns:
        Per plan: its name and its numbers, in JSON values.

    Raises:
        PlanError: the file, or the field of a plan or layer that is named, is not as said; or no such plan exists.
        CapacityError: a plan's max_model_len does not fit its memory.
    """
    return [_plan_one(entry, layout) for entry in _read(path)]


def _read(path: Path) -> list[Entry]:
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise PlanError(f"{path}: cannot be read as JSON: {error}. Give a file of layer lists to --layers.") from None
    plans = data.get("plans", [data]) if isinstance(data, dict) else data
    if not isinstance(plans, list) or not plans:
        raise PlanError(f"{path}: field 'plans' holds no list of plans. Give one plan, a list, or {{'plans': [...]}}.")
    entries = []
    for index, fields in enumerate(plans):
        if not isinstance(fields, dict):
            raise PlanError(f"{path}, plan {index}: is {fields!r}, wanted an object with 'name' and 'layers'.")
        name = Entry(f"{path}, plan {index}", fields).get("name", str, "a text")
        entries.append(Entry(f"{path}, plan {name!r}", fields))
    return entries


def _plan_one(entry: Entry, layout: Layout | str) -> dict[str, Any]:
    layers = [
        _layer(entry, index, fields) for index, fields in enumerate(entry.get("layers", list, "a list of layers"))
    ]
    request = {
        "max_model_len": entry.count("max_model_len"),
        "memory_bytes": entry.count("memory_bytes"),
        "enable_prefix_caching": entry.get("prefix_caching", bool, "true or false"),
    }
    sites = [site for _, site in layers if site is not None]
    try:
        plan = make_plan(sites, PlanRequest(layout=layout, max_num_seqs=1, **request), [role for role, _ in layers])
    except (PlanError, CapacityError) as error:
        raise type(error)(f"{entry.where}: {error}") from None
    numbers = _spanning_numbers(plan) if plan.layout is Layout.SPANNING else _unified_numbers(plan)
    return {"name": entry.fields["name"], **numbers}


def _layer(plan: Entry, index: int, fields: Any) -> tuple[LayerRole, SiteSpec | None]:
    where = f"{plan.where}, layer {index}"
    if not isinstance(fields, dict):
        raise PlanError(f"{where}: is {fields!r}, wanted an object with 'name' and 'growth'.")
    name = Entry(where, fields).get("name", str, "a text")
    entry = Entry(f"{where} {name!r}", fields)
    growth = entry.get("growth", str, "'token', 'state' or 'none'")
    if growth == STATELESS:
        return LayerRole.STATELESS, None
    if growth not in [known.value for known in Growth]:
        raise entry.bad("growth", f"is {growth!r}, wanted 'token', 'state' or 'none'")
    return LayerRole(growth), SiteSpec(name, _spec(entry, Growth(growth)))


def _spec(entry: Entry, growth: Growth) -> CacheSpec:
    shapes = entry.get("shapes", list, "a list of shapes")
    dtypes = entry.get("dtypes", list, "a list of dtypes")
    if not shapes or (growth is Growth.TOKEN and len(shapes) != 1):
        raise entry.bad("shapes", f"has {len(shapes)} shapes, wanted {'1' if growth is Growth.TOKEN else '1 or more'}")
    if len(dtypes) != len(shapes):
        raise entry.bad("dtypes", f"has {len(dtypes)} dtypes for {len(shapes)} shapes, wanted one per shape")
    for shape in shapes:
        if not isinstance(shape, list) or not shape or any(type(n) is not int or n < 1 for n in shape):
            raise entry.bad("shapes", f"has {shape!r}, wanted lists of whole numbers of 1 or more")
    for dtype in dtypes:
        if dtype not in list(ITEMSIZE):
            raise entry.bad("dtypes", f"has {dtype!r}, wanted one of {', '.join(ITEMSIZE)}")
    tensors = tuple(
        TensorSpec(f"tensor{index}", tuple(shape), dtype)
        for index, (shape, dtype) in enumerate(zip(shapes, dtypes, strict=True))
    )
    if growth is Growth.STATE:
        return CacheSpec(growth, tensors, resume=Resume.CHECKPOINT)
    return CacheSpec(growth, tensors, block_multiple=entry.count("block_multiple_of", default=16))


def _spanning_numbers(plan: Plan) -> dict[str, Any]:
    return {
        "block_size": plan.block_size,
        "page_bytes": plan.page_bytes,
        "state_run_bytes": plan.run_bytes,
        "pages_per_state": plan.state_pages,
        "num_pages": plan.num_pages,
        "requests_that_fit": {str(tokens): plan.requests_that_fit(tokens) for tokens in LENGTHS},
    }


def _unified_numbers(plan: Plan) -> dict[str, Any]:
    states = [binding.spec.nbytes for binding in plan.bindings if binding.spec.growth is Growth.STATE]
    return {
        "block_size": plan.block_size,
        "page_bytes": plan.page_bytes,
        "mode": plan.mode.value,
        "groups": [{"growth": table.growth.value, "layers": list(table.sites)} for table in plan.tables],
        "bytes_per_block": plan.page_id_bytes,
        "num_blocks": plan.num_pages,
        "state_bytes": list(dict.fromkeys(states)),
    }
