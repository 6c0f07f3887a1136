"""What the scheduler does in cases that are named one by one; random ones are in test_scheduler_traces.py."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import pytest

from plait.errors import RequestError
from plait.plan import Plan, PlanRequest, SiteSpec, make_plan
from plait.scheduler.request import Request, RequestStatus
from plait.scheduler.scheduler import Schedule, Scheduler
from plait.spec import CacheSpec, Growth, Resume, TensorSpec

KV = CacheSpec(Growth.TOKEN, (TensorSpec("kv", (2, 2, 8), "float32", block_axis=2),))  # 2,048 bytes a page of 16
STATE = CacheSpec(Growth.STATE, (TensorSpec("s", (1536,), "float32"),), resume=Resume.CHECKPOINT)  # 3 such pages


def plan_of(specs: Sequence[CacheSpec], pages: int, length: int = 512, seqs: int = 8) -> Plan:
    """A spanning plan with `pages` pages of 16 tokens beside the null page."""
    sites = [SiteSpec(f"layers.{index}.mixer", spec) for index, spec in enumerate(specs)]
    page = 2048 * sum(spec is KV for spec in specs) or 64 * 1024
    request = PlanRequest(
        max_model_len=length, max_num_seqs=seqs, memory_bytes=(pages + 1) * page, enable_prefix_caching=False
    )
    plan = make_plan(sites, request)
    assert (plan.num_pages, plan.page_bytes) == (pages + 1, page)
    return plan


def newest(running: Sequence[Request], need: int) -> None:
    """Leave the choice of the victim to the scheduler."""
    return None


def scheduler_of(plan: Plan, budget: int = 64) -> Scheduler:
    return Scheduler(plan, plan.max_num_seqs, budget, newest)


def request_of(name: str, prompt: int, max_tokens: int) -> Request:
    return Request(name, list(range(prompt)), max_tokens)


def step(scheduler: Scheduler) -> Schedule:
    """Run one step: every row that samples gets a token, and who has all its tokens ends."""
    schedule = scheduler.schedule()
    for row in schedule.rows:
        scheduler.advance(row)
        if row.samples:
            row.request.output.append(7)
            if len(row.request.output) == row.request.max_tokens:
                scheduler.finish(row.request)
    scheduler.check_integrity()
    return schedule


def names(requests: Sequence[Request]) -> list[str]:
    return [request.id for request in requests]


def run_out(scheduler: Scheduler, steps: int = 1000) -> list[str]:
    """Step until nothing is left; returns the order in which requests ended."""
    left = [*scheduler.running, *scheduler.waiting]
    ended: list[str] = []
    for _ in range(steps):
        if not scheduler.unfinished:
            break
        assert step(scheduler).rows
        ended += [r.id for r in left if r.status is RequestStatus.FINISHED and r.id not in ended]
    assert scheduler.unfinished == 0
    assert scheduler.allocator.held_pages == 0
    return ended


# Refused at once


def test_longer_than_the_model() -> None:
    scheduler = scheduler_of(plan_of([KV], pages=100, length=64))
    with pytest.raises(RequestError) as caught:
        scheduler.add(request_of("a", 60, 5))
    assert str(caught.value) == (
        "The prompt has 60 tokens and max_tokens is 5, together 65; the model's maximum length here is 64. Shorten the "
        "prompt, lower max_tokens, or start with a larger --max-model-len."
    )
    assert (caught.value.param, caught.value.status, caught.value.code) == (
        "max_tokens",
        400,
        "context_length_exceeded",
    )
    assert scheduler.unfinished == 0
    scheduler.add(request_of("b", 60, 4))
    with pytest.raises(RequestError) as caught:
        scheduler.add(request_of("c", 64, 1))
    assert caught.value.param == "prompt"


def test_row_83_more_pages_than_there_are_is_refused_and_others_go_on() -> None:
    plan = plan_of([KV, STATE], pages=50, length=752)
    # A plan holds one request of max_model_len, so only one that was given a greater length can meet this.
    plan = attrs.evolve(plan, request=attrs.evolve(plan.request, max_model_len=4096))
    scheduler = scheduler_of(plan)
    scheduler.add(request_of("other", 20, 20))
    step(scheduler)
    with pytest.raises(RequestError) as caught:
        scheduler.add(request_of("a", 800, 240))
    assert str(caught.value) == (
        "The prompt (800 tokens) with max_tokens 240 needs 68 pages of 2,048 bytes; the engine has 50. At most 752 "
        "tokens fit. Lower max_tokens, or raise --kv-cache-memory-bytes."
    )
    assert (caught.value.param, caught.value.code) == ("max_tokens", "context_length_exceeded")
    assert run_out(scheduler) == ["other"]


def test_just_fits() -> None:
    scheduler = scheduler_of(plan_of([KV, STATE], pages=8, length=80))
    scheduler.add(request_of("a", 70, 10))
    assert run_out(scheduler) == ["a"]


# Waiting


def test_who_does_not_fit_now_waits_and_runs_later() -> None:
    scheduler = scheduler_of(plan_of([KV], pages=8, length=128))
    scheduler.add(request_of("big", 96, 4))
    scheduler.add(request_of("small", 40, 4))
    first = step(scheduler)
    assert names(first.admitted) == ["big"] and len(scheduler.waiting) == 1
    assert run_out(scheduler) == ["big", "small"]


def test_nobody_overtakes_the_head_of_the_line() -> None:
    scheduler = scheduler_of(plan_of([KV], pages=8, length=128), budget=256)
    for name, prompt in (("first", 60), ("big", 100), ("tiny", 4)):
        scheduler.add(request_of(name, prompt, 4))
    assert names(step(scheduler).admitted) == ["first"]
    assert names(step(scheduler).admitted) == []
    assert run_out(scheduler) == ["first", "big", "tiny"]


def test_row_10_max_num_seqs() -> None:
    scheduler = scheduler_of(plan_of([KV], pages=64, seqs=2))
    for name in "abc":
        scheduler.add(request_of(name, 4, 3))
    assert names(step(scheduler).admitted) == ["a", "b"]
    assert names(step(scheduler).admitted) == []
    assert [row.request.id for row in step(scheduler).rows] == ["a", "b"]
    assert names(step(scheduler).admitted) == ["c"]
    assert run_out(scheduler) == ["c"]


def test_row_10_more_sequences_than_states_fit() -> None:
    """64 asked, room for 5: the plan says so, the sixth waits, then completes."""
    plan = plan_of([KV, STATE], pages=20, length=16, seqs=64)
    assert plan.max_num_seqs == 5
    scheduler = scheduler_of(plan, budget=128)
    for name in "abcdef":
        scheduler.add(request_of(name, 8, 4))
    assert names(step(scheduler).admitted) == ["a", "b", "c", "d", "e"]
    assert run_out(scheduler) == ["a", "b", "c", "d", "e", "f"]


def test_row_7_eight_short_requests_run_together() -> None:
    """A short request costs its states and one block."""
    scheduler = scheduler_of(plan_of([STATE, KV], pages=64, length=32), budget=128)
    for index in range(8):
        scheduler.add(request_of(f"r{index}", 12, 4))
    schedule = step(scheduler)
    assert len(schedule.rows) == 8 and len(scheduler.running) == 8
    assert scheduler.allocator.held_pages == len(schedule.new_pages) == 8 * (3 + 1)
    assert step(scheduler).decode == 8


# Running out of pages


def two_that_outgrow_the_pool() -> tuple[Scheduler, Request, Request]:
    scheduler = scheduler_of(plan_of([KV], pages=6, length=96))
    old, new = request_of("old", 30, 40), request_of("new", 30, 40)
    scheduler.add(old)
    scheduler.add(new)
    return scheduler, old, new


def test_row_12_the_newest_gives_up_its_pages() -> None:
    scheduler, old, new = two_that_outgrow_the_pool()
    while True:
        schedule = step(scheduler)
        if schedule.preempted:
            break
        assert len(schedule.rows) == 2
    assert names(schedule.preempted) == ["new"]
    assert [row.request for row in schedule.rows] == [old]
    assert new.status is RequestStatus.WAITING and list(scheduler.waiting) == [new]
    assert (new.computed, new.tables, new.preemptions) == (0, [], 1)
    assert len(new.output) == 19, "6 pages of 16 hold 48 tokens of each: 30 and the 18 sampled ones before the last"
    assert schedule.admitted == []


def test_row_59_who_resumes_computes_everything_again() -> None:
    scheduler, old, new = two_that_outgrow_the_pool()
    while not step(scheduler).preempted:
        pass
    kept = list(new.output)
    while old.status is RequestStatus.RUNNING:
        assert [row.request for row in step(scheduler).rows] == [old]
    schedule = scheduler.schedule()
    assert schedule.admitted == [new] and schedule.decode == 0
    (row,) = schedule.rows
    assert (row.start, row.stop, row.samples) == (0, 49, True)
    assert list(row.request.token_ids(row.start, row.stop)) == [*new.prompt, *kept]
    assert set(schedule.new_pages) == {page for table in row.tables for page in table}
    scheduler.advance(row)
    new.output.append(7)
    assert run_out(scheduler) == ["new"]
    assert len(new.output) == 40 and new.output[:19] == kept


def test_who_resumes_goes_before_who_waits() -> None:
    scheduler = two_that_outgrow_the_pool()[0]
    scheduler.max_num_seqs = 2
    scheduler.add(request_of("later", 4, 2))
    while not step(scheduler).preempted:
        pass
    assert names(list(scheduler.waiting)) == ["new", "later"]
    admitted = []
    while scheduler.unfinished:
        admitted += names(step(scheduler).admitted)
    assert admitted == ["new", "later"]


def test_a_plugin_chooses_the_victim() -> None:
    asked: list[tuple[list[str], int]] = []

    def oldest(running: Sequence[Request], need: int) -> Request:
        asked.append((names(running), need))
        return running[0]

    plan = plan_of([KV], pages=6, length=96)
    scheduler = Scheduler(plan, plan.max_num_seqs, 64, oldest)
    for name in ("old", "new"):
        scheduler.add(request_of(name, 30, 40))
    while not (schedule := step(scheduler)).preempted:
        assert asked == []
    assert asked == [(["old", "new"], 1)]
    assert names(schedule.preempted) == ["old"]
    assert [row.request.id for row in schedule.rows] == ["new"]


def test_a_row_that_was_made_is_taken_back_with_its_pages() -> None:
    """The first request takes the last page; the second then takes the first one's pages."""

    def first(running: Sequence[Request], need: int) -> Request:
        return running[0]

    plan = plan_of([KV], pages=5, length=80)
    scheduler = Scheduler(plan, plan.max_num_seqs, 64, first)
    for name in ("a", "b"):
        scheduler.add(request_of(name, 30, 40))
    while not (schedule := step(scheduler)).preempted:
        pass
    assert names(schedule.preempted) == ["a"]
    assert [row.request.id for row in schedule.rows] == ["b"] and schedule.decode == 1
    held = {page for table in scheduler.running[0].tables for page in table}
    assert set(schedule.new_pages) <= held and len(schedule.new_pages) == 1
    assert run_out(scheduler) == ["b", "a"]


