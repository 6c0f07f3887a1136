"""The way in for Python programs: prompts in, outputs back; the names are vLLM's."""

from __future__ import annotations

import queue
from collections.abc import Sequence
from types import TracebackType
from typing import Any, TypedDict

from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from plait.engine.outputs import CompletionOutput, Delta, RequestOutput
from plait.engine.sampling_params import SamplingParams
from plait.engine.thread import EngineThread
from plait.errors import RequestError
from plait.settings import Settings


class TokensPrompt(TypedDict):
    """A prompt as token ids."""

    prompt_token_ids: Sequence[int]


POLL_SECONDS = 1.0
Prompt = str | Sequence[int] | TokensPrompt


class LLM:
    """A model, loaded and ready. Use it as a context manager, or call `shutdown`."""

    def __init__(self, model: str, **settings: Any) -> None:
        """Load a model.

        Args:
            model: a directory, a GGUF file, a Hugging Face repository, or the name of a demo.
            **settings: see `plait.settings.Settings`.

        Raises:
            PlaitError: the model cannot be planned or loaded; the text says why and what to do.
        """
        self._engine = EngineThread(Settings(model=model, **settings))

    @property
    def engine(self) -> EngineThread:
        """The engine behind it."""
        return self._engine

    def get_tokenizer(self) -> Any:
        """Return the model's tokenizer, as mlx-lm wraps it."""
        return self._engine.tokenizer

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Complete prompts, batched as memory allows; outputs come in the order of the prompts.

        Args:
            prompts: one prompt or several; a prompt is a text, a list of token ids, or {"prompt_token_ids": [...]}.
            sampling_params: one for all, or one for each.
            use_tqdm: show a progress bar.

        Raises:
            RequestError: a prompt or a parameter cannot be served; nothing was run.
        """
        asked = _prompt_list(prompts)
        params = _params_list(sampling_params, len(asked))
        tokens = [self._tokens(prompt) for prompt in asked]
        for ids, each in zip(tokens, params, strict=True):
            self._engine.check(ids, each)
        deltas: queue.SimpleQueue[Delta] = queue.SimpleQueue()
        outputs: dict[str, RequestOutput] = {}
        for prompt, ids, each in zip(asked, tokens, params, strict=True):
            request_id = self._engine.submit(ids, each, deltas.put)
            text = prompt if isinstance(prompt, str) else None
            completion = CompletionOutput(0, "", [])
            if each.logprobs is not None:
                completion.logprobs, completion.cumulative_logprob = [], 0.0
            outputs[request_id] = RequestOutput(request_id, text, ids, [completion], False)
        try:
            self._collect(outputs, deltas, show=use_tqdm)
        except BaseException:
            for request_id in outputs:
                self._engine.abort(request_id)
            raise
        return list(outputs.values())

    def shutdown(self) -> None:
        """End the engine and free its memory. May be called twice."""
        self._engine.shutdown()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()

    def _tokens(self, prompt: Prompt) -> list[int]:
        if isinstance(prompt, str):
            return list(self._engine.tokenizer.encode(prompt))
        if isinstance(prompt, dict):
            if set(prompt) != {"prompt_token_ids"}:
                raise RequestError(f"A prompt has the keys {sorted(prompt)}; wanted prompt_token_ids.", param="prompt")
            return list(prompt["prompt_token_ids"])
        return list(prompt)

    def _collect(self, outputs: dict[str, RequestOutput], deltas: queue.SimpleQueue[Delta], *, show: bool) -> None:
        columns = (TextColumn("{task.description}"), MofNCompleteColumn(), TimeElapsedColumn())
        left = len(outputs)
        with Progress(*columns, disable=not show) as progress:
            bar = progress.add_task("prompts", total=left)
            while left:
                delta = self._next(deltas)
                if delta.error is not None:
                    raise delta.error
                add_delta(outputs[delta.request_id], delta)
                if delta.finish_reason is not None:
                    left -= 1
                    progress.advance(bar)

    def _next(self, deltas: queue.SimpleQueue[Delta]) -> Delta:
        """Wait for the next delta; an engine that was shut down from elsewhere sends none."""
        while True:
            try:
                return deltas.get(timeout=POLL_SECONDS)
            except queue.Empty:
                if not self._engine.alive:
                    raise RequestError("The engine was shut down.", status=503, code="engine_shut_down") from None


def add_delta(output: RequestOutput, delta: Delta) -> None:
    """Add what a step brought to a request's output."""
    completion = output.outputs[0]
    completion.text += delta.text
    completion.token_ids.extend(delta.token_ids)
    if delta.logprobs is not None and completion.logprobs is not None:
        completion.logprobs.extend(delta.logprobs)
        for token, entries in zip(delta.token_ids, delta.logprobs, strict=True):
            completion.cumulative_logprob = (completion.cumulative_logprob or 0.0) + entries[token].logprob
    completion.finish_reason = delta.finish_reason
    completion.stop_reason = delta.stop_reason
    output.finished = delta.finish_reason is not None


def _prompt_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """Tell one prompt from several: a list of numbers is one prompt."""
    if isinstance(prompts, str | dict):
        return [prompts]
    items = list(prompts)
    if items and all(isinstance(item, int) for item in items):
        return [items]  # type: ignore[list-item]
    return items  # type: ignore[return-value]


def _params_list(params: SamplingParams | Sequence[SamplingParams] | None, count: int) -> list[SamplingParams]:
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * count
    if len(params) != count:
        raise RequestError(f"There are {count} prompts and {len(params)} sampling_params; give one, or one for each.")
    return list(params)
