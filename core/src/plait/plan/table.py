"""A request's list of page ids, as the plan sees it."""

from __future__ import annotations

import attrs

from plait.spec import Growth


@attrs.frozen
class TablePlan:
    """One table that every request has.

    Attributes:
        growth: token: one more page per block of tokens; state: a fixed number of pages per sequence.
        block: growth token: tokens per page; 0 for state.
        pages: growth state: pages per sequence; 0 for token.
        sites: names of the sites that this table's pages hold; none: the table is always empty.
    """

    growth: Growth
    block: int
    pages: int
    sites: tuple[str, ...]

    def pages_for(self, tokens: int) -> int:
        """Pages that one request of `tokens` tokens holds in this table."""
        assert tokens >= 0, tokens
        if not self.sites:
            return 0
        return -(-tokens // self.block) if self.growth is Growth.TOKEN else self.pages
