"""What is asked of the planner."""

from __future__ import annotations

from enum import StrEnum

import attrs

from plait.errors import PlanError

DEFAULT_BLOCK = 16
SPANNING_BLOCKS = (16, 32)


class Layout(StrEnum):
    """How sites share pages."""

    SPANNING = "spanning"  # a page holds one block of every token site; a state run spans many pages
    UNIFIED = "unified"  # vLLM's rule: a page holds one block of one token site, or one whole state


def _layout(name: str) -> Layout:
    try:
        return Layout(name)
    except ValueError:
        raise PlanError(
            f"layout {name!r} is unknown. Set --layout to one of: {', '.join(layout.value for layout in Layout)}."
        ) from None


@attrs.frozen(kw_only=True)
class PlanRequest:
    """What is asked; every number is checked on construction.

    Attributes:
        max_model_len: tokens of the longest request.
        max_num_seqs: requests that may run at once.
        layout: how sites share pages.
        block_size: spanning: 16 (default) or 32 tokens; unified: the least that is wanted (default 16).
        memory_bytes: budget for all arenas; None: as much as `max_num_seqs` requests of `max_model_len` need.
        enable_prefix_caching: whether finished prefixes are kept for reuse.
        max_buffer_bytes: the device's largest buffer, and so the largest arena; None: no limit.

    Raises:
        PlanError: a number that no plan can meet; the text names the flag.
    """

    max_model_len: int
    max_num_seqs: int
    layout: Layout = attrs.field(default=Layout.SPANNING, converter=_layout)
    block_size: int | None = None
    memory_bytes: int | None = None
    enable_prefix_caching: bool = True
    max_buffer_bytes: int | None = None

    def __attrs_post_init__(self) -> None:
        """Refuse numbers that no plan can meet."""
        for name, least in (("max_model_len", 1), ("max_num_seqs", 1), ("memory_bytes", 0), ("max_buffer_bytes", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                flag = "--kv-cache-memory-bytes" if name == "memory_bytes" else f"--{name.replace('_', '-')}"
                raise PlanError(f"{name} is {value}. Set {flag} to {least} or more.")
        self._check_block()

    def _check_block(self) -> None:
        asked = self.block_size
        if self.layout is Layout.SPANNING and asked is not None and asked not in SPANNING_BLOCKS:
            raise PlanError(
                f"block_size is {asked}: a page of the spanning layout holds 16 or 32 tokens of every site. "
                f"Set --block-size to 16 or 32, or leave it out (16)."
            )
        if asked is not None and asked < 1:
            raise PlanError(
                f"block_size is {asked}: the unified layout takes the least number of tokens that a block shall hold. "
                f"Set --block-size to 1 or more, or leave it out (16)."
            )

    @property
    def asked_block(self) -> int:
        """Tokens per block that were asked for, or the default."""
        return DEFAULT_BLOCK if self.block_size is None else self.block_size
