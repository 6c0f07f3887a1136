"""`plait plan`: how a model's memory is laid out, without its weights."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import attrs
import typer

from plait import logs
from plait.cli.output import print_json, usage
from plait.cli.parameters import MEMORY, MODEL
from plait.cli.settings import engine_settings
from plait.errors import CheckpointError, PlanError
from plait.plan import plan_json, plan_layers_file, plan_table

if TYPE_CHECKING:
    from plait.models.load import PlannedModel
    from plait.plugins import Plugins
    from plait.settings import Settings


def plan(
    settings: dict[str, Any],
    model: Annotated[str | None, MODEL] = None,
    layers: Annotated[
        Path | None, typer.Option(help="Plan the layer lists of a JSON file instead of a model; takes --layout only.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show how a model's memory is laid out: sites, families, pages. Reads config.json, and no weights."""
    logs.configure("warning")
    with usage():
        if layers is None and model is None:
            raise PlanError("there is nothing to plan; give a MODEL, or a file of layer lists with --layers FILE.")
        if layers is not None:
            _check_alone(layers, model, settings)
    asked = engine_settings(model or str(layers), settings, {})
    if layers is not None:
        _plan_layers(layers, asked.layout, as_json=as_json)
    else:
        _plan_model(asked, as_json=as_json)


def _check_alone(layers: Path, model: str | None, settings: dict[str, Any]) -> None:
    """Refuse what a file of layer lists says itself."""
    if model is not None:
        raise PlanError(f"MODEL {model!r} and --layers {layers} are given both; leave one out.")
    for parameter in MEMORY:
        if parameter.name != "layout" and settings[parameter.name] != parameter.default:
            flag = "--" + parameter.name.replace("_", "-")
            raise PlanError(f"{flag} does not go with --layers: the file says it for each plan. Leave {flag} out.")


def _plan_layers(file: Path, layout: str, *, as_json: bool) -> None:
    plans = plan_layers_file(file, layout)
    if as_json:
        print_json(plans)
        return
    for numbers in plans:
        print(f"{numbers.pop('name')}: {', '.join(f'{name} {_text(value)}' for name, value in numbers.items())}")


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else str(value)


def _plan_model(settings: Settings, *, as_json: bool) -> None:
    from plait.models.load import plan_model
    from plait.plugins import Plugins

    plugins = Plugins()
    model = _without_weights(settings.model, plugins)
    planned = plan_model(attrs.evolve(settings, model=model), plugins)
    families = {owned.site.name: owned.family.name for owned in planned.sites}
    head = _head(planned, settings)
    if as_json:
        print_json({**head, **plan_json(planned.plan, families)})
        return
    weights = f"{head['weight_bytes']:,} bytes of weights" if head["weight_bytes"] else "weights not here, not counted"
    print(f"{head['model']} ({head['model_type']}) in {head['dtype']}, {weights}\n")
    print(plan_table(planned.plan, families))


def _without_weights(model: str, plugins: Plugins) -> str:
    """Return where a model is; of a Hugging Face repository that is not here yet only the configuration is fetched."""
    here = Path(model).expanduser().exists() or model in plugins.demos()
    if here or not re.fullmatch(r"[\w.-]+/[\w.-]+", model):
        return model
    from huggingface_hub import snapshot_download

    try:
        return str(snapshot_download(model, allow_patterns=["*.json"]))
    except Exception as error:  # the hub's client raises many kinds, and each means the same here
        raise CheckpointError(f"{model} cannot be fetched from the Hugging Face hub: {error}") from error


def _head(planned: PlannedModel, settings: Settings) -> dict[str, Any]:
    checkpoint = planned.checkpoint
    return {
        "model": settings.model,
        "model_type": checkpoint.config["model_type"],
        "dtype": planned.dtype,
        "weight_bytes": checkpoint.weight_bytes,
    }
