"""The plan: the frozen result of start-up."""

from __future__ import annotations

from enum import StrEnum

import attrs

from plait.plan.arena import ArenaPlan
from plait.plan.binding import Binding
from plait.plan.request import Layout, PlanRequest
from plait.plan.role import LayerRole
from plait.plan.table import TablePlan
from plait.plan.waste import Waste
from plait.spec import Growth


class Mode(StrEnum):
    """vLLM's names for how states take part in prefix caching."""

    NONE = "none"  # there is no state, or prefixes are not cached: no state is kept
    ALIGN = "align"  # states are kept where cached prefixes end


@attrs.frozen(kw_only=True)
class Plan:
    """Where every site's memory lies, and how much of it there is.

    Attributes:
        layout: how sites share pages.
        mode: whether states are kept for cached prefixes.
        block_size: tokens that one page holds; where no site grows with the tokens, only the spacing of checkpoints.
        kernel_block: tokens of one kernel block; under unified, a page of a token site is its kernel blocks one after
            another, each laid out as a page of that many tokens. Spanning: `block_size`.
        page_bytes: bytes of one page of one arena.
        num_pages: page ids of the one pool; 0 is the null page, and every arena has this many pages.
        arenas: spanning: one; unified: one per position in the groups.
        tables: spanning: 0 for tokens, 1 for states (either may be without sites); unified: one per group.
        bindings: one per site, in the order of the sites: layer, then definition order.
        roles: one per layer, as given.
        request: what was asked.
        notes: warnings for the start-up report.
    """

    layout: Layout
    mode: Mode
    block_size: int
    kernel_block: int
    page_bytes: int
    num_pages: int
    arenas: tuple[ArenaPlan, ...]
    tables: tuple[TablePlan, ...]
    bindings: tuple[Binding, ...]
    roles: tuple[LayerRole, ...]
    request: PlanRequest
    notes: tuple[str, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of all arenas."""
        return sum(arena.nbytes for arena in self.arenas)

    @property
    def page_id_bytes(self) -> int:
        """Bytes that one page id takes, over all arenas."""
        return self.page_bytes * len(self.arenas)

    @property
    def bytes_per_token(self) -> int:
        """Bytes that all token sites keep per token, without rounding."""
        return sum(b.spec.nbytes for b in self.bindings if b.spec.growth is Growth.TOKEN)

    @property
    def state_bytes(self) -> int:
        """Bytes that all state sites keep per sequence, without rounding."""
        return sum(b.spec.nbytes for b in self.bindings if b.spec.growth is Growth.STATE)

    @property
    def run_bytes(self) -> int:
        """Bytes of one sequence's states with their tensors' roundings: the run, under spanning."""
        return sum(b.nbytes for b in self.bindings if b.spec.growth is Growth.STATE)

    @property
    def state_pages(self) -> int:
        """Pages that one sequence's states hold, over all tables."""
        return self.pages_for(0)

    @property
    def smallest_cacheable_prefix(self) -> int:
        """Tokens of the shortest prefix that can be found in the cache again."""
        return self.block_size

    @property
    def max_num_seqs(self) -> int:
        """Requests that may run at once: as asked, or as many as hold their states and one block each."""
        return min(self.request.max_num_seqs, self.requests_that_fit(1))

    def table_pages(self, table: int, tokens: int) -> int:
        """Pages that one request of `tokens` tokens holds in one table."""
        return self.tables[table].pages_for(tokens)

    def pages_for(self, tokens: int) -> int:
        """Pages that one request of `tokens` tokens holds, over all tables."""
        return sum(table.pages_for(tokens) for table in self.tables)

    def bytes_of(self, tokens: int) -> int:
        """Bytes of the pages that one request of `tokens` tokens holds, over all arenas."""
        return self.pages_for(tokens) * self.page_id_bytes

    def tail_bytes(self, tokens: int) -> int:
        """Bytes of the rows in the last block that `tokens` tokens leave empty."""
        return -tokens % self.block_size * self.bytes_per_token

    def requests_that_fit(self, tokens: int) -> int:
        """Requests of `tokens` tokens (at least 1) that the pool holds at once, with nothing cached."""
        return (self.num_pages - 1) // self.pages_for(max(tokens, 1)) if self.num_pages else 0

    def max_tokens_that_fit(self) -> int | None:
        """Tokens of the longest request that fits alone; None: states fit, and tokens cost no page."""
        free = self.num_pages - 1 - self.state_pages
        growing = sum(table.growth is Growth.TOKEN and bool(table.sites) for table in self.tables)
        if free < 0:
            return 0
        return self.block_size * (free // growing) if growing else None

    @property
    def waste(self) -> Waste:
        """Every byte that is allocated and holds nothing, counted binding by binding."""
        rounding = {Growth.TOKEN: 0, Growth.STATE: 0}
        idle = {Growth.TOKEN: 0, Growth.STATE: 0}
        for index, table in enumerate(self.tables):
            held = self.page_bytes * table.pages_for(1 if table.growth is Growth.TOKEN else 0)
            for arena in range(len(self.arenas)):
                parts = sum(b.nbytes for b in self.bindings if (b.table, b.arena) == (index, arena))
                count = rounding if parts else idle
                count[table.growth] += held - parts
        budget = self.request.memory_bytes
        return Waste(
            page_rounding=rounding[Growth.TOKEN],
            idle_per_block=idle[Growth.TOKEN],
            tensor_rounding=self.run_bytes - self.state_bytes,
            run_rounding=rounding[Growth.STATE],
            idle_per_sequence=idle[Growth.STATE],
            null_page=self.page_id_bytes,
            unused_budget=0 if budget is None else budget - self.nbytes,
        )
