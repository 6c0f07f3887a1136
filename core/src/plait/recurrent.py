"""The loop that every family with a recurrent state shares: read, decode rows, chunk rows, write."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import mlx.core as mx

from plait.family import BoundSite
from plait.memory.view import StateView
from plait.step import Step

Arrays = Sequence[mx.array]


class RecurrentSite(BoundSite):
    """A site whose mixer is a recurrence over states of fixed size.

    A family gives the four parts: what each token brings (`project`), one token against the state (`advance_one`),
    many tokens of one sequence against it (`advance_chunk`), and the way back to the hidden size (`finish`).
    """

    def __init__(self, view: StateView) -> None:
        self.view = view

    @abstractmethod
    def project(self, x: mx.array) -> Arrays:
        """Return what the recurrence takes from `x` [tokens, hidden]: arrays [tokens, ...]."""

    @abstractmethod
    def advance_one(self, inputs: Arrays, states: Arrays) -> tuple[mx.array, Arrays]:
        """Advance rows by one token each: inputs [rows, ...], states [rows, *shape]; returns y [rows, ...], states."""

    @abstractmethod
    def advance_chunk(self, inputs: Arrays, states: Arrays) -> tuple[mx.array, Arrays]:
        """Advance by T tokens: inputs [1, T, ...], states [1, *shape]; returns y [1, T, ...] and the states after."""

    @abstractmethod
    def finish(self, y: mx.array, inputs: Arrays) -> mx.array:
        """Return [tokens, hidden] from y [tokens, ...] and what `project` returned."""

    def __call__(self, x: mx.array, step: Step) -> mx.array:
        """See `BoundSite`."""
        inputs = self.project(x[0])
        states = self.view.read(step)
        outputs = []
        if step.decode:
            rows = slice(0, step.decode)
            y, new = self.advance_one([i[rows] for i in inputs], [s[rows] for s in states])
            self.view.write(step, 0, new)
            outputs.append(y)
        for chunk in step.chunks:
            span, row = slice(chunk.start, chunk.stop), slice(chunk.row, chunk.row + 1)
            y, new = self.advance_chunk([i[None, span] for i in inputs], [s[row] for s in states])
            self.view.write(step, chunk.row, new)
            outputs.append(y[0])
        return self.finish(outputs[0] if len(outputs) == 1 else mx.concatenate(outputs), inputs)[None]
