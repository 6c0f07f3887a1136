"""Holds runs of an engine to what the model says by itself, alone, without pages."""

from __future__ import annotations

import math
from collections.abc import Sequence

import attrs
import numpy as np

from plait.testing.reference import Expected, Floats, Reference
from plait.testing.rig import Run, Transcript

TOLERANCE = 1e-4
"""Most that a log-probability may differ in float32."""

TIE = 1e-3
"""Two tokens whose log-probabilities are this close may change places."""

FORGOTTEN = 0.1
"""Least that a log-probability moves where something that matters was lost."""


@attrs.frozen
class Comparison:
    """How far a run is from its references.

    Attributes:
        worst: largest difference of a log-probability; infinite where one is not a number.
        where: request, token and reference of the worst one.
        wrong: tokens that differ though the two best were not close.
        compared: tokens that were compared.
    """

    worst: float
    where: str
    wrong: Sequence[str]
    compared: int

    def check(self, tolerance: float = TOLERANCE) -> None:
        """Raise AssertionError unless the run equals its references."""
        assert self.compared, "nothing was compared"
        assert not self.wrong, f"{'; '.join(self.wrong)} (largest difference {self.worst:.3g} at {self.where})"
        assert self.worst < tolerance, f"log-probabilities differ by {self.worst:.3g} at {self.where}"


def compare(run: Run, reference: Reference) -> Comparison:
    """Compare every token that a run generated, those of aborted requests included."""
    found: list[tuple[float, str]] = [(0.0, "nowhere")]
    wrong: list[str] = []
    for index, transcript in enumerate(run.transcripts):
        _check_reported(transcript)
        name = f"request {index} ({len(transcript.job.prompt)} prompt tokens)"
        if transcript.tokens:
            _compare_one(transcript, reference, name, found, wrong)
    worst, where = max(found, key=lambda pair: pair[0])
    return Comparison(worst, where, wrong, sum(len(t.tokens) for t in run.transcripts))


def _compare_one(
    transcript: Transcript, reference: Reference, name: str, found: list[tuple[float, str]], wrong: list[str]
) -> None:
    tokens, prompt = transcript.tokens, transcript.job.prompt
    assert len(transcript.logprobs) == len(tokens), (name, len(transcript.logprobs), len(tokens))
    expected = reference.greedy(prompt, len(tokens))
    parted = next((i for i, (a, b) in enumerate(zip(tokens, expected.tokens, strict=True)) if a != b), len(tokens))
    _differences(transcript.logprobs[: parted + 1], expected, name, 0, found)
    if parted == len(tokens):
        return
    best, chosen = expected.cold[parted].max(), expected.cold[parted][tokens[parted]]
    if best - chosen >= TIE:
        # What follows hangs on another token, and says nothing more.
        wrong.append(f"{name}, token {parted}: {tokens[parted]} in place of {expected.tokens[parted]}")
        return
    forced = reference.forced(prompt, tokens)
    later = Expected(forced.tokens[parted + 1 :], forced.cold[parted + 1 :], forced.single[parted + 1 :])
    _differences(transcript.logprobs[parted + 1 :], later, name, parted + 1, found)
    for place in range(parted + 1, len(tokens)):
        row = forced.cold[place]
        if row.max() - row[tokens[place]] >= TIE:
            wrong.append(f"{name}, token {place}: {tokens[place]} is not the likeliest")


def _differences(
    got: Sequence[Floats], expected: Expected, name: str, first: int, found: list[tuple[float, str]]
) -> None:
    """Note the largest difference of each token to each reference."""
    for source, rows in (("cold", expected.cold), ("mlx-lm's single run", expected.single)):
        for place, (mine, theirs) in enumerate(zip(got, rows, strict=False)):
            delta = float(np.abs(mine - theirs).max())
            found.append((math.inf if math.isnan(delta) else delta, f"{name}, token {first + place}, against {source}"))


def _check_reported(transcript: Transcript) -> None:
    """Assert that the client was told what the model said."""
    asked = transcript.job.logprobs
    assert len(transcript.reported) == (0 if asked is None else len(transcript.tokens))
    for token, logprobs, entries in zip(transcript.tokens, transcript.logprobs, transcript.reported, strict=False):
        assert asked is not None and token in entries and asked <= len(entries) <= asked + 1
        for other, entry in entries.items():
            # Not a number is for the comparison to find.
            assert not abs(entry.logprob - logprobs[other]) > 1e-5, (other, entry, logprobs[other])
