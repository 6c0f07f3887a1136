"""Text from tokens, one token at a time, never half a character, never a stop text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tokenizers.decoders import DecodeStream

from plait.engine.sampling_params import SamplingParams


class Detokenizer:
    """The text of one request.

    Characters that could be the beginning of a stop text are held back until it is certain that they are not.
    """

    def __init__(self, tokenizer: Any, params: SamplingParams) -> None:
        """`tokenizer` is the fast tokenizer of the `tokenizers` library."""
        self._tokenizer = tokenizer
        self._stream = DecodeStream(skip_special_tokens=params.skip_special_tokens)
        self._stop = params.stop
        self._keep_stop = params.include_stop_str_in_output
        self._held = ""
        self.text = ""

    def add(self, token: int) -> tuple[str, str | None]:
        """Take a token in.

        Returns:
            The characters that are certain now, and the stop text that ends the output, or None.
        """
        self._held += self._stream.step(self._tokenizer, token) or ""
        if not self._stop:
            return self._emit(len(self._held)), None
        found = [(self._held.find(stop), -len(stop), stop) for stop in self._stop if stop in self._held]
        if found:
            place, _, stop = min(found)
            text = self._emit(place + len(stop) * self._keep_stop)
            self._held = ""
            return text, stop
        return self._emit(len(self._held) - _overlap(self._held, self._stop)), None

    def flush(self) -> str:
        """Return what was held back: no stop text will come any more."""
        return self._emit(len(self._held))

    def _emit(self, size: int) -> str:
        text, self._held = self._held[:size], self._held[size:]
        self.text += text
        return text


def _overlap(text: str, stops: Sequence[str]) -> int:
    """Return the length of the longest end of `text` that begins a stop text."""
    for size in range(min(len(text), max(map(len, stops)) - 1), 0, -1):
        if any(stop.startswith(text[-size:]) for stop in stops):
            return size
    return 0
