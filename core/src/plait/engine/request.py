"""A request as the engine sees it: the scheduler's sequence, its parameters, and its text so far."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import attrs

from plait.engine.detokenizer import Detokenizer
from plait.engine.outputs import Delta, Logprob
from plait.engine.sampler import Draw
from plait.engine.sampling_params import SamplingParams
from plait.scheduler.request import Request

Sink = Callable[[Delta], None]
"""Takes what each step added to a request; called on the engine's thread, so it must return at once."""


@attrs.define(eq=False)
class EngineRequest:
    """One request in the engine.

    Attributes:
        sequence: what the scheduler moves.
        params: how it is sampled.
        seed: of its randomness.
        eos: token ids that end it, unless it ignores them.
        detokenizer: its text.
        sink: where its deltas go.
    """

    sequence: Request
    params: SamplingParams
    seed: int
    eos: Collection[int]
    detokenizer: Detokenizer
    sink: Sink

    def draw(self) -> Draw:
        """Return what the sampler needs for the next token."""
        return Draw(self.params, self.seed, len(self.sequence.output))

    def accept(self, token: int, logprobs: dict[int, Logprob] | None) -> Delta:
        """Take the next token in; the delta's `finish_reason` is set if it is the last."""
        self.sequence.output.append(token)
        reason: str | None = None
        stop: int | str | None = None
        if token in self.params.stop_token_ids:
            reason, stop = "stop", token
        elif token in self.eos and not self.params.ignore_eos:
            reason = "stop"
        text = ""
        if reason is None:
            text, found = self.detokenizer.add(token)
            if found is not None:
                reason, stop = "stop", found
            elif len(self.sequence.output) >= self.sequence.max_tokens:
                reason = "length"
        if reason is not None and not isinstance(stop, str):
            text += self.detokenizer.flush()
        entries = None if logprobs is None else [logprobs]
        return Delta(self.sequence.id, text, [token], entries, reason, stop)


def token_text(tokenizer: Any, token: int) -> str:
    """Return one token's own text, as log-probabilities show it."""
    text: str = tokenizer.decode([token], skip_special_tokens=False)
    return text
