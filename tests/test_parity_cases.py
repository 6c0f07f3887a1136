"""What went wrong elsewhere in public, retold small: batches, memory under pressure, uneven chunks, long contexts."""

from __future__ import annotations

import itertools
import random

import pytest

from plait.scheduler.request import Request
from plait.testing.lab import Lab
from plait.testing.parity import compare
from plait.testing.rig import ChunkSize, Job
from plait.testing.scenario import prompt_tokens

BLOCK = 16


def _jobs(lengths: tuple[int, ...], outputs: tuple[int, ...], **options: int) -> list[Job]:
    """Return a request per length of prompt, each from a stream of its own."""
    return [
        Job(prompt=prompt_tokens(index, length), max_tokens=output, **options)
        for index, (length, output) in enumerate(zip(lengths, outputs, strict=True))
    ]


def test_rows_leave_one_by_one(lab: Lab, model: str) -> None:
    """Short answers that finish early leave the others alone."""
    outputs = (1, 2, 3, 5, 9, 14, 21, 30)
    run = lab.rig(lab.checkpoint(model), max_model_len=96, max_num_seqs=8).run(
        _jobs((5, 20, 9, 33, 2, 16, 11, 7), outputs)
    )
    assert run.most_running == 8
    assert tuple(len(transcript.tokens) for transcript in run.transcripts) == outputs
    compare(run, lab.reference(lab.checkpoint(model))).check()


def test_rows_leave_in_every_order(lab: Lab, model: str) -> None:
    """Prompts of 3, 17 and 40 tokens in chunks of 16, removed in each of the six orders."""
    path = lab.checkpoint(model)
    rig = lab.rig(path, max_model_len=96, max_num_seqs=8)
    for order in itertools.permutations((4, 6, 9)):
        jobs = [
            Job(prompt=prompt_tokens(index, length), max_tokens=12, abort_after=steps)
            for index, (length, steps) in enumerate(zip((3, 17, 40), order, strict=True))
        ]
        run = rig.run(jobs, chunk=16)
        assert [transcript.finish_reason for transcript in run.transcripts] == ["abort"] * 3
        # What is aborted after n steps has had n steps, and chunks of a prompt give no token but the last.
        assert [len(t.tokens) for t in run.transcripts] == [
            n - chunks for n, chunks in zip(order, (0, 1, 2), strict=True)
        ]
        compare(run, lab.reference(path)).check()


def test_same_batch_gives_the_same_tokens(lab: Lab, model: str) -> None:
    rig = lab.rig(lab.checkpoint(model), max_model_len=96, max_num_seqs=8)
    jobs = _jobs((3, 17, 40, 1, 64, 12, 33, 7), (8,) * 8)
    runs = [[transcript.tokens for transcript in rig.run(jobs).transcripts] for _ in range(4)]
    assert runs[1:] == runs[:1] * 3


def test_shortest_of_four(lab: Lab, model: str) -> None:
    """A short prompt beside long ones says what it says alone."""
    path = lab.checkpoint(model)
    rig = lab.rig(path, max_model_len=96, max_num_seqs=8)
    alone = rig.run(_jobs((3,), (8,)))
    beside = rig.run(_jobs((3, 61, 40, 17), (8, 6, 7, 5)))
    assert alone.transcripts[0].tokens == beside.transcripts[0].tokens
    compare(alone, lab.reference(path)).check()
    compare(beside, lab.reference(path)).check()


@pytest.mark.parametrize("layout", ["spanning", "unified"])
def test_prompts_at_the_edges_of_blocks(lab: Lab, model: str, layout: str) -> None:
    path = lab.checkpoint(model)
    rig = lab.rig(path, max_model_len=160, max_num_seqs=8, layout=layout)
    block = rig.plan.block_size
    jobs = _jobs((1, block - 1, block, block + 1, 2 * block, 2 * block + 1), (3,) * 6)
    compare(rig.run(jobs), lab.reference(path)).check()
    # The same prompt again and again: nothing of the last time is left.
    for length in (1, 15, 16, 17, 64):
        job = Job(prompt=prompt_tokens(7, length), max_tokens=3)
        for _ in range(3):
            compare(rig.run([job]), lab.reference(path)).check()


@pytest.mark.parametrize("chunk", [10, None])
def test_long_contexts_beside_short_ones(lab: Lab, model: str, chunk: int | None) -> None:
    """Contexts so unlike that decode rows are read in groups, and chunks that attend in several tiles."""
    path = lab.checkpoint(model)
    rig = lab.rig(path, max_model_len=768, max_num_seqs=4)
    jobs = [
        Job(prompt=prompt_tokens(index, length), max_tokens=6, arrives=arrives)
        for index, (length, arrives) in enumerate([(700, 0), (300, 0), (5, 2 if chunk is None else 68), (40, 3)])
    ]
    run = rig.run(jobs, chunk)
    if chunk is None:
        assert run.most_groups == 3
        assert max(run.chunk_sizes) > 128
    compare(run, lab.reference(path)).check()


