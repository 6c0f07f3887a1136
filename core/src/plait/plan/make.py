"""From sites and a request to a plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import attrs

from plait.errors import CapacityError, PlanError
from plait.plan.arena import ArenaPlan
from plait.plan.geometry import Geometry
from plait.plan.plan import Mode, Plan
from plait.plan.request import Layout, PlanRequest
from plait.plan.role import LayerRole
from plait.plan.site import SiteSpec
from plait.plan.spanning import lay_spanning
from plait.plan.text import names_text
from plait.plan.unified import lay_unified
from plait.spec import Growth


def make_plan(sites: Sequence[SiteSpec], request: PlanRequest, roles: Sequence[LayerRole | str] = ()) -> Plan:
    """Lay out a model's memory. Pure arithmetic: no arrays, no device.

    Args:
        sites: every site of the model, in layer, then definition order; their specs checked by `check_spec`.
        request: layout, limits and budget.
        roles: one per layer, for the report.

    Raises:
        PlanError: no site, one name twice, or token sites that the layout cannot hold together.
        CapacityError: one request of max_model_len does not fit the budget.
    """
    _check_sites(sites, roles)
    asked = request.asked_block
    geometry = lay_spanning(sites, asked) if request.layout is Layout.SPANNING else lay_unified(sites, asked)
    num_pages, notes = _count_pages(geometry, request)
    has_state = any(site.spec.growth is Growth.STATE for site in sites)
    plan = Plan(
        layout=request.layout,
        mode=Mode.ALIGN if request.enable_prefix_caching and has_state else Mode.NONE,
        block_size=geometry.block_size,
        kernel_block=geometry.kernel_block,
        page_bytes=geometry.page_bytes,
        num_pages=num_pages,
        arenas=(ArenaPlan(num_pages, geometry.page_bytes),) * geometry.num_arenas,
        tables=geometry.tables,
        bindings=geometry.bindings,
        roles=tuple(LayerRole(role) for role in roles),
        request=request,
        notes=geometry.notes + notes,
    )
    if plan.pages_for(request.max_model_len) >= num_pages:
        raise CapacityError(_too_long(plan))
    if plan.max_num_seqs < request.max_num_seqs:
        note = f"max_num_seqs lowered from {request.max_num_seqs} to {plan.max_num_seqs}: {_seqs_reason(plan)}"
        plan = attrs.evolve(plan, notes=(*plan.notes, note))
    return plan


def _check_sites(sites: Sequence[SiteSpec], roles: Sequence[LayerRole | str]) -> None:
    if not sites:
        layers = f" ({len(roles)} layers, all stateless)" if roles else ""
        raise PlanError(
            f"the model has no site that keeps anything between tokens{layers}, so there is nothing to plan. "
            f"Install the plugin that owns its layers: `plait doctor` lists what is installed and what was set aside."
        )
    counts = Counter(site.name for site in sites)
    twice = [name for name, count in counts.items() if count > 1]
    if twice:
        raise PlanError(f"sites named more than once: {names_text(twice)}. Every site needs a name of its own.")


def _count_pages(geometry: Geometry, request: PlanRequest) -> tuple[int, tuple[str, ...]]:
    """Pages that the budget holds, capped by the device's largest buffer."""
    if request.memory_bytes is None:
        each = sum(table.pages_for(request.max_model_len) for table in geometry.tables)
        wanted = 1 + request.max_num_seqs * each
    else:
        wanted = request.memory_bytes // (geometry.page_bytes * geometry.num_arenas)
    largest = request.max_buffer_bytes
    if largest is None or wanted * geometry.page_bytes <= largest:
        return wanted, ()
    capped = largest // geometry.page_bytes
    return capped, (f"pages capped from {wanted:,} to {capped:,}: the device's largest buffer is {largest:,} bytes",)


def _too_long(plan: Plan) -> str:
    """The text of the error for a max_model_len that does not fit."""
    tokens = plan.request.max_model_len
    needed = (plan.pages_for(tokens) + 1) * plan.page_id_bytes
    budget = plan.request.memory_bytes
    fits = plan.max_tokens_that_fit()
    one = (
        f"one request of max_model_len {tokens:,} does not fit: it needs {needed:,} bytes (states "
        f"{plan.state_bytes:,} per sequence, {plan.bytes_per_token:,} per token, in {plan.pages_for(tokens):,} pages "
        f"of {plan.page_id_bytes:,} and the null page), and {plan.nbytes:,} bytes in {plan.num_pages:,} pages are "
        f"available"
    )
    shorter = f"Lower --max-model-len to {fits} or less" if fits else "No --max-model-len is short enough"
    largest = plan.request.max_buffer_bytes
    if largest is not None and (plan.pages_for(tokens) + 1) * plan.page_bytes > largest:
        more = f"; more memory cannot help: the device's largest buffer is {largest:,} bytes"
    else:
        more = f"{', or' if fits else ':'} raise --kv-cache-memory-bytes to {needed} or more"
    of_budget = "" if budget is None else f" of a budget of {budget:,}"
    return f"{one}{of_budget}. {shorter}{more}."


def _seqs_reason(plan: Plan) -> str:
    return (
        f"a sequence takes {plan.bytes_of(1):,} bytes at least (states {plan.state_bytes:,}), "
        f"and {plan.num_pages - 1:,} pages of {plan.page_id_bytes:,} bytes are there"
    )
