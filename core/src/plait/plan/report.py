"""The plan as people and programs read it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from plait.plan.binding import Binding
from plait.plan.plan import Plan
from plait.plan.request import Layout
from plait.plan.text import bytes_text, spec_text
from plait.spec import CacheSpec, Growth

Row = tuple[str, ...]


def plan_table(plan: Plan, families: Mapping[str, str] | None = None) -> str:
    """The plan as plain text: its sites, its numbers, its warnings.

    Args:
        plan: what to show.
        families: the family of each site by the site's name; a site without one shows "-".
    """
    sites = [("sites", "growth", "family", "keeps", "bytes", "first"), *site_rows(plan, families or {})]
    facts = [*fact_rows(plan), *(("note", note) for note in plan.notes)]
    return "\n".join([*_columns(sites), "", *_columns(facts)])


def site_rows(plan: Plan, families: Mapping[str, str]) -> list[Row]:
    """One row for all sites of one growth, family and spec: how many, growth, family, tensors, bytes, first name."""
    groups: dict[tuple[str, CacheSpec], list[Binding]] = {}
    for binding in plan.bindings:
        groups.setdefault((families.get(binding.site, "-"), binding.spec), []).append(binding)
    return [
        (str(len(same)), spec.growth.value, family, spec_text(spec), bytes_text(spec), same[0].site)
        for (family, spec), same in groups.items()
    ]


def fact_rows(plan: Plan) -> list[Row]:
    """The plan's numbers, as rows of a name and a text."""
    tokens = plan.request.max_model_len
    caching = plan.request.enable_prefix_caching
    rows: list[Row] = [("layers", _layers(plan))] if plan.roles else []
    rows += [
        ("layout", f"{plan.layout.value}, mode {plan.mode.value}, prefix caching {'on' if caching else 'off'}"),
        ("block", _block(plan)),
        ("page", _page(plan)),
        ("pages", _pages(plan)),
        ("state", _state(plan)),
    ]
    if caching:
        rows.append(("smallest cacheable prefix", f"{plan.smallest_cacheable_prefix} tokens"))
    rows += [
        (f"one sequence of {tokens:,} tokens", f"{plan.bytes_of(tokens):,} bytes, {plan.pages_for(tokens):,} pages"),
        (f"at once, of {tokens:,} tokens each", f"{plan.requests_that_fit(tokens):,} sequences"),
        ("sequences that may run at once", f"{plan.max_num_seqs:,} of {plan.request.max_num_seqs:,} asked"),
    ]
    return rows


def plan_json(plan: Plan, families: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The plan as a dict of JSON values; bytes, pages and tokens are whole numbers."""
    tokens = plan.request.max_model_len
    families = families or {}
    return {
        "layout": plan.layout.value,
        "mode": plan.mode.value,
        "block_size": plan.block_size,
        "kernel_block": plan.kernel_block,
        "page_bytes": plan.page_bytes,
        "num_pages": plan.num_pages,
        "nbytes": plan.nbytes,
        "bytes_per_token": plan.bytes_per_token,
        "state_bytes": plan.state_bytes,
        "state_run_bytes": plan.run_bytes,
        "state_pages": plan.state_pages,
        "smallest_cacheable_prefix": plan.smallest_cacheable_prefix,
        "max_num_seqs": plan.max_num_seqs,
        "bytes_of_max_model_len": plan.bytes_of(tokens),
        "requests_of_max_model_len": plan.requests_that_fit(tokens),
        "max_tokens_that_fit": plan.max_tokens_that_fit(),
        "waste": attrs.asdict(plan.waste),
        "arenas": [{"num_pages": a.num_pages, "page_bytes": a.page_bytes, "nbytes": a.nbytes} for a in plan.arenas],
        "tables": [
            {"growth": t.growth.value, "block": t.block, "pages": t.pages, "sites": list(t.sites)} for t in plan.tables
        ],
        "sites": [_site_json(binding, families) for binding in plan.bindings],
        "roles": [role.value for role in plan.roles],
        "request": {**attrs.asdict(plan.request), "layout": plan.request.layout.value},
        "notes": list(plan.notes),
    }


def _site_json(binding: Binding, families: Mapping[str, str]) -> dict[str, Any]:
    spec = binding.spec
    return {
        "name": binding.site,
        "family": families.get(binding.site),
        "growth": spec.growth.value,
        "tensors": [{"name": t.name, "shape": list(t.shape), "dtype": t.dtype} for t in spec.tensors],
        "bytes": spec.nbytes,
        "arena": binding.arena,
        "table": binding.table,
        "offset": binding.offset,
        "nbytes": binding.nbytes,
        "tensor_offsets": list(binding.tensor_offsets),
    }


def _layers(plan: Plan) -> str:
    counts = Counter(role.value for role in plan.roles)
    return f"{len(plan.roles)}: {', '.join(f'{count} {role}' for role, count in counts.items())}"


def _block(plan: Plan) -> str:
    if not plan.bytes_per_token:
        return f"{plan.block_size} tokens between checkpoints (no site grows with the tokens)"
    count = plan.block_size // plan.kernel_block
    kernel = f" = {count} kernel blocks of {plan.kernel_block}" if plan.layout is Layout.UNIFIED else ""
    return f"{plan.block_size} tokens{kernel}, {plan.bytes_per_token:,} bytes per token"


def _page(plan: Plan) -> str:
    growing = sum(table.pages_for(1) for table in plan.tables if table.growth is Growth.TOKEN)
    text = f"{plan.page_bytes:,} bytes"
    if len(plan.arenas) > 1:
        text += f" in each of {len(plan.arenas)} arenas"
    return f"{text}, {_padding(plan.waste.per_block, growing * plan.page_id_bytes)} per block" if growing else text


def _pages(plan: Plan) -> str:
    budget = plan.request.memory_bytes
    of_budget = "" if budget is None else f" of a budget of {budget:,}"
    return f"{plan.num_pages:,} and {plan.nbytes:,} bytes{of_budget}; page 0 is the null page"


def _state(plan: Plan) -> str:
    if not plan.state_bytes:
        return "none"
    held = plan.state_pages * plan.page_id_bytes
    padding = _padding(plan.waste.per_sequence, held)
    return f"{plan.state_bytes:,} bytes per sequence on {plan.state_pages:,} pages of {held:,} bytes, {padding}"


def _padding(nbytes: int, held: int) -> str:
    return f"{nbytes:,} bytes of padding ({nbytes / held:.2%})"


def _columns(rows: Sequence[Row]) -> list[str]:
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
