"""The factors in which runs of an engine differ, and the jobs that a combination of them means."""

from __future__ import annotations

import random

import attrs
import numpy as np

from plait.testing.rig import Job

FACTORS: dict[str, tuple[object, ...]] = {
    "requests": (1, 2, 3, 5, 8),
    "chunk": (1, 2, 3, 7, 16, 64, None),
    "block_size": (16, 32),
    "layout": ("spanning", "unified"),
    "staggered": (False, True),
    "preemption": (False, True),
    "aborts": (False, True),
}
"""Levels by factor. Pages that nobody owns are poisoned in every run: it is never better not to."""

MOST_REQUESTS = 10
MOST_TOKENS = 128

OTHER_PROMPTS = (3, 17, 1, 7, 24, 10)  # tokens; ragged, and shorter than two blocks with the output
OUTPUTS = (6, 7, 10, 1, 5, 3, 8, 2)  # tokens: requests leave one by one
GAPS = (0, 1, 2, 0, 3, 1, 2, 1)  # steps between arrivals
LONGEST = 70  # prompt tokens where memory is ample: more than one chunk of 64
VICTIM_PROMPTS = (20, 9)
LOGPROBS = (20, None, 0, 3)


@attrs.frozen
class Scenario:
    """One combination of levels.

    Attributes:
        requests: that run to their ends.
        chunk: most tokens of a chunk, or None.
        block_size: tokens of a page, as asked.
        layout: of the pages.
        staggered: whether requests arrive one by one, and not together.
        preemption: whether the pool holds two prompts, but not their outputs.
        aborts: whether two more requests are aborted at random steps.
    """

    requests: int
    chunk: int | None
    block_size: int
    layout: str
    staggered: bool
    preemption: bool
    aborts: bool

    def __str__(self) -> str:
        flags = [name for name in ("staggered", "preemption", "aborts") if getattr(self, name)]
        return "-".join([f"r{self.requests}", f"c{self.chunk or 'all'}", f"b{self.block_size}", self.layout, *flags])

    def jobs(self, block: int) -> list[Job]:
        """Return the jobs.

        Args:
            block: tokens of a page, as planned.
        """
        lengths = self._lengths(block)
        jobs = []
        arrives = 0
        for index in range(self.requests):
            arrives += GAPS[index] if self.staggered else 0
            prompt, logprobs = prompt_tokens(index, lengths[index]), LOGPROBS[index % len(LOGPROBS)]
            jobs.append(Job(prompt=prompt, max_tokens=OUTPUTS[index], arrives=arrives, logprobs=logprobs))
        rng = random.Random(str(self))
        for index, length in enumerate(VICTIM_PROMPTS if self.aborts else ()):
            prompt = prompt_tokens(MOST_REQUESTS + index, length)
            arrives = 2 + index if self.staggered else 0
            jobs.append(Job(prompt=prompt, max_tokens=10, arrives=arrives, abort_after=rng.randint(0, 12)))
        return jobs

    def _lengths(self, block: int) -> tuple[int, ...]:
        if self.preemption:
            # Both fill a block a few tokens after the prompt, and then the pool is empty.
            return (block - 3, block - 2, *OTHER_PROMPTS)
        longest = LONGEST if self.chunk is None else min(LONGEST, 4 * self.chunk + 2)
        return (longest, *(min(longest, length) for length in (*OTHER_PROMPTS, 29)))


def prompt_tokens(stream: int, length: int) -> list[int]:
    """Return the first tokens of one of many fixed random streams of bytes."""
    return [int(token) for token in np.random.default_rng(stream).integers(0, 256, 1024)[:length]]
