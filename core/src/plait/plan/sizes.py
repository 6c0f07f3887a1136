"""Byte sizes as people write them."""

from __future__ import annotations

import re
from decimal import Decimal

from plait.errors import PlanError

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(?:([kmgt])(i?b)?|b)?\s*", re.IGNORECASE | re.ASCII)


def parse_bytes(value: int | str, name: str = "--kv-cache-memory-bytes") -> int:
    """Return a byte size given as a number or as text.

    "4G", "4GiB" and "4g" are 4 * 1024**3 bytes, "4GB" is 4 * 1000**3 (the suffixes of GNU coreutils); K, M and T
    likewise; "4096" and "4096B" are bytes. A fraction is rounded down to a whole byte.

    Raises:
        PlanError: not a size; the text says `name`.
    """
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    match = _SIZE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise PlanError(
            f"{name} is {value!r}, which is not a size in bytes. Set it to a whole number of bytes, or to a number "
            f"with a unit: K, M, G, T (or KiB, ...) for powers of 1024, KB, MB, GB, TB for powers of 1000."
        )
    number, prefix, suffix = match.groups()
    power = "kmgt".index(prefix.lower()) + 1 if prefix else 0
    base = 1000 if suffix and suffix.lower() == "b" else 1024
    return int(Decimal(number) * base**power)