# Leaving early


def test_abort_of_one_that_waits() -> None:
    scheduler = scheduler_of(plan_of([KV], pages=8, seqs=1, length=128))
    running, waiting, last = (request_of(name, 20, 5) for name in ("running", "waiting", "last"))
    for request in (running, waiting, last):
        scheduler.add(request)
    step(scheduler)
    scheduler.finish(waiting)
    scheduler.check_integrity()
    assert waiting.status is RequestStatus.FINISHED and scheduler.unfinished == 2
    assert run_out(scheduler) == ["running", "last"]


def test_abort_of_one_that_runs_frees_its_pages() -> None:
    scheduler = scheduler_of(plan_of([KV, STATE], pages=20, length=128))
    a, b = request_of("a", 40, 5), request_of("b", 20, 5)
    scheduler.add(a)
    scheduler.add(b)
    step(scheduler)
    before = scheduler.allocator.free_pages
    scheduler.finish(a)
    scheduler.check_integrity()
    assert scheduler.allocator.free_pages == before + 3 + 3
    scheduler.finish(a)  # a second abort is late, not wrong
    assert [row.request for row in step(scheduler).rows] == [b]


def test_abort_in_the_middle_of_a_prompt() -> None:
    scheduler = scheduler_of(plan_of([KV, STATE], pages=20, length=128), budget=16)
    a = request_of("a", 100, 5)
    scheduler.add(a)
    assert step(scheduler).rows[0].stop == 16
    scheduler.finish(a)
    assert scheduler.allocator.held_pages == 0 and not scheduler.schedule().rows


