"""One API call's answer while it comes into being, and how an endpoint writes it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence

from pydantic import BaseModel

from plait.engine.async_engine import Event, Generation
from plait.engine.llm import add_delta
from plait.engine.outputs import CompletionOutput, Delta, RequestOutput
from plait.engine.sampling_params import SamplingParams
from plait.server.metrics import Clock
from plait.server.protocol import PromptTokensDetails, Usage


class Answer:
    """The requests of one call, and what they have given so far.

    Attributes:
        generation: the running requests.
        outputs: one per prompt.
    """

    def __init__(
        self, generation: Generation, prompts: Sequence[Sequence[int]], params: SamplingParams, clock: Clock
    ) -> None:
        self.generation = generation
        self.outputs = [_output(index, prompt, params) for index, prompt in enumerate(prompts)]
        self._clock = clock

    async def events(self) -> AsyncIterator[Event]:
        """Yield what comes, after taking it into the outputs."""
        async for event in self.generation:
            if event is not None:
                index, delta = event
                self._clock.tokens(index, len(delta.token_ids))
                add_delta(self.outputs[index], delta)
            yield event

    def usage(self) -> Usage:
        """Return the tokens of the call so far."""
        prompt = sum(len(output.prompt_token_ids) for output in self.outputs)
        completion = sum(len(output.outputs[0].token_ids) for output in self.outputs)
        cached = sum(output.num_cached_tokens for output in self.outputs)
        return Usage(
            prompt_tokens=prompt,
            completion_tokens=completion,
            total_tokens=prompt + completion,
            prompt_tokens_details=PromptTokensDetails(cached_tokens=cached),
        )


class Writer(ABC):
    """Writes the answers of one endpoint."""

    @abstractmethod
    def whole(self, answer: Answer) -> BaseModel:
        """Return the body for an answer that is complete."""

    @abstractmethod
    def opening(self) -> Sequence[BaseModel]:
        """Return the chunks that a stream begins with, before there is any token."""

    @abstractmethod
    def chunks(self, index: int, delta: Delta) -> Sequence[BaseModel]:
        """Return the chunks for what a step added to one prompt's completion."""

    @abstractmethod
    def usage_chunk(self, usage: Usage) -> BaseModel:
        """Return the chunk that a stream ends with if it was asked for its usage."""


def _output(index: int, prompt: Sequence[int], params: SamplingParams) -> RequestOutput:
    completion = CompletionOutput(index, "", [])
    if params.logprobs is not None:
        completion.logprobs, completion.cumulative_logprob = [], 0.0
    return RequestOutput(str(index), None, prompt, [completion], False)
