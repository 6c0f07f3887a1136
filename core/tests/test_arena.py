"""The arenas: cleared pages, bytes as planned, and no copy of them in any step."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import plait  # noqa: F401  before MLX
from plait.engine.batch import BatchBuilder
from plait.memory.arena import Arenas
from plait.memory.rows import NumpyRows
from plait.memory.view import StateView, TokenView
from plait.plan import Plan, PlanRequest, SiteSpec, make_plan
from plait.scheduler.request import Request
from plait.scheduler.scheduler import Scheduler
from plait.spec import CacheSpec, Growth, Resume, TensorSpec

import mlx.core as mx  # isort: skip

MIB = 1024 * 1024
KV = CacheSpec(Growth.TOKEN, (TensorSpec("kv", (2, 2, 16), "float32", block_axis=2),))
STATE = CacheSpec(Growth.STATE, (TensorSpec("s", (8, 32, 32), "float32"),), resume=Resume.CHECKPOINT)


def plan_of(nbytes: int, layout: str = "spanning") -> Plan:
    specs = [STATE, KV, STATE, STATE, KV]
    sites = [SiteSpec(f"layers.{index}.mixer", spec) for index, spec in enumerate(specs)]
    request = PlanRequest(max_model_len=1024, max_num_seqs=4, layout=layout, memory_bytes=nbytes)
    return make_plan(sites, request)


@pytest.mark.parametrize("layout", ["spanning", "unified"])
def test_bytes_and_arrays_as_planned(layout: str) -> None:
    plan = plan_of(8 * MIB, layout)
    arenas = Arenas(plan)
    assert [array.shape for array in arenas.arrays] == [(a.num_pages, a.page_bytes // 4) for a in plan.arenas]
    assert all(array.dtype == mx.uint32 for array in arenas.arrays)
    assert arenas.nbytes == plan.nbytes <= 8 * MIB
    assert list(arenas.views) == [binding.site for binding in plan.bindings]
    kinds = {Growth.TOKEN: TokenView, Growth.STATE: StateView}
    assert [type(v) for v in arenas.views.values()] == [kinds[b.spec.growth] for b in plan.bindings]
    assert isinstance(arenas.writer, NumpyRows)


@pytest.mark.parametrize("layout", ["spanning", "unified"])
def test_zero_clears_the_pages_in_every_arena_and_no_others(layout: str) -> None:
    arenas = Arenas(plan_of(8 * MIB, layout))
    for number, array in enumerate(arenas.arrays):
        np.array(array, copy=False)[:] = 7 + number
    pages = [3, 1, arenas.plan.num_pages - 1]
    arenas.zero(pages)
    for number, array in enumerate(arenas.arrays):
        words = np.array(array)
        assert not words[pages].any()
        assert (np.delete(words, pages, axis=0) == 7 + number).all()
    arenas.zero([])
    assert (np.array(arenas.arrays[0])[0] == 7).all()


TOO_MUCH = """
import plait
from plait.errors import CapacityError
from plait.memory.arena import Arenas
from plait.plan import PlanRequest, SiteSpec, make_plan
from plait.spec import CacheSpec, Growth, TensorSpec

spec = CacheSpec(Growth.TOKEN, (TensorSpec("kv", (64, 2, 1024), "float32", block_axis=2),))
request = PlanRequest(max_model_len=64, max_num_seqs=4, memory_bytes=2**46)
plan = make_plan([SiteSpec("layers.0.mixer", spec)], request)
try:
    Arenas(plan)
except CapacityError as error:
    print(error)
