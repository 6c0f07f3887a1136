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

UNSTEADY = 4.0
"""Times the noise of one rounding per weight that a log-probability may differ, where that is more than the tolerance.

Some sequences magnify rounding: mlx-lm's two runs of one checkpoint differ by more than the tolerance there. Over 480
random sequences of four tiny models, runs on pages stayed below 2.4 times this noise.
"""

FORGOTTEN = 0.1
"""Least that a log-probability moves where something that matters was lost."""


@attrs.frozen
class Fault:
    """Something that differs.

    Attributes:
        place: generated token.
        text: what is wrong.
        delta: difference of a log-probability; infinite where a token is wrong.
    """

    place: int
    text: str
    delta: float = math.inf

    def __str__(self) -> str:
        return self.text


@attrs.define
class Comparison:
    """How far a run is from its references.

    Attributes:
        worst: largest difference of a log-probability, ties included; infinite where one is not a number.
        where: request, token and reference of the worst one.
        faults: what differs by more than it may.
        excused: what differs by more than the tolerance, but by no more than rounding explains.
        compared: tokens that were compared.
    """

    worst: float = 0.0
    where: str = "nowhere"
    faults: list[str] = attrs.field(factory=list)
    excused: list[str] = attrs.field(factory=list)
    compared: int = 0

    def check(self) -> None:
        """Raise AssertionError unless the run equals its references."""
        assert self.compared, "nothing was compared"
        text = "; ".join(self.faults[:4])
        assert not self.faults, f"{text} (largest difference {self.worst:.3g} at {self.where})"


def compare(run: Run, reference: Reference, tolerance: float = TOLERANCE) -> Comparison:
    """Compare every token that a run generated, those of aborted requests included."""
    comparison = Comparison()
    for index, transcript in enumerate(run.transcripts):
        _check_reported(transcript)
        assert len(transcript.logprobs) == len(transcript.tokens)
        if transcript.tokens:
            name = f"request {index} ({len(transcript.job.prompt)} prompt tokens)"
            _compare_one(comparison, transcript, reference, name, tolerance)
    return comparison


def _compare_one(
    comparison: Comparison, transcript: Transcript, reference: Reference, name: str, tolerance: float
) -> None:
    tokens, prompt = transcript.tokens, transcript.job.prompt
    comparison.compared += len(tokens)
    expected = reference.greedy(prompt, len(tokens))
    parted = next((i for i, (a, b) in enumerate(zip(tokens, expected.tokens, strict=True)) if a != b), len(tokens))
    faults = _differences(comparison, transcript.logprobs[: parted + 1], expected, name, tolerance)
    if parted < len(tokens):
        row = expected.cold[parted]
        if row.max() - row[tokens[parted]] < TIE:
            expected = reference.forced(prompt, tokens)
            faults = _differences(comparison, transcript.logprobs, expected, name, tolerance)
        else:
            # What follows hangs on another token, and says nothing more.
            faults.append(
                Fault(parted, f"{name}, token {parted}: {tokens[parted]} in place of {expected.tokens[parted]}")
            )
    for place, row in enumerate(transcript.logprobs):
        if not row[tokens[place]] >= row.max() - TIE:
            faults.append(Fault(place, f"{name}, token {place}: {tokens[place]} is not the likeliest"))
    if faults:
        _note(comparison, faults, reference, name, transcript)


def _note(comparison: Comparison, faults: list[Fault], reference: Reference, name: str, transcript: Transcript) -> None:
    """Tell faults from what rounding explains: a little everywhere, or all from a token on whose experts tie."""
    prompt, tokens = transcript.job.prompt, transcript.tokens
    limit = UNSTEADY * reference.noise(prompt, tokens)
    tie = reference.first_tie(prompt, tokens)
    for fault in faults:
        if tie is not None and len(prompt) - 1 + fault.place >= tie:
            comparison.excused.append(f"{fault}; experts of {name}, token {tie} of prompt and output, tie")
        elif fault.delta < limit:
            comparison.excused.append(f"{fault}; one rounding per weight explains {limit:.3g}")
        else:
            comparison.faults.append(str(fault))


def _differences(
    comparison: Comparison, got: Sequence[Floats], expected: Expected, name: str, tolerance: float
) -> list[Fault]:
    """Note the largest difference to each reference, and return those that are too large."""
    faults = []
    for source, rows in (("cold", expected.cold), ("mlx-lm's single run", expected.single)):
        for place, (mine, theirs) in enumerate(zip(got, rows, strict=False)):
            delta = float(np.abs(mine - theirs).max())
            delta = math.inf if math.isnan(delta) else delta
            where = f"{name}, token {place}, against {source}"
            if delta > comparison.worst:
                comparison.worst, comparison.where = delta, where
            if delta >= tolerance:
                faults.append(Fault(place, f"{where}: log-probabilities differ by {delta:.3g}", delta))
    return faults


def _check_reported(transcript: Transcript) -> None:
    """Assert that the client was told what the model said."""
    asked = transcript.job.logprobs
    assert len(transcript.reported) == (0 if asked is None else len(transcript.tokens))
    for token, logprobs, entries in zip(transcript.tokens, transcript.logprobs, transcript.reported, strict=False):
        assert asked is not None and token in entries and asked <= len(entries) <= asked + 1
        for other, entry in entries.items():
            # Not a number is for the comparison to find.
            assert not abs(entry.logprob - logprobs[other]) > 1e-5, (other, entry, logprobs[other])
