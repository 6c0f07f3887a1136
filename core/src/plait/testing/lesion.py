"""Takes from one row what a site had kept: a comparison that does not notice proves nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import mlx.core as mx
import numpy as np

from plait.memory.view import StateView, TokenView, View
from plait.step import Step

LEAST_CONTEXT = 4  # tokens that a row must have seen before it forgets them


class Lesion:
    """Makes one decode row read zeros from the chosen sites, in one step.

    The step is the first in which a decode row has seen `LEAST_CONTEXT` tokens, the row the one that has seen the most.

    Attributes:
        sites: names of the sites that forget.
        done: whether the step has come.
    """

    def __init__(self, sites: Iterable[str]) -> None:
        self.sites: Collection[str] = frozenset(sites)
        self.done = False
        self._row: int | None = None
        self._blocks: Sequence[mx.array | None] | None = None
        self._restore: list[tuple[View, str]] = []

    def attach(self, views: Mapping[str, View]) -> None:
        """Take the place of the views' reading methods."""
        for name in self.sites:
            view = views[name]
            if isinstance(view, StateView):
                self._replace(view, "read", self._reading(view))
            else:
                self._replace(view, "gather", self._gathering(view))

    def detach(self) -> None:
        """Put the views back as they were."""
        for view, name in self._restore:
            delattr(view, name)
        self._restore.clear()

    def begin(self, step: Step) -> None:
        """Look at a step before its forward, and choose the row if this is the one."""
        self._row = self._blocks = None
        if self.done or not step.decode:
            return
        # Decode rows are sorted by context.
        if np.array(step.positions)[step.decode - 1] >= LEAST_CONTEXT:
            self.done = True
            self._row, self._blocks = step.decode - 1, step.groups[-1].blocks

    def _replace(self, view: View, name: str, method: Any) -> None:
        setattr(view, name, method)
        self._restore.append((view, name))

    def _reading(self, view: StateView) -> Any:
        read = view.read

        def forgetful(step: Step) -> tuple[mx.array, ...]:
            tensors = read(step)
            return tensors if self._row is None else tuple(_without(t, self._row) for t in tensors)

        return forgetful

    def _gathering(self, view: TokenView) -> Any:
        gather = view.gather

        def forgetful(tables: Sequence[mx.array | None]) -> mx.array:
            pages = gather(tables)
            # The row is the last of its group.
            return _without(pages, pages.shape[0] - 1) if tables is self._blocks else pages

        return forgetful


def _without(rows: mx.array, row: int) -> mx.array:
    """Return `rows` with zeros in the place of one row."""
    lost = (mx.arange(rows.shape[0]) == row).reshape(-1, *[1] * (rows.ndim - 1))
    return mx.where(lost, mx.zeros((), dtype=rows.dtype), rows)
