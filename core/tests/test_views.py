"""What a site writes through its view in one step, it reads in the next: both layouts, all kinds of spec."""

from __future__ import annotations

import math

import numpy as np
import pytest

import plait  # noqa: F401  before MLX
from plait.engine.batch import Batch, BatchBuilder
from plait.memory.arena import Arenas
from plait.memory.view import DTYPES, StateView, TokenView
from plait.plan import Plan, PlanRequest, SiteSpec, make_plan
from plait.scheduler.request import Request
from plait.scheduler.scheduler import Scheduler
from plait.spec import ITEMSIZE, CacheSpec, Growth, Resume, TensorSpec, check_spec

import mlx.core as mx  # isort: skip


def token(shape: tuple[int, ...], dtype: str = "float32", axis: int = 0, multiple: int = 16) -> CacheSpec:
    return check_spec(CacheSpec(Growth.TOKEN, (TensorSpec("rows", shape, dtype, axis),), multiple), "test")


def state(*tensors: tuple[tuple[int, ...], str]) -> CacheSpec:
    specs = tuple(TensorSpec(f"t{index}", shape, dtype) for index, (shape, dtype) in enumerate(tensors))
    return check_spec(CacheSpec(Growth.STATE, specs, resume=Resume.CHECKPOINT), "test")


KV = token((2, 2, 8), axis=2)
LATENT = token((576,), "bfloat16")
DELTA = state(((3, 40), "bfloat16"), ((4, 8, 6), "float32"))
ODD = state(((5,), "uint8"), ((3, 3), "float16"), ((7,), "int32"), ((2, 5), "uint32"))
MODELS = {
    "attention": ("spanning", 16, [KV, KV]),
    "attention, blocks of 32": ("spanning", 32, [KV, KV]),
    "latent": ("spanning", 16, [LATENT]),
    "latent beside attention": ("spanning", 16, [LATENT, token((1, 2, 24), "float16", 2), LATENT]),
    "block axis last": ("spanning", 16, [token((6, 4), "uint8", 2), token((3,), "int32", 1)]),
    "states only": ("spanning", 16, [DELTA, ODD]),
    "states and tokens": ("spanning", 16, [DELTA, DELTA, KV, ODD, DELTA, LATENT]),
    "a run of many small pages": ("spanning", 16, [state(((40, 37), "float32")), token((2,), "uint8")]),
    "unified attention": ("unified", 16, [KV, KV, KV]),
    "unified, kernel blocks of 8": ("unified", 24, [token((2, 2, 8), axis=2, multiple=8)]),
    "unified, a state that sets the block": ("unified", 16, [state(((100, 89), "float32")), KV, ODD, KV]),
    "unified, two kinds of token": ("unified", 48, [KV, token((32,)), DELTA, DELTA, DELTA, DELTA, KV, token((32,))]),
    "unified latent": ("unified", 64, [LATENT, LATENT, DELTA]),
    "unified states only": ("unified", 16, [DELTA, ODD, DELTA]),
}


