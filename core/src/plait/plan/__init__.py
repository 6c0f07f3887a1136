"""The plan: where every byte of a sequence's memory lies, decided before weights load.

`make_plan` turns the sites of a model and a request into a frozen `Plan`: page size, page count, tables, arenas and
one `Binding` per site. All byte and page arithmetic of the project stands here; nothing below the plan repeats it.
"""

from __future__ import annotations

from plait.plan.arena import ArenaPlan
from plait.plan.binding import Binding
from plait.plan.budget import arena_budget
from plait.plan.layers_file import plan_layers_file
from plait.plan.make import make_plan
from plait.plan.plan import Mode, Plan
from plait.plan.report import plan_json, plan_table
from plait.plan.request import Layout, PlanRequest
from plait.plan.role import LayerRole
from plait.plan.site import SiteSpec
from plait.plan.sizes import parse_bytes
from plait.plan.table import TablePlan
from plait.plan.waste import Waste

__all__ = [
    "ArenaPlan",
    "Binding",
    "LayerRole",
    "Layout",
    "Mode",
    "Plan",
    "PlanRequest",
    "SiteSpec",
    "TablePlan",
    "Waste",
    "arena_budget",
    "make_plan",
    "parse_bytes",
    "plan_json",
    "plan_layers_file",
    "plan_table",
]