def test_abort_of_one_that_just_gave_up_its_pages() -> None:
    scheduler, _, new = two_that_outgrow_the_pool()
    while not step(scheduler).preempted:
        pass
    scheduler.finish(new)
    scheduler.check_integrity()
    assert new.status is RequestStatus.FINISHED and not scheduler.waiting
    assert run_out(scheduler) == ["old"]


def test_a_row_whose_request_has_ended_is_not_advanced() -> None:
    scheduler = scheduler_of(plan_of([KV], pages=8, length=128))
    a = request_of("a", 20, 5)
    scheduler.add(a)
    (row,) = scheduler.schedule().rows
    scheduler.finish(a)
    scheduler.advance(row)
    assert a.computed == 0


# Chunks


def test_row_82_long_prompts_under_a_small_budget() -> None:
    """Every step moves, and requests end in the order in which they came."""
    scheduler = scheduler_of(plan_of([KV, STATE], pages=64, length=128, seqs=4), budget=16)
    for name in "abcd":
        scheduler.add(request_of(name, 100, 4))
    schedules = []
    while scheduler.unfinished:
        schedules.append(step(scheduler))
        assert 0 < schedules[-1].tokens <= 16
        assert len(schedules) < 100
    ended = [row.request.id for s in schedules for row in s.rows if len(row.request.output) == 4]
    assert list(dict.fromkeys(ended)) == ["a", "b", "c", "d"]
    prompts = sum(row.stop - row.start for s in schedules for row in s.rows if row.start < 100)
    assert prompts == 400, "no prompt token is computed twice"
    full = [s for s in schedules if s.tokens == 16]
    assert len(full) >= 400 // 16 - 1, "the budget is used while there are prompts"


