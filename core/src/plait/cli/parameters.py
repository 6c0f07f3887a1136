"""Options that several commands share: said once, and handed to a command as one dict."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import attrs
import typer

from plait.logs import LEVELS
from plait.settings import DTYPES, LAYOUTS, Settings

MODEL = typer.Argument(metavar="MODEL", help="A directory, a GGUF file, a Hugging Face repository, or a demo.")


def option(name: str, kind: Any, default: Any, help: str, *flags: str) -> inspect.Parameter:
    """Return an option as a parameter of a function, which is how typer takes it.

    Args:
        name: of the parameter; the flag is `--name` with "-" for "_" unless `flags` say otherwise.
        kind: its type, as typer takes it.
        default: its value when the user says nothing.
        help: one line.
        flags: as typer takes them.
    """
    annotation = Annotated[kind, typer.Option(*flags, help=help)]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _setting(name: str, kind: Any, help: str, *flags: str) -> inspect.Parameter:
    """An option of a field of `Settings`, with the field's own default."""
    return option(name, kind, attrs.fields_dict(Settings)[name].default, help, *flags)


MEMORY = (
    _setting("dtype", str, f"Of weights and activations: {', '.join(DTYPES)}. auto: float32 on CPU, else as stored."),
    _setting("max_model_len", int | None, "Tokens of prompt and output together; by default the model's own limit."),
    _setting("max_num_seqs", int, "Requests that run at one time."),
    _setting("gpu_memory_utilization", float, "Part of the device's memory for weights and pages together."),
    _setting(
        "kv_cache_memory_bytes", str | None, "Bytes for pages, as 4G or 512M; wins over --gpu-memory-utilization."
    ),
    _setting("block_size", int | None, "Tokens of a page; the spanning layout takes 16 or 32."),
    _setting("layout", str, f"How pages are laid out: {', '.join(LAYOUTS)}."),
    _setting("enable_prefix_caching", bool, "Keep finished prefixes for reuse."),
    _setting("kv_cache_dtype", str, "Of keys and values: only auto, the model's dtype."),
)
"""Options that decide how a model's memory is laid out: fields of `Settings`."""

RUN = (
    _setting("max_num_batched_tokens", int | None, "Tokens of one step; by default chosen by device."),
    _setting("seed", int | None, "Of requests that bring no seed; by default drawn."),
    _setting("trust_remote_code", bool, "Taken, and ignored: no remote code is ever run.", "--trust-remote-code"),
)
"""Further fields of `Settings`, of commands that run an engine."""

LOG_LEVEL, LOG_JSON, STRICT = "--log-level", "--log-json", "--strict-plugins"


def early(log_level: str) -> tuple[inspect.Parameter, ...]:
    """Return the options that count before plugins load; `plait.cli.app` reads them ahead of all others."""
    return (
        option("strict_plugins", bool, False, "Refuse to start if a plugin is set aside.", STRICT),
        option("log_level", str, log_level, f"What is logged: {', '.join(LEVELS)}.", LOG_LEVEL),
        option("log_json", bool, False, "Log one JSON object per event.", LOG_JSON),
    )


def gathered(
    function: Callable[..., Any],
    groups: Mapping[str, Mapping[str, inspect.Parameter]],
    dropped: Sequence[inspect.Parameter] = (),
) -> Callable[..., Any]:
    """Return `function` with groups of options in place of some of its parameters, for typer to read.

    Args:
        function: a command.
        groups: by the name of the parameter that gets a group's values as a dict: the options by their keys there.
        dropped: options that are accepted, and that `function` does not want to see.
    """
    own = [p for p in inspect.signature(function, eval_str=True).parameters.values() if p.name not in groups]
    taken = [parameter for group in groups.values() for parameter in group.values()]

    @functools.wraps(function)
    def run(**values: Any) -> Any:
        for parameter in dropped:
            del values[parameter.name]
        dicts = {
            name: {key: values.pop(parameter.name) for key, parameter in group.items()}
            for name, group in groups.items()
        }
        return function(**values, **dicts)

    signature = inspect.Signature([*own, *taken, *dropped])
    run.__signature__ = signature  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in signature.parameters.values()}
    return run


def by_name(*parameters: inspect.Parameter) -> dict[str, inspect.Parameter]:
    """Return parameters by their own names."""
    return {parameter.name: parameter for parameter in parameters}
