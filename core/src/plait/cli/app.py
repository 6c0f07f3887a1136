"""The app: which commands there are, how errors leave it, and how plugins' options come in."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import attrs
import typer
from typer.core import TyperGroup
from typer.main import get_command

import plait
from plait import logs
from plait.cli.doctor import doctor
from plait.cli.families import families
from plait.cli.generate import generate
from plait.cli.output import FAILED, print_error
from plait.cli.parameters import LOG_JSON, LOG_LEVEL, MEMORY, RUN, STRICT, by_name, early, gathered
from plait.cli.plan import plan
from plait.cli.plugin_options import plugin_parameters
from plait.cli.serve import serve
from plait.errors import PlaitError


@attrs.frozen
class EngineCommand:
    """A command that runs an engine, and so takes the options of plugins.

    Attributes:
        run: the command; it gets `settings` and `options` as dicts, and the plugins as the context's `obj`.
        log_level: from which events are logged if the user says nothing.
    """

    run: Callable[..., Any]
    log_level: str

    def function(self, options: Mapping[str, Any]) -> Callable[..., Any]:
        """Return the command with all its options, for typer to read."""
        groups = {"settings": by_name(*MEMORY, *RUN), "options": options}
        return gathered(self.run, groups, early(self.log_level))


ENGINE_COMMANDS = {"serve": EngineCommand(serve, "info"), "generate": EngineCommand(generate, "warning")}


class PlaitGroup(TyperGroup):
    """Prints Plait's own errors as messages, and loads plugins for the commands that take their options."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; a `PlaitError` is one message and status 1, any other exception keeps its traceback."""
        try:
            return super().invoke(ctx)
        except PlaitError as error:
            print_error(error)
            raise typer.Exit(FAILED) from error

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that is about to run; here, and not for a mere list of commands, plugins load."""
        name, command, rest = super().resolve_command(ctx, args)
        if command is not None and (engine_command := ENGINE_COMMANDS.get(command.name or "")):
            from plait.plugins import Plugins

            ctx.obj = Plugins(strict=_start_logs(rest, engine_command.log_level))
            flags = {flag for param in command.params for flag in (*param.opts, *param.secondary_opts)} | {"--help"}
            options = plugin_parameters(ctx.obj.options(), str(command.name), flags)
            command = get_command(_single(str(command.name), engine_command.function(options)))
        return name, command, rest


def build_app() -> typer.Typer:
    """Return the command line."""
    app = typer.Typer(
        cls=PlaitGroup,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["--help", "-h"]},
    )
    app.callback(invoke_without_command=True)(_root)
    for name, engine_command in ENGINE_COMMANDS.items():
        app.command(name)(engine_command.function({}))
    app.command("plan")(gathered(plan, {"settings": by_name(*MEMORY)}))
    app.command("doctor")(doctor)
    app.command("families")(families)
    return app


def _root(
    ctx: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.", is_eager=True)] = False,
) -> None:
    """Plait serves hybrid-attention language models on MLX."""
    if version:
        print(f"plait {plait.__version__}")
        raise typer.Exit
    if ctx.invoked_subcommand is None:
        print(ctx.get_help())
        raise typer.Exit


def _single(name: str, function: Callable[..., Any]) -> typer.Typer:
    app = typer.Typer(
        add_completion=False, rich_markup_mode=None, context_settings={"help_option_names": ["--help", "-h"]}
    )
    app.command(name)(function)
    return app


def _start_logs(args: Sequence[str], level: str) -> bool:
    """Set logs up as a command line asks, before all of it can be understood; returns whether plugins are strict.

    Plugins say something while they load, and only when they are loaded is it known which options there are.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument(LOG_LEVEL, dest="level", default=level)
    parser.add_argument(LOG_JSON, dest="json", action="store_true")
    parser.add_argument(STRICT, dest="strict", action="store_true")
    try:
        known, _ = parser.parse_known_args(args)
    except argparse.ArgumentError:  # an option without its value: typer will say so
        known = parser.parse_args([])
    if known.level not in logs.LEVELS:
        raise typer.BadParameter(f"{known.level!r} is none of {', '.join(logs.LEVELS)}.", param_hint=LOG_LEVEL)
    logs.configure(known.level, as_json=known.json)
    logs.adopt_stdlib(known.level, as_json=known.json)
    return bool(known.strict)
