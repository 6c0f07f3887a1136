"""What a request gives back; the names are vLLM's."""

from __future__ import annotations

from collections.abc import Sequence

import attrs


@attrs.frozen
class Logprob:
    """One token's log-probability.

    Attributes:
        logprob: natural logarithm, of the model's own distribution.
        rank: 1 for the likeliest token of its position.
        decoded_token: the token's text.
    """

    logprob: float
    rank: int
    decoded_token: str


@attrs.define
class CompletionOutput:
    """One completion of a prompt.

    Attributes:
        index: of the completion.
        text: what was generated, without special tokens, up to a stop text.
        token_ids: what was generated, with the token that ended it.
        cumulative_logprob: sum of the tokens' log-probabilities, or None if none were asked for.
        logprobs: per token, log-probabilities by token id: the likeliest ones asked for, and the token's own.
        finish_reason: "stop", "length", "abort", or None while it runs.
        stop_reason: the stop text or stop token id that ended it, or None.
    """

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: list[dict[int, Logprob]] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


@attrs.define
class RequestOutput:
    """A request and its completion so far.

    Attributes:
        request_id: as given, or drawn by the engine.
        prompt: the prompt's text, or None if it was given as token ids.
        prompt_token_ids: the prompt.
        outputs: one completion.
        finished: whether no more will come.
        num_cached_tokens: prompt tokens that were taken from the prefix cache.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: Sequence[int]
    outputs: list[CompletionOutput]
    finished: bool
    num_cached_tokens: int = 0


@attrs.frozen
class Delta:
    """What one step added to a request.

    Attributes:
        request_id: of the request.
        text: characters that are certain now.
        token_ids: new tokens.
        logprobs: one entry per new token, or None.
        finish_reason: set on the last delta.
        stop_reason: see `CompletionOutput`.
        error: what went wrong, on the last delta of a request that failed.
    """

    request_id: str
    text: str
    token_ids: Sequence[int]
    logprobs: Sequence[dict[int, Logprob]] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    error: Exception | None = None
