"""What a layer keeps between tokens, in one word."""

from __future__ import annotations

from enum import StrEnum


class LayerRole(StrEnum):
    """The role of a layer in the plan's report."""

    TOKEN = "token"  # keeps bytes per token
    STATE = "state"  # keeps a fixed state per sequence
    BOTH = "both"  # has sites of both kinds side by side
    STATELESS = "stateless"  # keeps nothing
