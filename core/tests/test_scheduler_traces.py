"""Random traces over the scheduler and the pages, with a model of what each page holds; no arrays.

Every page remembers what was written to it last. Reading another request's rows, or rows of an earlier life of the
same request, or a page that was cleared while somebody held it, fails the trace.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Sequence
from typing import Any

import attrs
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from plait.errors import RequestError
from plait.plan import Layout, Plan, PlanRequest, SiteSpec, make_plan
from plait.scheduler.request import Request, RequestStatus
from plait.scheduler.scheduler import Row, Schedule, Scheduler
from plait.spec import CacheSpec, Growth, Resume, TensorSpec

TOKEN_SPECS = (
    CacheSpec(Growth.TOKEN, (TensorSpec("kv", (2, 2, 8), "float32", block_axis=2),)),
    CacheSpec(Growth.TOKEN, (TensorSpec("latent", (32,), "float32"),)),  # the same bytes: unified takes both
)
STATE_SPECS = (
    CacheSpec(Growth.STATE, (TensorSpec("conv", (3, 40), "float32"),), resume=Resume.CHECKPOINT),
    CacheSpec(
        Growth.STATE,
        (TensorSpec("conv", (3, 64), "bfloat16"), TensorSpec("state", (2, 32, 32), "float32")),
        resume=Resume.CHECKPOINT,
    ),
)
SITES = {
    "token only": TOKEN_SPECS[:1] * 2,
    "two kinds of token": TOKEN_SPECS,
    "token and state": (STATE_SPECS[1], STATE_SPECS[0], TOKEN_SPECS[0]),
    "many tables": (STATE_SPECS[1], TOKEN_SPECS[0], STATE_SPECS[0], TOKEN_SPECS[1], STATE_SPECS[1], STATE_SPECS[1]),
    "state only": (STATE_SPECS[1], STATE_SPECS[0]),
}


@attrs.define(eq=False)
class Life:
    """What a trace knows of a request."""

    request: Request
    stop_early: bool
    pages: set[int] = attrs.field(factory=set)


def small_plan(kind: str, layout: Layout, length: int, seqs: int, spare: int) -> Plan:
    """A plan whose pool holds one request of `length` tokens and `spare` pages more."""
    sites = [SiteSpec(f"layers.{index}.mixer", spec) for index, spec in enumerate(SITES[kind])]
    request = PlanRequest(max_model_len=length, max_num_seqs=seqs, layout=layout, enable_prefix_caching=False)
    free = make_plan(sites, request)
    budget = free.page_id_bytes * (1 + free.pages_for(length) + spare)
    return make_plan(sites, attrs.evolve(request, memory_bytes=budget))


class Trace:
    """A scheduler, and a model of it that is compared after every step."""

    def __init__(self, plan: Plan, extra_budget: int, victims: str, seed: int) -> None:
        self.plan = plan
        self.length = plan.request.max_model_len
        self.random = random.Random(seed)
        self.victims = victims
        self.budget = plan.max_num_seqs + extra_budget
        self.scheduler = Scheduler(plan, plan.max_num_seqs, self.budget, self.choose)
        self.lives: dict[int, Life] = {}
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.memory: dict[int, dict[Any, Any]] = {page: {"poison": 0} for page in range(1, plan.num_pages)}
        self.seen: Counter[str] = Counter()

    def choose(self, running: Sequence[Request], need: int) -> Request | None:
        assert need >= 1
        assert list(running) == self.running
        victim = None
        if self.victims == "oldest":
            victim = running[0]
        elif self.victims == "any" or (self.victims == "mixed" and self.random.random() < 0.5):
            victim = self.random.choice(running)
        gone = victim or running[-1]
        # The model follows: who gives up pages waits at the head of the line.
        self.running.remove(gone)
        self.waiting.appendleft(gone)
        return victim

    def arrive(self, prompt: int, max_tokens: int, stop_early: bool = False) -> None:
        request = Request(f"r{self.seen['arrivals']}", self.tokens(prompt), max_tokens)
        self.seen["arrivals"] += 1
        total = prompt + max_tokens
        fits = total <= self.length and brute_pages(self.plan, total) <= self.plan.num_pages - 1
        try:
            self.scheduler.add(request)
        except RequestError:
            assert not fits
            self.seen["refused"] += 1
        else:
            assert fits
            self.lives[id(request)] = Life(request, stop_early)
            self.waiting.append(request)

    def tokens(self, count: int) -> list[int]:
        return [self.random.randrange(1000) for _ in range(count)]

    # What must hold

    def sound(self) -> None:
        self.scheduler.check_integrity()
        assert list(self.scheduler.waiting) == list(self.waiting)
        assert self.scheduler.running == self.running
        assert self.scheduler.unfinished == len(self.lives)
        held = [page for request in self.running for table in request.tables for page in table]
        assert len(held) == len(set(held)) and 0 not in held
        assert all(0 < page < self.plan.num_pages for page in held)
        assert self.scheduler.allocator.held_pages == len(held)
        assert self.scheduler.allocator.free_pages == self.plan.num_pages - 1 - len(held)

    def drain(self) -> None:
        """Every request ends, and nothing is held then."""
        bound = 50 + 30 * sum(life.request.num_tokens + life.request.max_tokens for life in self.lives.values())
        for _ in range(bound):
            if not self.lives:
                break
            self.step()
            self.sound()
        assert not self.lives, f"{len(self.lives)} requests never end"
        assert self.scheduler.unfinished == 0
        assert self.scheduler.allocator.held_pages == 0
        assert self.scheduler.allocator.free_pages == self.plan.num_pages - 1

    def step(self) -> None:
        if not self.lives:
            return
        before = {id(request): [list(table) for table in request.tables] for request in self.running}
        lacking = [request for request in self.running if request.num_tokens - request.computed == 1]
        kept = {id(life.request): list(life.request.output) for life in self.lives.values()}
        was_running = list(self.running)
        schedule = self.scheduler.schedule()
        self.count(schedule, lacking)
        self.check_preempted(schedule, was_running, kept)
        self.check_admitted(schedule)
        self.check_rows(schedule, lacking, before)
        self.check_new_pages(schedule, before)
        self.run(schedule)

    def count(self, schedule: Schedule, lacking: list[Request]) -> None:
        """Note how much of what can happen did happen."""
        self.seen["steps"] += 1
        self.seen["preempted"] += len(schedule.preempted)
        self.seen["resumed"] += sum(request.preemptions > 0 for request in schedule.admitted)
        self.seen["cut"] += any(row.stop < row.request.num_tokens for row in schedule.rows)
        running = {id(request) for request in self.running}
        lost = [r for r in lacking if id(r) not in running]
        self.seen["lost a row"] += bool(lost) and lacking.index(lost[0]) < len(lacking) - len(lost)

    def check_preempted(self, schedule: Schedule, was_running: list[Request], kept: dict[int, list[int]]) -> None:
        for victim in schedule.preempted:
            assert victim in was_running
            assert victim.status is RequestStatus.WAITING
            assert victim.computed == 0 and victim.held_pages == 0
            assert victim.output == kept[id(victim)], "what was generated is kept"
            self.lives[id(victim)].pages = set()
        if self.victims == "newest" and schedule.preempted:
            assert list(schedule.preempted) == was_running[: -len(schedule.preempted) - 1 : -1]

    def check_admitted(self, schedule: Schedule) -> None:
        """First come, first served, and nobody is left waiting without a reason."""
        for request in schedule.admitted:
            assert self.waiting.popleft() is request
            assert request.status is RequestStatus.RUNNING
            self.running.append(request)
        if schedule.preempted:
            assert not schedule.admitted
        elif self.waiting and schedule.tokens < self.budget and len(self.running) < self.plan.max_num_seqs:
            need = brute_pages(self.plan, self.waiting[0].num_tokens)
            assert need > self.scheduler.allocator.free_pages, "the head of the line would have fitted"

    def check_rows(self, schedule: Schedule, lacking: list[Request], before: dict[int, list[list[int]]]) -> None:
        rows = schedule.rows
        assert rows, "nothing runs, though there are requests"
        assert len({id(row.request) for row in rows}) == len(rows) <= self.plan.max_num_seqs
        assert 0 < schedule.tokens == sum(row.stop - row.start for row in rows) <= self.budget
        decode, chunks = rows[: schedule.decode], rows[schedule.decode :]
        assert [row.request for row in decode] == [r for r in lacking if r.status is RequestStatus.RUNNING]
        assert all(row.stop - row.start == 1 and row.samples and row.start >= 1 for row in decode)
        others = [r for r in self.running if r not in [row.request for row in decode]]
        assert [row.request for row in chunks] == others[: len(chunks)], "chunks in the order of admission"
        cut = [row for row in chunks if row.stop < row.request.num_tokens]
        assert cut in ([], [chunks[-1]] if chunks else []), "only the last chunk is cut short"
        if cut or len(chunks) < len(others):
            assert schedule.tokens == self.budget
        for row in rows:
            assert row.start == row.request.computed < row.stop <= row.request.num_tokens
            assert row.samples == (row.stop == row.request.num_tokens)
            assert [list(table) for table in row.tables] == [list(table) for table in row.request.tables]
            for index, table in enumerate(row.tables):
                assert len(table) == brute_table_pages(self.plan, index, row.request.num_tokens)
            old = before.get(id(row.request), [[] for _ in row.tables])
            assert all(table[: len(was)] == was for table, was in zip(row.tables, old, strict=True)), "pages stay"

    def check_new_pages(self, schedule: Schedule, before: dict[int, list[list[int]]]) -> None:
        expected = []
        for request in self.running:
            life = self.lives[id(request)]
            now = {page for table in request.tables for page in table}
            expected.extend(now - life.pages)
            life.pages = now
        assert sorted(schedule.new_pages) == sorted(expected), "each page is cleared once, when it has a new owner"

    def run(self, schedule: Schedule) -> None:
        """Play the step on the model's memory, then sample."""
        for page in schedule.new_pages:
            self.memory[page] = {}
        for row in schedule.rows:
            self.read(row)
        for row in schedule.rows:
            self.write(row)
            self.scheduler.advance(row)
            assert row.request.computed == row.stop
        for row in schedule.rows:
            request = row.request
            if not row.samples:
                continue
            request.output.append(self.random.randrange(1000))
            early = self.lives[id(request)].stop_early and self.random.random() < 0.03
            if early or len(request.output) == request.max_tokens:
                self.finish(request)

    def read(self, row: Row) -> None:
        owner = (row.request.id, row.request.preemptions)
        for index, table in enumerate(row.tables):
            if self.plan.tables[index].growth is Growth.STATE:
                wanted = {"state": (owner, row.start)} if row.start else {}
                assert all(self.memory[page] == wanted for page in table), "a state is another's, or not cleared"
                continue
            block = self.plan.block_size
            for place, page in enumerate(table):
                tokens = range(place * block, min(row.start, (place + 1) * block))
                rows = {slot % block: (owner, index, slot, row.request.token_ids(slot, slot + 1)[0]) for slot in tokens}
                assert self.memory[page] == rows, "a row is another's, or not cleared"

    def write(self, row: Row) -> None:
        owner = (row.request.id, row.request.preemptions)
        block = self.plan.block_size
        for index, table in enumerate(row.tables):
            if self.plan.tables[index].growth is Growth.STATE:
                for page in table:
                    self.memory[page] = {"state": (owner, row.stop)}
                continue
            if self.plan.tables[index].sites:
                for token, value in enumerate(row.request.token_ids(row.start, row.stop), row.start):
                    self.memory[table[token // block]][token % block] = (owner, index, token, value)

    def finish(self, request: Request) -> None:
        self.scheduler.finish(request)
        assert request.status is RequestStatus.FINISHED and request.held_pages == 0
        del self.lives[id(request)]
        if request in self.running:
            self.running.remove(request)
        else:
            self.waiting.remove(request)


def brute_table_pages(plan: Plan, index: int, tokens: int) -> int:
    """Pages of one table, counted and not divided."""
    table = plan.tables[index]
    if not table.sites:
        return 0
    if table.growth is Growth.STATE:
        run = max(binding.end for binding in plan.bindings if binding.table == index)
        return len(range(0, run, plan.page_bytes))
    return len(range(0, tokens, plan.block_size))


def brute_pages(plan: Plan, tokens: int) -> int:
    return sum(brute_table_pages(plan, index, tokens) for index in range(len(plan.tables)))


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    """Traces over plans whose pools hold little more than one request of the greatest length."""
    plan = small_plan(
        draw(st.sampled_from(sorted(SITES))),
        draw(st.sampled_from(list(Layout))),
        draw(st.integers(1, 40) | st.integers(30, 120)),
        draw(st.sampled_from([1, 2, 3, 4, 6, 8])),
        draw(st.integers(0, 12)),
    )
    victims = draw(st.sampled_from(["newest", "oldest", "any", "mixed"]))
    return Trace(plan, draw(st.integers(0, 50)), victims, draw(st.integers(0, 2**16)))


class Traces(RuleBasedStateMachine):
    """Arrivals, steps, early ends and aborts, in any order."""

    trace: Trace | None = None

    @initialize(trace=traces())
    def start(self, trace: Trace) -> None:
        self.trace = trace

    @rule(prompt=st.integers(1, 130), max_tokens=st.integers(1, 130), stop_early=st.booleans())
    def arrive(self, prompt: int, max_tokens: int, stop_early: bool) -> None:
        assert self.trace
        self.trace.arrive(prompt, max_tokens, stop_early)

    @rule(prompt=st.integers(1, 20), part=st.floats(0.2, 1.0), count=st.integers(2, 5))
    def arrive_alike(self, prompt: int, part: float, count: int) -> None:
        """Short prompts with long answers; they grow in the same steps, and outgrow the pool together."""
        assert self.trace
        prompt = min(prompt, max(1, self.trace.length - 1))
        for _ in range(count):
            self.trace.arrive(prompt, max(1, int(part * (self.trace.length - prompt))))

    @precondition(lambda self: self.trace.lives)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        assert self.trace
        self.trace.finish(data.draw(st.sampled_from([life.request for life in self.trace.lives.values()])))

    @precondition(lambda self: any(request.preemptions for request in self.trace.waiting))
    @rule()
    def abort_one_that_gave_up_its_pages(self) -> None:
        assert self.trace
        self.trace.finish(next(request for request in self.trace.waiting if request.preemptions))

    @rule(count=st.integers(1, 25))
    def steps(self, count: int) -> None:
        assert self.trace
        for _ in range(count):
            self.trace.step()

    @invariant()
    def sound(self) -> None:
        if self.trace:
            self.trace.sound()

    def teardown(self) -> None:
        if self.trace:
            self.trace.drain()


TestTraces = Traces.TestCase
TestTraces.settings = settings(
    max_examples=60,
    stateful_step_count=30,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.parametrize("layout", list(Layout))
@pytest.mark.parametrize("victims", ["newest", "oldest", "any", "mixed"])
def test_pools_that_are_too_small_for_all_at_once(layout: Layout, victims: str) -> None:
    """Hypothesis likes short traces; these are long, and crowded."""
    seen: Counter[str] = Counter()
    for seed in range(15):
        dice = random.Random(f"{layout} {victims} {seed}")
        kind = dice.choice([kind for kind in SITES if kind != "state only"])
        plan = small_plan(kind, layout, dice.randint(50, 150), dice.randint(2, 6), dice.randint(0, 10))
        trace = Trace(plan, dice.choice([0, 3, 16, 60]), victims, seed)
        for _ in range(dice.randint(2, 4)):
            crowd(trace, dice)
        trace.drain()
        seen += trace.seen
    # The traces were worth running.
    assert seen["steps"] > 2000 and seen["cut"] > 200
    assert seen["preempted"] > 15 and seen["resumed"] > 10
    assert victims == "newest" or seen["lost a row"] > 5


def crowd(trace: Trace, dice: random.Random) -> None:
    """Bring some requests, alike or not, and run for a while; now and then one is aborted."""
    alike = dice.random() < 0.5
    prompt = dice.randint(1, 20)
    for _ in range(dice.randint(2, 5)):
        prompt = prompt if alike else dice.randint(1, trace.length // 2)
        room = trace.length - prompt
        trace.arrive(prompt, room if dice.random() < 0.6 else dice.randint(1, room), stop_early=dice.random() < 0.2)
        for _ in range(0 if alike else dice.randint(0, 4)):
            trace.step()
            trace.sound()
    for _ in range(dice.randint(5, 80)):
        trace.step()
        trace.sound()
        if trace.lives and dice.random() < 0.02:
            trace.finish(dice.choice([life.request for life in trace.lives.values()]))
