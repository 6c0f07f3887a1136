"""The `spanning` layout: a page holds one block of every token site, a state run spans whole pages."""

from __future__ import annotations

from collections.abc import Sequence

from plait.plan.binding import Binding
from plait.plan.geometry import Geometry, lay_part, round_up
from plait.plan.site import SiteSpec
from plait.plan.table import TablePlan
from plait.spec import Growth

GRANULE = 512
"""Bytes; pages and state tensors are whole granules, so no aligned granule straddles two pages."""

STATE_ONLY_PAGE = 64 * 1024
"""Bytes of a page where no site grows with the tokens, so nothing else sets its size."""

TOKEN_TABLE = 0
STATE_TABLE = 1


def lay_spanning(sites: Sequence[SiteSpec], block: int) -> Geometry:
    """Lay sites over one arena and two tables: 0 for tokens, 1 for states.

    A token site's part of a page is `block` rows, a multiple of 16 bytes, so each part starts on a word and on its
    own itemsize without padding between the parts.
    """
    bindings = []
    ends = {Growth.TOKEN: 0, Growth.STATE: 0}
    for site in sites:
        growth = site.spec.growth
        offsets, nbytes = lay_part(site.spec, block, GRANULE)
        table = TOKEN_TABLE if growth is Growth.TOKEN else STATE_TABLE
        bindings.append(Binding(site.name, site.spec, 0, table, ends[growth], nbytes, offsets))
        ends[growth] += nbytes
    page = round_up(ends[Growth.TOKEN], GRANULE) or STATE_ONLY_PAGE
    run_pages = -(-ends[Growth.STATE] // page)
    return Geometry(
        block_size=block,
        kernel_block=block,
        page_bytes=page,
        num_arenas=1,
        tables=(
            TablePlan(Growth.TOKEN, block, 0, _names(sites, Growth.TOKEN)),
            TablePlan(Growth.STATE, 0, run_pages, _names(sites, Growth.STATE)),
        ),
        bindings=tuple(bindings),
    )


def _names(sites: Sequence[SiteSpec], growth: Growth) -> tuple[str, ...]:
    return tuple(site.name for site in sites if site.spec.growth is growth)