def _sizes(*sizes: int) -> ChunkSize:
    """Feed each request chunks of these sizes, the last one for ever."""
    ends = list(itertools.accumulate(sizes))

    def size(request: Request) -> int:
        return next((end - request.computed for end in ends if end > request.computed), sizes[-1])

    return size


def _random_sizes(seed: int) -> ChunkSize:
    rng = random.Random(seed)
    return lambda request: rng.randint(1, 20)


def test_uneven_chunks(lab: Lab, model: str) -> None:
    """More than one token on a state that is there already, a chunk shorter than a convolution, and random ones."""
    path = lab.checkpoint(model)
    rig = lab.rig(path, max_model_len=96, max_num_seqs=8)
    solo, ragged = _jobs((23,), (4,)), _jobs((70, 23, 40, 5, 61), (5, 6, 3, 8, 7))
    run = rig.run(solo, _sizes(10, 7, 1, 5))
    assert run.chunk_sizes == {10, 7, 1, 5} and run.steps == 4 + 3
    compare(run, lab.reference(path)).check()
    compare(rig.run(solo, _sizes(1, 2, 1, 3, 1)), lab.reference(path)).check()
    for seed in range(3):
        compare(rig.run(ragged, _random_sizes(seed)), lab.reference(path)).check()


@pytest.mark.parametrize("budget", [8, 11, 50])
def test_step_budgets(lab: Lab, model: str, budget: int) -> None:
    """Chunks as the engine itself cuts them: what decode rows leave of the budget."""
    path = lab.checkpoint(model)
    rig = lab.rig(path, max_model_len=96, max_num_seqs=8, max_num_batched_tokens=budget)
    run = rig.run(_jobs((60, 3, 17, 1, 30, 7, 24, 10), (12, 9, 10, 12, 5, 6, 8, 4)))
    assert max(run.chunk_sizes) <= budget
    compare(run, lab.reference(path)).check()


def test_pool_for_one_request_and_a_half(lab: Lab, model: str) -> None:
    """Two requests of 60 tokens: the one that gave up its pages begins anew, not from the state that it had."""
    path = lab.checkpoint(model)
    settings = {"max_model_len": 60, "max_num_seqs": 2, "block_size": BLOCK}
    plan = lab.plan(path, **settings)
    rig = lab.tight_rig(path, plan.pages_for(60) + plan.pages_for(30), **settings)
    run = rig.run(_jobs((30, 30), (30, 30)))
    assert run.preemptions >= 1
    compare(run, lab.reference(path)).check()


def test_six_requests_on_a_pool_for_three(lab: Lab, model: str) -> None:
    path = lab.checkpoint(model)
    settings = {"max_model_len": 60, "max_num_seqs": 6, "block_size": BLOCK}
    # Three prompts, and a block each for two of them to grow.
    rig = lab.tight_rig(path, 3 * lab.plan(path, **settings).pages_for(32) + 2, **settings)
    run = rig.run(_jobs((30, 25, 28, 31, 20, 29), (25, 30, 20, 24, 28, 27)))
    assert run.preemptions >= 1
    compare(run, lab.reference(path)).check()


def test_eight_small_requests_run_together(lab: Lab, model: str) -> None:
    """A request of 12 tokens costs one block and its states, so that eight fit the pages of eight."""
    path = lab.checkpoint(model)
    settings = {"max_model_len": 16, "max_num_seqs": 8, "block_size": BLOCK}
    plan = lab.plan(path, **settings)
    assert plan.pages_for(12) == plan.state_pages + 1
    run = lab.tight_rig(path, 8 * plan.pages_for(12), **settings).run(_jobs((8,) * 8, (4,) * 8))
    assert run.most_running == 8 and run.preemptions == 0
    compare(run, lab.reference(path)).check()


def test_random_traffic(lab: Lab, model: str) -> None:
    """Arrivals, ends and aborts at random on scarce pages, until everything has happened to somebody."""
    path = lab.checkpoint(model)
    settings = {"max_model_len": 64, "max_num_seqs": 6, "block_size": BLOCK}
    plan = lab.plan(path, **settings)
    # Any one request fits, and two prompts of 29 tokens, which then want a block more each.
    rig = lab.tight_rig(path, max(plan.pages_for(64), 2 * plan.pages_for(29)), **settings)
    rng = random.Random(1)
    jobs = [
        Job(
            prompt=prompt_tokens(index % 10, rng.choice((2, 16, 29, 29, 45))),
            max_tokens=rng.choice((1, 6, 19)),
            arrives=index + rng.randint(0, 3),
            abort_after=rng.choice((None, None, None, 0, 1, 8, 30)),
        )
        for index in range(40)
    ]
    run = rig.run(jobs, _random_sizes(0))
    reasons = [transcript.finish_reason for transcript in run.transcripts]
    assert run.preemptions and 5 < reasons.count("abort") < 35
    compare(run, lab.reference(path)).check()
