"""A Hugging Face tokenizer, built from the `tokenizer.*` metadata of a GGUF file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from plait.errors import CheckpointError
from plait.models.gguf.metadata import Metadata

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_PREFIX = "tokenizer.ggml."
_CONTROL, _USER_DEFINED = 3, 4  # ggml's token types that are matched before the text is split

# `tokenizer.ggml.pre` names how text is cut before merging. "smollm": every digit alone, then GPT-2's pattern.
_PRE_TOKENIZERS = {
    "smollm": lambda: pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    ),
}


def build_tokenizer(metadata: Metadata, max_length: int) -> PreTrainedTokenizerFast:
    """The tokenizer with its special tokens and chat template; `max_length` is the model's context in tokens.

    Bytes that the vocabulary lacks are left out of the ids, as Hugging Face's own tokenizer does.

    Raises:
        CheckpointError: a tokenizer model or pre-tokenizer that Plait does not know, or broken vocabulary data.
    """
    from transformers import PreTrainedTokenizerFast  # takes a second or more to import, and planning needs none of it

    _refuse_unknown(metadata)
    tokens = metadata.texts(f"{_PREFIX}tokens")
    tokenizer = Tokenizer(models.BPE(vocab=_vocab(metadata, tokens), merges=_merges(metadata, set(tokens))))
    tokenizer.pre_tokenizer = _PRE_TOKENIZERS[metadata.text(f"{_PREFIX}pre")]()
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens(_added_tokens(metadata, tokens))
    named = _named_tokens(metadata, tokens)
    if processor := _ends(metadata, named):
        tokenizer.post_processor = processor
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        clean_up_tokenization_spaces=False,
        model_max_length=max_length,
        **named,
    )
    if "tokenizer.chat_template" in metadata:
        fast.chat_template = metadata.text("tokenizer.chat_template")
    return fast


def _refuse_unknown(metadata: Metadata) -> None:
    model = metadata.text(f"{_PREFIX}model")
    if model != "gpt2":
        raise CheckpointError(
            f"{metadata.path}: Plait builds tokenizers of model 'gpt2' (byte-level BPE) from GGUF, and this one is "
            f"{model!r}; use the model's safetensors checkpoint"
        )
    pre = metadata.text(f"{_PREFIX}pre")
    if pre not in _PRE_TOKENIZERS:
        raise CheckpointError(
            f"{metadata.path}: Plait does not know the pre-tokenizer {pre!r} ('{_PREFIX}pre'), only "
            f"{', '.join(map(repr, _PRE_TOKENIZERS))}; use the model's safetensors checkpoint"
        )
    if metadata.flag(f"{_PREFIX}add_space_prefix", False):
        raise CheckpointError(f"{metadata.path}: '{_PREFIX}add_space_prefix' is true, but Plait knows it as false")


def _vocab(metadata: Metadata, tokens: list[str]) -> dict[str, int]:
    vocab = {token: index for index, token in enumerate(tokens)}
    if len(vocab) != len(tokens):
        twice = next(token for index, token in enumerate(tokens) if vocab[token] != index)
        raise CheckpointError(f"{metadata.path}: '{_PREFIX}tokens' names the token {twice!r} twice")
    return vocab


def _merges(metadata: Metadata, vocab: set[str]) -> list[tuple[str, str]]:
    """Pairs in order of rank; the parts are written with one space between, and hold none themselves."""
    merges = []
    for rank, line in enumerate(metadata.texts(f"{_PREFIX}merges")):
        left, _, right = line.partition(" ")
        if not {left, right, left + right} <= vocab:
            raise CheckpointError(
                f"{metadata.path}: merge {rank} of '{_PREFIX}merges' is {line!r}, whose parts or whole are no tokens"
            )
        merges.append((left, right))
    return merges


def _added_tokens(metadata: Metadata, tokens: list[str]) -> list[AddedToken]:
    types = metadata.integers(f"{_PREFIX}token_type")
    if len(types) != len(tokens):
        raise CheckpointError(f"{metadata.path}: {len(tokens):,} tokens but {len(types):,} token types")
    return [
        AddedToken(token, special=kind == _CONTROL, normalized=False)
        for token, kind in zip(tokens, types, strict=True)
        if kind in (_CONTROL, _USER_DEFINED)
    ]


def _named_tokens(metadata: Metadata, tokens: list[str]) -> dict[str, str]:
    """Which tokens are `bos_token`, `eos_token`, `unk_token` and `pad_token`."""
    named = {}
    for name, key in {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}.items():
        if (full := f"{_PREFIX}{key}_token_id") in metadata:
            if (index := metadata.integer(full)) >= len(tokens):
                raise CheckpointError(f"{metadata.path}: '{full}' is {index}, but there are {len(tokens):,} tokens")
            named[f"{name}_token"] = tokens[index]
    return named


def _ends(metadata: Metadata, named: dict[str, str]) -> processors.TemplateProcessing | None:
    """Puts bos before and eos after plain text, where the file asks for it."""
    begin, end = (
        named.get(f"{name}_token") if metadata.flag(f"{_PREFIX}add_{name}_token", False) else None
        for name in ("bos", "eos")
    )
    pieces = [piece for piece in (begin, "$A", end) if piece]
    if pieces == ["$A"]:
        return None
    ids = {token: index for index, token in enumerate(metadata.texts(f"{_PREFIX}tokens"))}
    return processors.TemplateProcessing(
        single=pieces, special_tokens=[(piece, ids[piece]) for piece in pieces if piece != "$A"]
    )