"""


def test_row_117_an_arena_that_cannot_be_allocated_is_an_error_not_a_crash() -> None:
    done = subprocess.run([sys.executable, "-c", TOO_MUCH], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, f"the process ended with {done.returncode}: {done.stderr}"
    assert "70,368,74" in done.stdout and "--kv-cache-memory-bytes" in done.stdout


def peak_above(active: int) -> int:
    return int(mx.get_peak_memory()) - active


@pytest.mark.parametrize("layout", ["spanning", "unified"])
def test_no_step_copies_the_arena(layout: str) -> None:
    """Gather, compute, write back, in an arena that is far larger than what a step touches."""
    plan = plan_of(160 * MIB, layout)
    arenas = Arenas(plan)
    scheduler = Scheduler(plan, plan.max_num_seqs, 64, lambda running, need: None)
    builder = BatchBuilder(plan)
    for name in "ab":
        scheduler.add(Request(name, [0] * 100, 60))
    touched = 2 * plan.bytes_of(160)
    assert arenas.nbytes > 10 * touched
    for _ in range(10):
        schedule = scheduler.schedule()
        mx.clear_cache()
        mx.reset_peak_memory()
        active = mx.get_active_memory()
        arenas.zero(schedule.new_pages)
        batch = builder.build(schedule)
        step = batch.step
        for view in arenas.views.values():
            if isinstance(view, StateView):
                states = view.read(step)
                view.write(step, 0, [state * 0.5 + 1 for state in states])
            else:
                read = [view.gather(part.blocks) for part in (*step.groups, *step.chunks)]
                total = sum(part.sum() for part in read)
                view.write(step, mx.zeros((step.tokens, *view.shape)) + total)
        mx.eval(step.produced())
        arenas.commit(step, batch.blocks, batch.slots)
        assert peak_above(active) < 8 * touched < arenas.nbytes
        for row in batch.rows:
            scheduler.advance(row)
        for row in batch.sampling:
            row.request.output.append(0)
    assert scheduler.running[0].computed > 100


def test_commit_gives_each_table_to_its_own_sites() -> None:
    """Rows of one step, for token tables and state tables alike, end where the tables say."""
    plan = plan_of(8 * MIB)
    arenas = Arenas(plan)
    scheduler = Scheduler(plan, plan.max_num_seqs, 64, lambda running, need: None)
    scheduler.add(Request("a", [0] * 20, 4))
    schedule = scheduler.schedule()
    batch = BatchBuilder(plan).build(schedule)
    for number, view in enumerate(arenas.views.values(), 1):
        if isinstance(view, StateView):
            view.write(batch.step, 0, [mx.full((1, *shape), number) for shape in view.shapes])
        else:
            view.write(batch.step, mx.full((20, *view.shape), number))
    mx.eval(batch.step.produced())
    arenas.commit(batch.step, batch.blocks, batch.slots)
    words = np.array(arenas.arrays[0]).view(np.float32)
    token_pages, state_pages = schedule.rows[0].tables
    run = words[list(state_pages)].reshape(-1)
    for number, binding in enumerate(plan.bindings, 1):
        if binding.spec.growth is Growth.STATE:
            part = run[binding.offset // 4 : binding.end // 4]
            assert (part == number).all()
        else:
            full, rest = (words[page, binding.offset // 4 : binding.end // 4] for page in token_pages)
            assert (full == number).all()
            assert (rest == number).sum() == 4 * 64 and (rest[rest != number] == 0).all()
    others = np.delete(words, [*token_pages, *state_pages], axis=0)
    assert not others.any(), "nothing else was written, the null page neither"


def test_another_writer_takes_every_write() -> None:
    class Counting(NumpyRows):
        def __init__(self) -> None:
            super().__init__()
            self.calls: list[str] = []

        def write_tokens(self, *args):  # type: ignore[no-untyped-def]
            self.calls.append("tokens")
            return super().write_tokens(*args)

        def write_runs(self, *args):  # type: ignore[no-untyped-def]
            self.calls.append("runs")
            return super().write_runs(*args)

        def zero_pages(self, *args):  # type: ignore[no-untyped-def]
            self.calls.append("zero")
            return super().zero_pages(*args)

    writer = Counting()
    plan = plan_of(8 * MIB)
    arenas = Arenas(plan, writer)
    scheduler = Scheduler(plan, plan.max_num_seqs, 64, lambda running, need: None)
    scheduler.add(Request("a", [0] * 3, 4))
    schedule = scheduler.schedule()
    arenas.zero(schedule.new_pages)
    batch = BatchBuilder(plan).build(schedule)
    for view in arenas.views.values():
        if isinstance(view, StateView):
            view.write(batch.step, 0, view.read(batch.step))
        else:
            view.write(batch.step, mx.zeros((3, *view.shape)))
    mx.eval(batch.step.produced())
    arenas.commit(batch.step, batch.blocks, batch.slots)
    assert sorted(writer.calls) == ["runs"] * 3 + ["tokens"] * 2 + ["zero"]
