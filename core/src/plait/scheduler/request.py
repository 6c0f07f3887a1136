"""A request as the scheduler sees it: tokens computed, catching up with tokens known."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import attrs


class RequestStatus(StrEnum):
    """Where a request stands."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@attrs.define(eq=False)
class Request:
    """One sequence.

    There is no prefill phase and no decode phase: `computed` catches up with the tokens known so far.

    Attributes:
        id: unique in the engine.
        prompt: token ids.
        max_tokens: tokens that may be generated.
        output: token ids generated so far.
        computed: tokens whose keys, values and states are in pages.
        tables: per table of the plan, the page ids held.
        status: waiting, running or finished.
        preemptions: how often the request had to give up its pages.
    """

    id: str
    prompt: Sequence[int]
    max_tokens: int
    output: list[int] = attrs.field(factory=list)
    computed: int = 0
    tables: list[list[int]] = attrs.field(factory=list)
    status: RequestStatus = RequestStatus.WAITING
    preemptions: int = 0

    @property
    def num_tokens(self) -> int:
        """Tokens known so far."""
        return len(self.prompt) + len(self.output)

    @property
    def held_pages(self) -> int:
        """Pages held over all tables."""
        return sum(map(len, self.tables))

    def token_ids(self, start: int, stop: int) -> Sequence[int]:
        """Return the known tokens from `start` up to `stop`."""
        length = len(self.prompt)
        if start >= length:
            return self.output[start - length : stop - length]
        if stop <= length:
            return self.prompt[start:stop]
        return [*self.prompt[start:], *self.output[: stop - length]]
