"""Text from tokens: whole characters, whole stop texts, and nothing of either too early."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

import plait  # noqa: F401  before MLX
from plait.engine.detokenizer import Detokenizer
from plait.engine.sampling_params import SamplingParams

END, PAD = 256, 257


def byte_level() -> Tokenizer:
    """One token per byte, and two special ones."""
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    order = {char: index for index, char in enumerate(sorted(alphabet))}
    tokenizer = Tokenizer(models.BPE(vocab=order, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in ("<|end|>", "<pad>")])
    return tokenizer


TOKENIZER = byte_level()


def ids_of(text: str) -> list[int]:
    ids: list[int] = TOKENIZER.encode(text, add_special_tokens=False).ids
    return ids


def detokenizer(**params: Any) -> Detokenizer:
    return Detokenizer(TOKENIZER, SamplingParams(**params))


def feed(text: str, **params: Any) -> tuple[list[str], str | None, Detokenizer]:
    """Add the bytes of a text one by one until a stop text; returns the pieces, the stop text, the detokenizer."""
    one = detokenizer(**params)
    pieces = []
    for token in ids_of(text):
        piece, stop = one.add(token)
        pieces.append(piece)
        if stop is not None:
            return pieces, stop, one
    return pieces, None, one


def test_every_byte_is_a_token() -> None:
    assert len(ids_of("aé€🧶")) == 1 + 2 + 3 + 4
    assert TOKENIZER.token_to_id("<|end|>") == END


def test_characters_of_several_bytes_come_whole() -> None:
    pieces, stop, one = feed("aé€🧶b")
    assert pieces == ["a", "", "é", "", "", "€", "", "", "", "🧶", "b"]
    assert stop is None and one.text == "aé€🧶b" and one.flush() == ""


def test_half_a_character_at_the_end_is_not_text() -> None:
    one = detokenizer()
    for token in ids_of("x€")[:3]:
        one.add(token)
    assert one.flush() == "" and one.text == "x"


def test_bytes_that_are_no_character_are_shown_as_such() -> None:
    one = detokenizer()
    broken = [*ids_of("a"), ids_of("€")[0], *ids_of("b")]
    assert "".join(one.add(token)[0] for token in broken) == "a\ufffdb"


@pytest.mark.parametrize("seed", range(40))
def test_any_bytes_at_all(seed: int) -> None:
    """Random models say random bytes; the text is the tokenizer's own, but for an unfinished end."""
    dice = random.Random(seed)
    ids = [dice.randrange(258) for _ in range(80)]
    one = detokenizer()
    pieces = [one.add(token)[0] for token in ids]
    pieces.append(one.flush())
    assert "".join(pieces) == one.text
    whole = TOKENIZER.decode(ids, skip_special_tokens=True)
    assert whole.startswith(one.text) and set(whole[len(one.text) :]) <= {"\ufffd"}
    assert not any(piece.endswith("\ufffd") for piece in pieces)


@pytest.mark.parametrize(("skip", "text"), [(True, "ab"), (False, "a<|end|>b<pad>")])
def test_special_tokens(skip: bool, text: str) -> None:
    one = detokenizer(skip_special_tokens=skip)
    for token in (*ids_of("a"), END, *ids_of("b"), PAD):
        one.add(token)
    one.flush()
    assert one.text == text


# Stop texts


def test_row_124_a_stop_text_over_several_tokens_is_not_given_out() -> None:
    pieces, stop, one = feed("hello STOP world", stop="STOP")
    assert stop == "STOP" and one.text == "hello "
    assert pieces == ["h", "e", "l", "l", "o", " ", "", "", "", ""]
    assert one.flush() == "", "nothing comes after the end"


def test_what_only_began_like_a_stop_text_comes_out() -> None:
    pieces, stop, one = feed("hello STAMP STO", stop="STOP")
    assert stop is None and one.text == "hello STAMP "
    assert pieces[6:10] == ["", "", "STA", "M"]
    assert one.flush() == "STO" and one.text == "hello STAMP STO"


