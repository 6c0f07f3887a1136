"""The engine's thread: the only one that touches MLX. Everyone else sends it messages."""

from __future__ import annotations

import atexit
import queue
import random
import threading
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import mlx.core as mx
import structlog

from plait import logs
from plait.engine.core import EngineCore, Totals
from plait.engine.detokenizer import Detokenizer
from plait.engine.report import start_report
from plait.engine.request import EngineRequest, Sink
from plait.engine.sampling_params import SamplingParams
from plait.errors import CheckpointError, PlanError, RequestError
from plait.models.load import PlannedModel, load_model, plan_model
from plait.plan import Plan
from plait.plugins import Plugins
from plait.scheduler.request import Request
from plait.settings import Settings

log = structlog.get_logger(__name__)

Message = Callable[[EngineCore], None]
CPU_STEP_TOKENS = 512
GPU_STEP_TOKENS = 2048


class EngineThread:
    """An engine on a thread of its own.

    Attributes:
        settings: as given.
        plugins: of the engine.
        plan: the memory's layout.
        vocabulary: number of token ids.
        report: what was printed at start-up, line by line.
    """

    plan: Plan
    vocabulary: int
    report: list[str]

    def __init__(self, settings: Settings, plugins: Plugins | None = None) -> None:
        """Plan, load and start. Raises what planning and loading raise; the thread is gone then."""
        logs.configure_once()
        self.settings = settings
        self.plugins = plugins or Plugins()
        self._random = random.Random(settings.seed)
        self._inbox: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._main, name="plait-engine", daemon=True)
        self._thread.start()
        # A program that forgets to shut down must still end well.
        atexit.register(self.shutdown)
        self._ready.wait()
        if self._failure is not None:
            self.shutdown()
            raise self._failure

    @property
    def tokenizer(self) -> Any:
        """The model's tokenizer, as mlx-lm wraps it."""
        return self._tokenizer

    @property
    def alive(self) -> bool:
        """Whether requests are taken."""
        return self._thread.is_alive() and not self._closed

    def submit(self, prompt: Sequence[int], params: SamplingParams, sink: Sink, request_id: str | None = None) -> str:
        """Send a request to the engine; returns its id.

        Args:
            prompt: token ids.
            params: how it is sampled.
            sink: takes the deltas, on the engine's thread; the last one has a `finish_reason`.
            request_id: unique among the running ones; drawn if None.

        Raises:
            RequestError: the prompt is empty or has unknown token ids, or the request can never fit.
        """
        self._check_alive()
        tokens, limit = self.check(prompt, params)
        request_id = request_id or uuid.uuid4().hex
        sequence = Request(request_id, tokens, limit)
        seed = params.seed if params.seed is not None else self._random.getrandbits(63)
        eos = self._tokenizer.eos_token_ids
        request = EngineRequest(sequence, params, seed, eos, Detokenizer(self._fast_tokenizer, params), sink)
        self._inbox.put(lambda core: core.add(request))
        return request_id

    def abort(self, request_id: str) -> None:
        """Ask the engine to drop a request; its last delta says so, if it had not finished before."""
        self._inbox.put(lambda core: core.abort(request_id))

    def ask(self, question: Callable[[EngineCore], Any]) -> Any:
        """Run a function on the engine's thread between two steps, and return what it returns."""
        self._check_alive()
        answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._inbox.put(lambda core: answers.put(question(core)))
        while True:
            try:
                return answers.get(timeout=1.0)
            except queue.Empty:
                self._check_alive()

    @property
    def totals(self) -> Totals:
        """What the engine has done so far; read without stopping it."""
        return self._core.totals

    @property
    def load(self) -> tuple[int, int, int]:
        """Running requests, waiting requests, free pages; read without stopping the engine."""
        scheduler = self._core.scheduler
        return len(scheduler.running), len(scheduler.waiting), scheduler.allocator.free_pages

    def shutdown(self) -> None:
        """Abort what runs, free the memory and end the thread. May be called twice."""
        if not self._closed:
            self._closed = True
            self._inbox.put(None)
            atexit.unregister(self.shutdown)
        self._thread.join()

    def _check_alive(self) -> None:
        if not self.alive:
            raise RequestError("The engine has been shut down.", status=503, code="engine_shut_down")

    def check(self, prompt: Sequence[int], params: SamplingParams) -> tuple[list[int], int]:
        """Return the prompt and the tokens it may generate. Raises what `submit` raises."""
        tokens = list(prompt)
        if not tokens:
            raise RequestError("The prompt is empty; send at least one token.", param="prompt")
        bad = next(
            (t for t in tokens if isinstance(t, bool) or not isinstance(t, int) or not 0 <= t < self.vocabulary), None
        )
        if bad is not None:
            raise RequestError(
                f"The prompt holds token id {bad!r}; ids go from 0 to {self.vocabulary - 1}.", param="prompt"
            )
        for token in params.stop_token_ids:
            if not 0 <= token < self.vocabulary:
                raise RequestError(
                    f"stop_token_ids holds {token}; ids go from 0 to {self.vocabulary - 1}.", param="stop_token_ids"
                )
        scheduler = self._core.scheduler
        if params.max_tokens is not None:
            scheduler.check_fits(len(tokens), params.max_tokens)
            return tokens, params.max_tokens
        fits = self.plan.max_tokens_that_fit()
        longest = self.plan.request.max_model_len if fits is None else min(self.plan.request.max_model_len, fits)
        if len(tokens) >= longest:
            raise RequestError(
                f"The prompt has {len(tokens)} tokens; the model's maximum length here is {longest}, prompt and answer "
                "together. Shorten the prompt, or start with a larger --max-model-len or --kv-cache-memory-bytes.",
                param="prompt",
                code="context_length_exceeded",
            )
        return tokens, longest - len(tokens)

    def _main(self) -> None:
        try:
            self._start()
        except BaseException as error:
            self._failure = error
        else:
            self._ready.set()
            self._serve(self._core)
        finally:
            # Streams belong to their thread: one that outlives it brings the interpreter down at exit.
            mx.synchronize()
            mx.clear_cache()
            mx.clear_streams()
            self._ready.set()

    def _serve(self, core: EngineCore) -> None:
        """Run until told to end, and answer everyone before ending."""
        try:
            self._loop(core)
        except BaseException as error:
            log.critical("engine stopped", error=repr(error), exc_info=error)
        finally:
            self._closed = True
            self._drain()
            core.release()

    def _start(self) -> None:
        if self.settings.enable_prefix_caching:
            raise PlanError(
                "--enable-prefix-caching: the engine has no prefix index yet; `plait plan` shows the layout that it "
                "will use. Leave the option out."
            )
        settings = attrs.evolve(self.settings, options=self.plugins.options().values(self.settings.options))
        planned = plan_model(settings, self.plugins)
        self.plan = planned.plan
        self.vocabulary = planned.vocabulary
        self._tokenizer = planned.checkpoint.tokenizer()
        self._fast_tokenizer = _fast(self._tokenizer, planned)
        backend = self.plugins.kernel_backend()
        model = load_model(planned, backend)
        tokens = self._step_tokens()
        self._core = EngineCore(
            model, self.plan, self._tokenizer, tokens, self.plugins.choose_victim, self.plugins.step_done
        )
        self.report = start_report(planned, model, backend, self.plugins, settings, tokens)
        log.info("engine started", report=self.report)

    def _step_tokens(self) -> int:
        asked = self.settings.max_num_batched_tokens
        if asked is not None:
            return asked
        default = CPU_STEP_TOKENS if mx.default_device() == mx.cpu else GPU_STEP_TOKENS
        return max(default, self.plan.max_num_seqs)

    def _loop(self, core: EngineCore) -> None:
        while True:
            # An idle engine sleeps until a message comes.
            while not (core.busy and self._inbox.empty()):
                message = self._inbox.get()
                if message is None:
                    return
                message(core)
            core.step()

    def _drain(self) -> None:
        """Answer what was sent while the engine was ending."""
        while not self._inbox.empty():
            message = self._inbox.get()
            if message is not None:
                message(self._core)
        self._core.abort_all()


def _fast(tokenizer: Any, planned: PlannedModel) -> Any:
    """Return the `tokenizers` object behind a tokenizer; it decodes token by token."""
    inner = getattr(tokenizer, "backend_tokenizer", None)
    if inner is None:
        raise CheckpointError(
            f"{planned.checkpoint.path}: the tokenizer ({type(tokenizer._tokenizer).__name__}) has no tokenizer.json "
            "form, which incremental detokenisation needs. Convert it with transformers' save_pretrained."
        )
    return inner
