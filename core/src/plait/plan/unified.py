"""The `unified` layout: vLLM's rule, in which every site of the model has pages of one size.

Source of the rule: the hybrid KV-cache planning of vLLM (block size from the largest state, groups of equal specs).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from plait.errors import PlanError
from plait.plan.binding import Binding
from plait.plan.geometry import Geometry, lay_part, lay_tensors, round_up
from plait.plan.site import SiteSpec
from plait.plan.table import TablePlan
from plait.plan.text import names_text, spec_text
from plait.spec import CacheSpec, Growth

KERNEL_BLOCKS = (32, 16, 8)
"""Tokens of one kernel block, best first."""

WORD = 4
"""Bytes; a state's tensors start on whole words."""

STATE_ONLY_UNIT = 512
"""Bytes to which a page is rounded up where states alone set its size."""


def lay_unified(sites: Sequence[SiteSpec], asked: int) -> Geometry:
    """Lay sites over one table per group, and one arena per position in the groups.

    Raises:
        PlanError: token sites of unlike bytes, which cannot share one page size.
    """
    tokens = [site for site in sites if site.spec.growth is Growth.TOKEN]
    states = [site for site in sites if site.spec.growth is Growth.STATE]
    _refuse_unlike_tokens(tokens)
    state = max((lay_tensors(site.spec, WORD)[1] for site in states), default=0)
    # A block of 8 tokens at least, for a kernel block must divide it and the multiples of a family may be odd.
    align = math.lcm(KERNEL_BLOCKS[-1], *(site.spec.block_multiple for site in tokens))
    block = round_up(asked, align)
    page = round_up(state, STATE_ONLY_UNIT)
    if tokens:
        row = tokens[0].spec.nbytes
        block = max(align * -(-state // (align * row)), block)
        page = block * row
    groups = group_sites(sites)
    return Geometry(
        block_size=block,
        kernel_block=next(k for k in KERNEL_BLOCKS if block % k == 0),
        page_bytes=page,
        num_arenas=max(len(group) for group in groups),
        tables=tuple(_table(group, block) for group in groups),
        bindings=_bind(sites, groups, block),
        notes=_notes(tokens, state, asked, align, block),
    )


def group_sites(sites: Sequence[SiteSpec]) -> list[list[SiteSpec]]:
    """Split sites into groups that share page ids.

    Sites of equal spec make a bucket, in order of first appearance. The group size is that of the smallest bucket, or
    of the largest if that is under 1.5 times the smallest; a bucket is dealt out over as few groups as that allows.
    """
    buckets: dict[CacheSpec, list[SiteSpec]] = {}
    for site in sites:
        buckets.setdefault(site.spec, []).append(site)
    smallest = min(len(bucket) for bucket in buckets.values())
    largest = max(len(bucket) for bucket in buckets.values())
    size = largest if 2 * largest < 3 * smallest else smallest
    groups = []
    for bucket in buckets.values():
        count = -(-len(bucket) // size)
        groups += [bucket[i::count] for i in range(count)]
    return groups


def _table(group: Sequence[SiteSpec], block: int) -> TablePlan:
    names = tuple(site.name for site in group)
    growth = group[0].spec.growth
    return TablePlan(growth, block, 0, names) if growth is Growth.TOKEN else TablePlan(growth, 0, 1, names)


def _bind(sites: Sequence[SiteSpec], groups: Sequence[Sequence[SiteSpec]], block: int) -> tuple[Binding, ...]:
    places = {site.name: (arena, table) for table, group in enumerate(groups) for arena, site in enumerate(group)}
    bindings = []
    for site in sites:
        arena, table = places[site.name]
        offsets, nbytes = lay_part(site.spec, block, WORD)
        bindings.append(Binding(site.name, site.spec, arena, table, 0, nbytes, offsets))
    return tuple(bindings)


def _refuse_unlike_tokens(tokens: Sequence[SiteSpec]) -> None:
    by_bytes: dict[int, list[SiteSpec]] = {}
    for site in tokens:
        by_bytes.setdefault(site.spec.nbytes, []).append(site)
    if len(by_bytes) < 2:
        return
    sizes = "; ".join(
        f"{nbytes:,} bytes ({names_text([s.name for s in same])}: {spec_text(same[0].spec)})"
        for nbytes, same in by_bytes.items()
    )
    raise PlanError(
        f"token sites keep unlike bytes per token: {sizes}. The unified layout gives every site a page of the same "
        f"size and the same number of tokens. Use --layout spanning, where unlike token sites share a page."
    )


def _notes(tokens: Sequence[SiteSpec], state: int, asked: int, align: int, block: int) -> tuple[str, ...]:
    notes = []
    multiples = sorted({site.spec.block_multiple for site in tokens})
    if len(multiples) > 1:
        listed = " and ".join(str(m) for m in multiples)
        notes.append(f"token sites want blocks of {listed} tokens: blocks are multiples of {align} tokens")
    if block > round_up(asked, align):
        notes.append(f"block_size raised from {asked} to {block} tokens: a state of {state:,} bytes must fit one page")
    elif block != asked:
        notes.append(f"block_size raised from {asked} to {block} tokens, a multiple of {align}")
    return tuple(notes)