def test_the_stop_text_is_kept_if_asked() -> None:
    pieces, stop, one = feed("ab##cd", stop="##", include_stop_str_in_output=True)
    assert stop == "##" and one.text == "".join(pieces) == "ab##" and one.flush() == ""


def test_a_stop_text_that_begins_within_itself() -> None:
    """ "aab" in "aaab": the first a was not its beginning."""
    pieces, stop, one = feed("xaaab!", stop="aab")
    assert stop == "aab" and one.text == "xa"
    assert pieces == ["x", "", "", "a", ""]


def test_of_two_stop_texts_the_one_that_comes_first_ends_it() -> None:
    assert feed("one two", stop=["two", "one"])[1] == "one"
    _, stop, one = feed("abcd", stop=["bcd", "bc"])
    assert (stop, one.text) == ("bc", "a"), "it is complete one token before the longer one"
    _, stop, one = feed("abcd", stop=["abcdef", "cd"])
    assert (stop, one.text) == ("cd", "ab"), "held back for the longer one, then given out"


def test_a_token_that_completes_several_stop_texts() -> None:
    """One token may bring many characters; the earliest place counts, and the longest text there."""
    vocabulary = {"x": 0, "abcd": 1, "zabc": 2}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="x"))
    tokenizer.decoder = decoders.Fuse()
    for stops, token, wanted in (
        (["cd", "bc"], 1, ("a", "bc")),
        (["ab", "abcd"], 1, ("", "abcd")),
        (["c", "zab"], 2, ("", "zab")),
    ):
        one = Detokenizer(tokenizer, SamplingParams(stop=stops))
        assert one.add(token) == wanted and one.flush() == ""


def test_a_stop_text_that_ends_in_the_middle_of_a_token() -> None:
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "bcd": 1}, unk_token="a"))
    tokenizer.decoder = decoders.Fuse()
    for keep, text in ((False, "a"), (True, "abc")):
        one = Detokenizer(tokenizer, SamplingParams(stop="bc", include_stop_str_in_output=keep))
        assert [one.add(0), one.add(1)] == [("a", None), (text[1:], "bc")]
        assert one.flush() == "" and one.text == text, "what follows the stop text in its token is lost"


def test_stop_texts_of_wide_characters() -> None:
    pieces, stop, one = feed("wool 🧶🧵 end", stop=["🧶🧵"])
    assert stop == "🧶🧵" and one.text == "wool "
    pieces, stop, one = feed("wool 🧶🧶", stop=["🧶🧵"])
    assert stop is None and "".join(pieces) == "wool 🧶" and one.flush() == "🧶"


def first_end(text: str, stops: list[str]) -> tuple[int, str] | None:
    """The end of the first stop text to be complete, character by character; the longest if several end there."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            return end, max(found, key=len)
    return None


@settings(max_examples=400, deadline=None, database=None, derandomize=True)
@given(
    text=st.text(alphabet="abé", max_size=14),
    stops=st.lists(st.text(alphabet="abé", min_size=1, max_size=4), min_size=1, max_size=3),
    keep=st.booleans(),
)
def test_stop_texts_against_a_plain_search(text: str, stops: list[str], keep: bool) -> None:
    pieces, stop, one = feed(text, stop=stops, include_stop_str_in_output=keep)
    pieces.append(one.flush())
    wanted = first_end(text, stops)
    if wanted is None:
        assert stop is None and one.text == text
    else:
        end, longest = wanted
        assert stop == longest
        assert one.text == (text[:end] if keep else text[: end - len(longest)])
    assert "".join(pieces) == one.text


@settings(max_examples=200, deadline=None, database=None, derandomize=True)
@given(text=st.text(alphabet="ab", max_size=12), stop=st.text(alphabet="ab", min_size=1, max_size=4))
def test_nothing_is_given_out_that_a_stop_text_would_take_back(text: str, stop: str) -> None:
    """However the text goes on, what was given out stays."""
    one = detokenizer(stop=stop)
    for token in ids_of(text):
        _, found = one.add(token)
        if found is not None:
            return
        assert stop not in one.text
        for rest in range(len(stop)):
            end = first_end(one.text + one._held + stop[rest:], [stop])
            assert end is None or end[0] - len(stop) >= len(one.text)