class Rig:
    """Requests on pages, with the truth about every site kept beside."""

    def __init__(self, layout: str, block: int, specs: list[CacheSpec], seed: int = 0) -> None:
        sites = [SiteSpec(f"layers.{index}.mixer", spec) for index, spec in enumerate(specs)]
        length = 1500 if layout == "unified" else 200
        request = PlanRequest(max_model_len=length, max_num_seqs=4, layout=layout, block_size=block)
        self.plan: Plan = make_plan(sites, request)
        self.arenas = Arenas(self.plan)
        self.specs = {site.name: site.spec for site in sites}
        self.dice = np.random.default_rng(seed)
        for arena in self.arenas.arrays:
            np.array(arena, copy=False)[:] = 0x7FC07FC0  # NaN in every float dtype
        self.scheduler = Scheduler(self.plan, 4, 64, lambda running, need: None)
        self.builder = BatchBuilder(self.plan)
        self.rows: dict[tuple[str, str], list[mx.array]] = {}
        self.states: dict[tuple[str, str], list[mx.array]] = {}

    def random(self, shape: tuple[int, ...], dtype: str) -> mx.array:
        bits = self.dice.integers(0, 256, size=math.prod(shape) * ITEMSIZE[dtype], dtype=np.uint8)
        return mx.array(bits).view(DTYPES[dtype]).reshape(shape)

    def step(self) -> Batch:
        """One step: compare what every view reads, write anew, commit, and let the scheduler go on."""
        schedule = self.scheduler.schedule()
        self.arenas.zero(schedule.new_pages)
        batch = self.builder.build(schedule)
        for name, view in self.arenas.views.items():
            if isinstance(view, TokenView):
                self.read_tokens(name, view, batch)
                self.write_tokens(name, view, batch)
            else:
                self.read_states(name, view, batch)
                self.write_states(name, view, batch)
        mx.eval(batch.step.produced())
        self.arenas.commit(batch.step, batch.blocks, batch.slots)
        for row in batch.rows:
            self.scheduler.advance(row)
        for row in batch.sampling:
            row.request.output.append(1)
        return batch

    def read_tokens(self, name: str, view: TokenView, batch: Batch) -> None:
        spec = self.specs[name].tensors[0]
        block, axis = self.plan.kernel_block, spec.block_axis
        assert view.page_shape == (*spec.shape[:axis], block, *spec.shape[axis:])
        reads = []
        for group in batch.step.groups:
            pages = view.gather(group.blocks)
            reads += [(batch.rows[row], pages[row - group.start]) for row in range(group.start, group.stop)]
        for chunk in batch.step.chunks:
            reads.append((batch.rows[chunk.row], view.gather(chunk.blocks)))
        assert len(reads) == len(batch.rows)
        for row, pages in reads:
            assert pages.dtype == DTYPES[spec.dtype] and pages.shape[1:] == view.page_shape
            per_token = mx.moveaxis(pages, axis + 1, 1).reshape(-1, *spec.shape)
            known = self.rows.get((name, row.request.id), [])
            assert len(known) == row.start <= per_token.shape[0]
            if known:
                same_bits(per_token[: row.start], mx.stack(known))

    def write_tokens(self, name: str, view: TokenView, batch: Batch) -> None:
        spec = self.specs[name].tensors[0]
        rows = self.random((batch.step.tokens, *spec.shape), spec.dtype)
        view.write(batch.step, rows)
        start = 0
        for row in batch.rows:
            stop = start + row.stop - row.start
            self.rows.setdefault((name, row.request.id), []).extend(rows[start:stop])
            start = stop

    def read_states(self, name: str, view: StateView, batch: Batch) -> None:
        tensors = view.read(batch.step)
        for tensor, spec in zip(tensors, self.specs[name].tensors, strict=True):
            assert tensor.shape == (len(batch.rows), *spec.shape) and tensor.dtype == DTYPES[spec.dtype]
        for index, row in enumerate(batch.rows):
            zeros = [mx.zeros(spec.shape, dtype=DTYPES[spec.dtype]) for spec in self.specs[name].tensors]
            known = self.states.get((name, row.request.id), zeros)
            assert (name, row.request.id) in self.states or row.start == 0
            for tensor, value in zip(tensors, known, strict=True):
                same_bits(tensor[index], value)

    def write_states(self, name: str, view: StateView, batch: Batch) -> None:
        """The decode rows in one piece, each chunk in one of its own, as families do."""
        specs = self.specs[name].tensors
        spans = [(0, batch.step.decode)] if batch.step.decode else []
        spans += [(chunk.row, chunk.row + 1) for chunk in batch.step.chunks]
        for start, stop in spans:
            tensors = [self.random((stop - start, *spec.shape), spec.dtype) for spec in specs]
            view.write(batch.step, start, tensors)
            for row in range(start, stop):
                self.states[name, batch.rows[row].request.id] = [tensor[row - start] for tensor in tensors]


def same_bits(a: mx.array, b: mx.array) -> None:
    assert a.dtype == b.dtype and a.shape == b.shape
    left, right = (np.array(mx.contiguous(x).reshape(-1).view(mx.uint8)) for x in (a, b))
    np.testing.assert_array_equal(left, right)


@pytest.mark.parametrize("model", MODELS)
def test_what_is_written_is_read_in_the_next_step(model: str) -> None:
    rig = Rig(*MODELS[model])
    for name, prompt in (("long", 90), ("short", 5), ("block", 32)):
        rig.scheduler.add(Request(name, [0] * prompt, 60))
    for _ in range(6):
        rig.step()
    # Later requests take pages that were used before.
    rig.scheduler.finish(rig.scheduler.running[0])
    rig.scheduler.add(Request("late", [0] * 70, 40))
    for _ in range(20):
        batch = rig.step()
    assert batch.step.decode == 3
    kinds = {type(view) for view in rig.arenas.views.values()}
    growths = {spec.growth for spec in rig.specs.values()}
    assert kinds == {TokenView if growth is Growth.TOKEN else StateView for growth in growths}


