"""Log-probabilities in the two shapes of OpenAI's API."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import islice
from typing import Any

from tokenizers.decoders import DecodeStream

from plait.engine.outputs import Logprob
from plait.engine.sampling_params import SamplingParams
from plait.server.protocol import ChatLogprobs, CompletionLogprobs, TokenLogprob, TopLogprob

LOWEST = -9999.0  # JSON has no infinity; OpenAI writes this number
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"

Entries = Sequence[dict[int, Logprob]]


class CompletionLogprobsWriter:
    """Writes one completion's log-probabilities, in one go or delta by delta."""

    def __init__(self, tokenizer: Any, params: SamplingParams) -> None:
        self._tokenizer = tokenizer.backend_tokenizer
        self._stream = DecodeStream(skip_special_tokens=params.skip_special_tokens)
        self._top = params.logprobs
        self._offset = 0

    def write(self, token_ids: Sequence[int], entries: Entries | None) -> CompletionLogprobs | None:
        """Return the log-probabilities of the next tokens, or None if none were asked for."""
        if self._top is None or entries is None:
            return None
        written = CompletionLogprobs(tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[])
        for token, likely in zip(token_ids, entries, strict=True):
            written.tokens.append(likely[token].decoded_token)
            written.token_logprobs.append(_finite(likely[token].logprob))
            top: dict[str, float] = {}
            for entry in likely.values():
                # Two tokens may have one text (halves of characters do); the likelier one stands for both.
                top.setdefault(entry.decoded_token, _finite(entry.logprob))
            written.top_logprobs.append(top)
            written.text_offset.append(self._place(token, likely[token].decoded_token))
        return written

    def _place(self, token: int, text: str) -> int:
        """Return where the token begins in the generated text; parts of a character begin where it does."""
        added = self._stream.step(self._tokenizer, token) or ""
        self._offset += len(added)
        # Bytes that turned out to be no character come out together with the token after them.
        own = text if REPLACEMENT not in text and added.endswith(text) else added
        return self._offset - len(own)


def chat_logprobs(
    tokenizer: Any, params: SamplingParams, token_ids: Sequence[int], entries: Entries | None
) -> ChatLogprobs | None:
    """Return the log-probabilities of tokens as chats have them, or None if none were asked for."""
    if params.logprobs is None or entries is None:
        return None
    content = []
    for token, likely in zip(token_ids, entries, strict=True):
        top = [_one(tokenizer, *item) for item in islice(likely.items(), params.logprobs)]
        own = _one(tokenizer, token, likely[token])
        content.append(TokenLogprob(token=own.token, logprob=own.logprob, bytes=own.bytes, top_logprobs=top))
    return ChatLogprobs(content=content)


def token_bytes(text: str, raw: str) -> list[int] | None:
    """Return a token's bytes, or None if they cannot be told.

    Args:
        text: the token, decoded on its own.
        raw: the token as the vocabulary has it. Where a token is a part of a character its text does not say which:
            byte-level vocabularies write each byte as a printable character (GPT-2), others as <0xE4> (SentencePiece).
    """
    if REPLACEMENT not in text:
        return list(text.encode())
    if match := re.fullmatch(r"<0x([0-9A-F]{2})>", raw):
        return [int(match[1], 16)]
    if all(char in _BYTES for char in raw):
        return [_BYTES[char] for char in raw]
    return None


def _byte_alphabet() -> dict[str, int]:
    """Return the byte behind each character of byte-level vocabularies, after GPT-2's encoder."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(b): b for b in printable} | {chr(256 + index): byte for index, byte in enumerate(others)}


_BYTES = _byte_alphabet()


def _one(tokenizer: Any, token: int, entry: Logprob) -> TopLogprob:
    text = entry.decoded_token
    raw = tokenizer.convert_ids_to_tokens(token) if REPLACEMENT in text else text
    return TopLogprob(token=text, logprob=_finite(entry.logprob), bytes=token_bytes(text, raw))


def _finite(logprob: float) -> float:
    return max(logprob, LOWEST)
