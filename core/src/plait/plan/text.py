"""Specs in words, for errors and reports."""

from __future__ import annotations

from collections.abc import Sequence

from plait.spec import CacheSpec, Growth


def spec_text(spec: CacheSpec) -> str:
    """The tensors of a spec, as in "[3, 6144] bfloat16 + [16, 128, 128] float32"."""
    return " + ".join(f"[{', '.join(str(n) for n in t.shape)}] {t.dtype}" for t in spec.tensors)


def bytes_text(spec: CacheSpec) -> str:
    """The bytes of a spec, as in "2,048 bytes per token"."""
    return f"{spec.nbytes:,} bytes per {'token' if spec.growth is Growth.TOKEN else 'sequence'}"


def names_text(names: Sequence[str]) -> str:
    """A list of names, the long ones cut, as in "layers.0.a, layers.1.a and 4 more"."""
    if len(names) <= 3:
        return ", ".join(names)
    return f"{', '.join(names[:2])} and {len(names) - 2} more"
