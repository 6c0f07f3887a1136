"""Every byte that is allocated and holds nothing, by name."""

from __future__ import annotations

import attrs


@attrs.frozen
class Waste:
    """The roundings of a plan, in bytes.

    With `blocks` = ceil(tokens / block), and the rows of the last block that no token fills yet (`Plan.tail_bytes`),
    `Plan.bytes_of(tokens)` = tokens * bytes_per_token + tail_bytes(tokens) + blocks * per_block + state_bytes
    + per_sequence, exactly; and the budget is `Plan.nbytes` + unused_budget.

    Attributes:
        page_rounding: per block of tokens: the page rounded up to whole granules.
        idle_per_block: per block of tokens: pages of arenas where a token table has no site (unified).
        tensor_rounding: per sequence: each state tensor rounded up to a granule (spanning) or a word (unified).
        run_rounding: per sequence: the end of the run's last page (spanning), each state padded to its page (unified).
        idle_per_sequence: per sequence: pages of arenas where a state table has no site (unified).
        null_page: page 0, in all arenas.
        unused_budget: what is left of the budget, too small for a page or beyond the largest buffer.
    """

    page_rounding: int
    idle_per_block: int
    tensor_rounding: int
    run_rounding: int
    idle_per_sequence: int
    null_page: int
    unused_budget: int

    @property
    def per_block(self) -> int:
        """Bytes per block of tokens that hold no row."""
        return self.page_rounding + self.idle_per_block

    @property
    def per_sequence(self) -> int:
        """Bytes per sequence, in its state pages, that hold no state."""
        return self.tensor_rounding + self.run_rounding + self.idle_per_sequence