def test_the_cases_are_what_they_are_called() -> None:
    plans = {model: Rig(*MODELS[model]).plan for model in MODELS}
    eights = plans["unified, kernel blocks of 8"]
    assert (eights.block_size, eights.kernel_block) == (24, 8)
    raised = plans["unified, a state that sets the block"]
    assert (raised.block_size, raised.kernel_block) == (288, 32)
    many = plans["unified, two kinds of token"]
    assert (len(many.arenas), len(many.tables)) == (2, 4)
    assert plans["a run of many small pages"].state_pages == 12
    assert all(plan.kernel_block == plan.block_size for model, plan in plans.items() if "unified" not in model)


@pytest.mark.parametrize("model", MODELS)
def test_row_4_bytes_of_specs_and_roundings_are_the_bytes_allocated(model: str) -> None:
    rig = Rig(*MODELS[model])
    plan, arenas = rig.plan, rig.arenas
    assert arenas.nbytes == sum(array.nbytes for array in arenas.arrays) == plan.nbytes
    for tokens in (1, 17, 200):
        blocks = -(-tokens // plan.block_size)
        per_token = sum(s.nbytes for s in rig.specs.values() if s.growth is Growth.TOKEN)
        per_sequence = sum(s.nbytes for s in rig.specs.values() if s.growth is Growth.STATE)
        rows = blocks * plan.block_size * per_token if per_token else 0
        waste = (blocks * plan.waste.per_block if per_token else 0) + plan.waste.per_sequence
        pages = plan.pages_for(tokens)
        assert rows + per_sequence + waste == pages * sum(array.nbytes // array.shape[0] for array in arenas.arrays)
    for binding in plan.bindings:
        view = arenas.views[binding.site]
        if isinstance(view, TokenView):
            window = view.window
            row = window.outer * window.inner * window.unit
            assert row == binding.spec.nbytes
            assert window.block * row * plan.block_size // plan.kernel_block == binding.nbytes
            assert window.page * window.unit * plan.block_size // plan.kernel_block == plan.page_bytes
        else:
            unit = 512 if plan.layout == "spanning" else 4
            ends = [-(-4 * window.words // unit) * unit for window in view.windows]
            assert sum(ends) == binding.nbytes
            assert [4 * w.words - t.nbytes for w, t in zip(view.windows, binding.spec.tensors, strict=True)] == [
                -t.nbytes % 4 for t in binding.spec.tensors
            ]


def test_rows_of_another_dtype_are_cast_to_the_spec() -> None:
    rig = Rig("spanning", 16, [token((4,), "bfloat16"), state(((6,), "float32"), ((2,), "float16"))])
    rig.scheduler.add(Request("a", [0] * 3, 4))
    batch = rig.builder.build(rig.scheduler.schedule())
    tokens, states = rig.arenas.views.values()
    assert isinstance(tokens, TokenView) and isinstance(states, StateView)
    tokens.write(batch.step, mx.full((3, 4), 1.5))
    states.write(batch.step, 0, [mx.full((1, 6), 2, dtype=mx.bfloat16), mx.full((1, 2), 0.25)])
    assert [array.dtype for array in batch.step.produced()] == [mx.bfloat16, mx.float32, mx.float16]
    mx.eval(batch.step.produced())
    rig.arenas.commit(batch.step, batch.blocks, batch.slots)
    rig.scheduler.advance(batch.rows[0])
    batch.rows[0].request.output.append(1)
    batch = rig.builder.build(rig.scheduler.schedule())
    assert tokens.gather(batch.step.groups[0].blocks)[0, 0, :3].tolist() == [[1.5] * 4] * 3
    assert [tensor.tolist() for tensor in states.read(batch.step)] == [[[2.0] * 6], [[0.25] * 2]]


def test_rows_of_a_wrong_shape_are_our_mistake() -> None:
    rig = Rig("spanning", 16, [token((4,)), state(((6,), "float32"))])
    rig.scheduler.add(Request("a", [0] * 3, 4))
    batch = rig.builder.build(rig.scheduler.schedule())
    tokens, states = rig.arenas.views.values()
    assert isinstance(tokens, TokenView) and isinstance(states, StateView)
    for shape in ((2, 4), (3, 5), (3, 2, 2)):
        with pytest.raises(AssertionError):
            tokens.write(batch.step, mx.zeros(shape))
    with pytest.raises(AssertionError):
        states.write(batch.step, 0, [mx.zeros((1, 5))])
    with pytest.raises(ValueError):
        states.write(batch.step, 0, [mx.zeros((1, 6)), mx.zeros((1, 6))])


def test_states_of_all_sites_are_gathered_once() -> None:
    rig = Rig("spanning", 16, [DELTA, DELTA, ODD])
    rig.scheduler.add(Request("a", [0] * 3, 4))
    step = rig.builder.build(rig.scheduler.schedule()).step
    for view in rig.arenas.views.values():
        assert isinstance(view, StateView)
        view.read(step)
    assert len(step._runs) == 1
