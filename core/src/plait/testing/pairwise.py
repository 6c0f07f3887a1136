"""Tables of test runs in which every two levels of any two factors meet."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Mapping, Sequence

Factors = Mapping[str, Sequence[object]]
Row = tuple[object, ...]
Cell = tuple[str, object]

ATTEMPTS = 40


def all_pairs(factors: Factors) -> set[frozenset[Cell]]:
    """Return every pair of levels of two factors."""
    return {
        frozenset(((one, a), (other, b)))
        for one, other in itertools.combinations(factors, 2)
        for a in factors[one]
        for b in factors[other]
    }


def pairs_of(factors: Factors, row: Row) -> set[frozenset[Cell]]:
    """Return the pairs that one row holds; its levels stand in the order of the factors."""
    return {frozenset(pair) for pair in itertools.combinations(zip(factors, row, strict=True), 2)}


def missing_pairs(factors: Factors, rows: Iterable[Row]) -> set[frozenset[Cell]]:
    """Return the pairs that no row holds."""
    return all_pairs(factors).difference(*(pairs_of(factors, row) for row in rows))


def cross(factors: Factors) -> list[Row]:
    """Return every combination of levels."""
    return list(itertools.product(*factors.values()))


def pairwise_rows(factors: Factors, seed: int = 0) -> list[Row]:
    """Return few rows that hold every pair: greedy, the best of several orders; the same arguments, the same rows."""
    rng = random.Random(seed)
    return min((_greedy(factors, rng) for _ in range(ATTEMPTS)), key=len)


def rows_with_every_level(factors: Factors, rows: Iterable[Row]) -> list[Row]:
    """Return some of the rows, few, in which every level of every factor stands at least once."""
    left = {(name, level) for name, levels in factors.items() for level in levels}
    rows = list(rows)
    chosen: list[Row] = []
    while left:
        best = max(rows, key=lambda row: len(left.intersection(zip(factors, row, strict=True))))
        gained = left.intersection(zip(factors, best, strict=True))
        if not gained:
            raise ValueError(f"no row holds {sorted(map(str, left))}")
        left -= gained
        chosen.append(best)
    return chosen


def _greedy(factors: Factors, rng: random.Random) -> list[Row]:
    left = all_pairs(factors)
    rows: list[Row] = []
    while left:
        # Begin with a missing pair, so that every row brings something; then the level that closes the most pairs.
        row: dict[str, object] = dict(rng.choice(sorted(left, key=lambda pair: sorted(map(str, pair)))))
        names = [name for name in factors if name not in row]
        rng.shuffle(names)
        for name in names:
            levels = list(factors[name])
            rng.shuffle(levels)
            row[name] = max(levels, key=lambda level: _gain(left, name, level, row))
        rows.append(tuple(row[name] for name in factors))
        left -= pairs_of(factors, rows[-1])
    return rows


def _gain(left: set[frozenset[Cell]], name: str, level: object, row: Mapping[str, object]) -> int:
    return sum(frozenset(((name, level), cell)) in left for cell in row.items())
