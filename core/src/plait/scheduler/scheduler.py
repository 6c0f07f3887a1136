"""Continuous batching with one token budget per step: decode rows first, then chunks, first come first served."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import attrs

from plait.errors import RequestError
from plait.memory.allocator import PageAllocator
from plait.plan import Plan
from plait.scheduler.request import Request, RequestStatus

ChooseVictim = Callable[[Sequence[Request], int], Request | None]


@attrs.frozen
class Row:
    """One request's part of a step: the known tokens from `start` up to `stop`.

    Attributes:
        request: whose tokens.
        start: tokens computed before the step.
        stop: tokens computed after it.
        samples: whether the last token's logits give the next token.
        tables: the request's page ids per table, as they are in this step.
    """

    request: Request
    start: int
    stop: int
    samples: bool
    tables: Sequence[Sequence[int]]


@attrs.frozen
class Schedule:
    """What runs in one step.

    Attributes:
        rows: the first `decode` rows have one token each and sample; then the chunks.
        decode: number of decode rows.
        new_pages: pages handed out since the last step; they are cleared before anything reads them.
        preempted: requests that gave up their pages and wait again.
        admitted: requests that began to run.
    """

    rows: Sequence[Row]
    decode: int
    new_pages: Sequence[int]
    preempted: Sequence[Request]
    admitted: Sequence[Request]

    @property
    def tokens(self) -> int:
        """Tokens of the step."""
        return sum(row.stop - row.start for row in self.rows)


@attrs.frozen
class StepReport:
    """What a step did; `plait_step_done` sees it.

    Attributes:
        index: number of the step, from 0.
        decode_rows: rows with one token.
        chunk_rows: rows with a part of a prompt.
        tokens: tokens of the step.
        preempted: ids of the requests that gave up their pages.
        running: requests that run after the step.
        waiting: requests that wait after the step.
        free_pages: pages that nobody holds after the step.
        seconds: wall time of the step.
        forward_seconds: of these, the time in which MLX was building and running the forward and the sampling.
    """

    index: int
    decode_rows: int
    chunk_rows: int
    tokens: int
    preempted: Sequence[str]
    running: int
    waiting: int
    free_pages: int
    seconds: float
    forward_seconds: float


class Scheduler:
    """Decides each step: who runs, how many tokens, on which pages."""

    def __init__(self, plan: Plan, max_num_seqs: int, max_num_batched_tokens: int, choose: ChooseVictim) -> None:
        assert max_num_batched_tokens >= max_num_seqs >= 1
        self.plan = plan
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.allocator = PageAllocator(plan.num_pages)
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self._choose = choose
        self._new_pages: list[int] = []

    @property
    def unfinished(self) -> int:
        """Requests that wait or run."""
        return len(self.waiting) + len(self.running)

    def check_fits(self, prompt_tokens: int, max_tokens: int) -> None:
        """Refuse a request that can never run to its end.

        Raises:
            RequestError: with the numbers.
        """
        limit = self.plan.request.max_model_len
        if prompt_tokens + max_tokens > limit:
            raise RequestError(
                f"The prompt has {prompt_tokens} tokens and max_tokens is {max_tokens}, together "
                f"{prompt_tokens + max_tokens}; the model's maximum length here is {limit}. Shorten the prompt, lower "
                "max_tokens, or start with a larger --max-model-len.",
                param="max_tokens" if prompt_tokens < limit else "prompt",
                code="context_length_exceeded",
            )
        need, have = self.plan.pages_for(prompt_tokens + max_tokens), self.plan.num_pages - 1
        if need > have:
            raise RequestError(
                f"The prompt ({prompt_tokens} tokens) with max_tokens {max_tokens} needs {need} pages of "
                f"{self.plan.page_bytes:,} bytes; the engine has {have}. At most {self.plan.max_tokens_that_fit()} "
                "tokens fit. Lower max_tokens, or raise --kv-cache-memory-bytes.",
                param="max_tokens",
                code="context_length_exceeded",
            )

    def add(self, request: Request) -> None:
        """Put a request at the end of the line. Raises `RequestError` if it can never run to its end."""
        self.check_fits(len(request.prompt), request.max_tokens)
        self.waiting.append(request)

    def finish(self, request: Request) -> None:
        """Take a request out, wherever it stands, and free its pages."""
        if request.status is RequestStatus.RUNNING:
            self.running.remove(request)
        elif request.status is RequestStatus.WAITING:
            self.waiting.remove(request)
        request.status = RequestStatus.FINISHED
        self._release(request)

    def schedule(self) -> Schedule:
        """Choose the rows of the next step. The rows are empty only if nothing is left to run."""
        budget = self.max_num_batched_tokens
        preempted: list[Request] = []
        decode = self._decode_rows(preempted)
        budget -= len(decode)
        decoding = {id(row.request) for row in decode}
        chunks: list[Row] = []
        for request in self.running:
            if budget and id(request) not in decoding:
                chunks.append(self._row(request, budget))
                budget -= chunks[-1].stop - chunks[-1].start
        admitted: list[Request] = []
        # Who just gave up pages must not take them back at once: the others need them.
        while budget and not preempted and self.waiting and len(self.running) < self.max_num_seqs:
            if not self._admit(self.waiting[0]):
                break
            request = self.waiting.popleft()
            admitted.append(request)
            chunks.append(self._row(request, budget))
            budget -= chunks[-1].stop - chunks[-1].start
        new_pages, self._new_pages = self._new_pages, []
        return Schedule([*decode, *chunks], len(decode), new_pages, preempted, admitted)

    def advance(self, row: Row) -> None:
        """Note that a row's tokens are in pages now."""
        if row.request.status is RequestStatus.RUNNING:
            row.request.computed = row.stop

    def check_integrity(self) -> None:
        """Assert that every page has one owner, and that each request holds just what its tokens need."""
        self.allocator.check_integrity()
        owned = [page for request in self.running for table in request.tables for page in table]
        assert len(owned) == len(set(owned)) == self.allocator.held_pages
        assert all(not request.held_pages and not request.computed for request in self.waiting)
        assert len(self.running) <= self.max_num_seqs
        for request in self.running:
            assert request.held_pages <= self.plan.pages_for(len(request.prompt) + request.max_tokens)
            assert request.computed < request.num_tokens

    def _decode_rows(self, preempted: list[Request]) -> list[Row]:
        """Give each request that lacks one token the page for it, taking pages from others if there is none."""
        rows = []
        for request in list(self.running):
            if request.status is not RequestStatus.RUNNING or request.num_tokens - request.computed != 1:
                continue
            if self._grow(request, preempted):
                rows.append(self._row(request, 1))
        # A later request may have given up its pages for an earlier one after its row was made, and the reverse.
        return [row for row in rows if row.request.status is RequestStatus.RUNNING]

    def _grow(self, request: Request, preempted: list[Request]) -> bool:
        """Give a running request the pages of its known tokens; False if it had to give up its own."""
        while (need := self._missing(request, request.num_tokens)) > self.allocator.free_pages:
            victim = self._choose(self.running, need - self.allocator.free_pages) or self.running[-1]
            assert victim in self.running, "the victim must be a running request"
            self._preempt(victim)
            preempted.append(victim)
            if victim is request:
                return False
        self._allocate(request, request.num_tokens)
        return True

    def _admit(self, request: Request) -> bool:
        """Let a waiting request run if the pages of its known tokens and its states are there."""
        if self._missing(request, request.num_tokens) > self.allocator.free_pages:
            return False
        self._allocate(request, request.num_tokens)
        request.status = RequestStatus.RUNNING
        self.running.append(request)
        return True

    def _row(self, request: Request, budget: int) -> Row:
        stop = min(request.num_tokens, request.computed + budget)
        return Row(request, request.computed, stop, stop == request.num_tokens, request.tables)

    def _missing(self, request: Request, tokens: int) -> int:
        return self.plan.pages_for(tokens) - request.held_pages

    def _allocate(self, request: Request, tokens: int) -> None:
        if not request.tables:
            request.tables = [[] for _ in self.plan.tables]
        for index, pages in enumerate(request.tables):
            missing = self.plan.table_pages(index, tokens) - len(pages)
            if missing > 0:
                new = self.allocator.allocate(missing)
                pages.extend(new)
                self._new_pages.extend(new)

    def _preempt(self, request: Request) -> None:
        """Take a request's pages; it waits at the head of the line and is computed again, prompt and output."""
        self.running.remove(request)
        self._release(request)
        request.status = RequestStatus.WAITING
        request.computed = 0
        request.preemptions += 1
        self.waiting.appendleft(request)

    def _release(self, request: Request) -> None:
        pages = [page for table in request.tables for page in table]
        self.allocator.free(pages)
        request.tables = []
        if self._new_pages and pages:
            freed = set(pages)
            self._new_pages = [page for page in self._new_pages if page not in freed]
