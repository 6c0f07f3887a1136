"""`plait generate`: complete prompts, here and now."""

from __future__ import annotations

import queue
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from plait.cli.output import note, print_json, usage
from plait.cli.parameters import MODEL
from plait.cli.settings import engine_settings, note_remote_code
from plait.engine.sampling_params import SamplingParams
from plait.errors import RequestError

if TYPE_CHECKING:
    from plait.engine.outputs import Delta, RequestOutput
    from plait.engine.thread import EngineThread


def generate(
    ctx: typer.Context,
    model: Annotated[str, MODEL],
    settings: dict[str, Any],
    options: dict[str, Any],
    prompt: Annotated[list[str] | None, typer.Option(help="A prompt; may be given several times.")] = None,
    prompt_file: Annotated[Path | None, typer.Option(help="A file that is the prompt.")] = None,
    chat: Annotated[
        bool | None, typer.Option("--chat/--no-chat", help="Apply the chat template; by default where there is one.")
    ] = None,
    max_tokens: Annotated[int, typer.Option(help="Tokens to generate, at most.")] = 256,
    temperature: Annotated[float, typer.Option(help="0 takes the likeliest token.")] = 1.0,
    top_p: Annotated[float, typer.Option(help="Only the likeliest tokens that add up to this are sampled.")] = 1.0,
    top_k: Annotated[int, typer.Option(help="Only this many likeliest tokens are sampled; 0 is no limit.")] = 0,
    stop: Annotated[list[str] | None, typer.Option(help="A text that ends the output; several may be given.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON when all is done.")] = False,
) -> None:
    """Complete prompts and print what the model says.

    The prompt is taken from --prompt, from --prompt-file or from standard input.
    """
    with usage():
        texts = _prompts(prompt or [], prompt_file)
        params = SamplingParams(
            max_tokens=max_tokens, temperature=temperature, top_p=top_p, top_k=top_k, stop=stop or []
        )
    asked = engine_settings(model, settings, options)
    note_remote_code(asked)
    from plait.engine.thread import EngineThread

    engine = EngineThread(asked, ctx.obj)
    try:
        run = _Run(engine, texts, params, chat)
        run.collect(stream=len(texts) == 1 and not as_json)
    finally:
        engine.shutdown()
    if as_json:
        print_json(run.as_json(model))
    elif len(texts) > 1:
        for text, output in zip(texts, run.outputs.values(), strict=True):
            print(f"=== {text.strip().splitlines()[0]}\n{output.outputs[0].text}\n")
    note("done", run.summary())


def _prompts(texts: Sequence[str], file: Path | None) -> list[str]:
    """Return the prompts, from the one place that has them."""
    if texts and file is not None:
        raise RequestError("--prompt and --prompt-file are given both; leave one out.")
    if texts:
        found = list(texts)
    elif file is not None:
        try:
            found = [file.read_text(encoding="utf-8")]
        except (OSError, UnicodeDecodeError) as error:
            raise RequestError(f"--prompt-file {file} cannot be read: {error}.") from error
    elif sys.stdin.isatty():
        raise RequestError("there is no prompt; give --prompt TEXT or --prompt-file FILE, or pipe one in.")
    else:
        found = [sys.stdin.read().removesuffix("\n")]
    if not all(text.strip() for text in found):
        raise RequestError("a prompt is empty; give one with --prompt TEXT, with --prompt-file FILE, or pipe one in.")
    return found


class _Run:
    """Prompts on their way through an engine.

    Attributes:
        outputs: by request id, in the order of the prompts.
        seconds: from the first submission to the last token.
    """

    def __init__(self, engine: EngineThread, texts: Sequence[str], params: SamplingParams, chat: bool | None) -> None:
        """Submit the prompts; raises `RequestError` before anything runs if one of them cannot be served."""
        from plait.engine.outputs import CompletionOutput, RequestOutput

        self.seconds = 0.0
        self.outputs: dict[str, RequestOutput] = {}
        self._deltas: queue.SimpleQueue[Delta] = queue.SimpleQueue()
        prompts = [_tokens(engine, text, chat) for text in texts]
        for ids in prompts:
            engine.check(ids, params)
        self._start = time.perf_counter()
        for text, ids in zip(texts, prompts, strict=True):
            request_id = engine.submit(ids, params, self._deltas.put)
            self.outputs[request_id] = RequestOutput(request_id, text, ids, [CompletionOutput(0, "", [])], False)

    def collect(self, *, stream: bool) -> None:
        """Wait for every request to finish, printing text as it comes if asked."""
        from plait.engine.llm import add_delta

        while not all(output.finished for output in self.outputs.values()):
            delta = self._deltas.get()
            if delta.error is not None:
                raise delta.error
            if delta.finish_reason == "abort":
                raise RequestError("the engine has stopped; what it logged says why.", status=503)
            add_delta(self.outputs[delta.request_id], delta)
            if stream:
                print(delta.text, end="", flush=True)
        self.seconds = time.perf_counter() - self._start
        if stream:
            print()

    @property
    def counts(self) -> tuple[int, int]:
        """Tokens of all prompts, and tokens generated."""
        outputs = self.outputs.values()
        return sum(len(o.prompt_token_ids) for o in outputs), sum(len(o.outputs[0].token_ids) for o in outputs)

    def summary(self) -> str:
        """Return a line for people."""
        prompt, generated = self.counts
        return (
            f"{prompt:,} prompt tokens, {generated:,} generated in {self.seconds:.2f} s, "
            f"{generated / self.seconds:.1f} tok/s"
        )

    def as_json(self, model: str) -> dict[str, Any]:
        """Return everything, as JSON values."""
        prompt, generated = self.counts
        outputs = []
        for output in self.outputs.values():
            completion = output.outputs[0]
            outputs.append(
                {
                    "prompt": output.prompt,
                    "prompt_tokens": len(output.prompt_token_ids),
                    "text": completion.text,
                    "token_ids": completion.token_ids,
                    "finish_reason": completion.finish_reason,
                    "stop_reason": completion.stop_reason,
                }
            )
        return {
            "model": model,
            "outputs": outputs,
            "prompt_tokens": prompt,
            "generated_tokens": generated,
            "seconds": self.seconds,
            "tokens_per_second": generated / self.seconds,
        }


def _tokens(engine: EngineThread, text: str, chat: bool | None) -> list[int]:
    tokenizer = engine.tokenizer
    if chat is None:
        chat = bool(tokenizer.has_chat_template)
    if not chat:
        return list(tokenizer.encode(text))
    if not tokenizer.has_chat_template:
        raise RequestError("--chat: the model's tokenizer has no chat template. Leave --chat out.")
    return list(tokenizer.apply_chat_template([{"role": "user", "content": text}], add_generation_prompt=True))