def test_row_87_a_long_prompt_does_not_stop_who_decodes() -> None:
    scheduler = scheduler_of(plan_of([KV], pages=64, length=800), budget=16)
    talker = request_of("talker", 4, 60)
    scheduler.add(talker)
    step(scheduler)
    scheduler.add(request_of("reader", 600, 2))
    for _ in range(40):
        before = len(talker.output)
        schedule = step(scheduler)
        assert schedule.decode == 1 and schedule.rows[0].request is talker
        assert schedule.tokens == 16 and schedule.rows[1].stop - schedule.rows[1].start == 15
        assert len(talker.output) == before + 1


def test_row_81_a_prompt_of_three_budgets_runs() -> None:
    scheduler = scheduler_of(plan_of([KV], pages=64), budget=16)
    scheduler.add(request_of("a", 48, 1))
    spans = []
    while scheduler.unfinished:
        (row,) = step(scheduler).rows
        spans.append((row.start, row.stop, row.samples))
    assert spans == [(0, 16, False), (16, 32, False), (32, 48, True)]


def test_the_last_token_of_a_prompt_runs_beside_the_decode_rows() -> None:
    scheduler = scheduler_of(plan_of([KV], pages=64), budget=16)
    scheduler.add(request_of("a", 17, 2))
    assert [(r.start, r.stop, r.samples) for r in step(scheduler).rows] == [(0, 16, False)]
    schedule = step(scheduler)
    assert schedule.decode == 1 and [(r.start, r.stop, r.samples) for r in schedule.rows] == [(16, 17, True)]


def test_pages_grow_with_the_tokens() -> None:
    scheduler = scheduler_of(plan_of([KV, STATE], pages=64))
    request = request_of("a", 15, 40)
    scheduler.add(request)
    seen = []
    for _ in range(20):
        schedule = step(scheduler)
        seen.append((len(request.tables[0]), len(request.tables[1]), len(schedule.new_pages)))
    assert seen == [(1, 3, 4), (1, 3, 0), (2, 3, 1), *[(2, 3, 0)] * 15, (3, 3, 1), (3, 3, 0)]


# A request's tokens


@pytest.mark.parametrize(("start", "stop"), [(0, 3), (1, 3), (2, 5), (0, 6), (3, 6), (4, 5), (3, 3), (0, 0), (6, 6)])
def test_token_ids(start: int, stop: int) -> None:
    request = Request("a", [10, 11, 12], 8, output=[20, 21, 22])
    assert list(request.token_ids(start, stop)) == [10, 11, 12, 20, 21, 22][start:stop]
    assert request.num_tokens == 6 and request.held_pages == 0
