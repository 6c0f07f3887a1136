"""What an engine says when it starts, read off the live objects."""

from __future__ import annotations

from importlib import metadata

import mlx.core as mx

from plait import blas
from plait.kernel import KernelBackend
from plait.models.load import LoadedModel, PlannedModel
from plait.plan import plan_table
from plait.plugins import Plugins
from plait.settings import Settings


def device_line(backend: KernelBackend | None) -> str:
    """Return the device, the versions of MLX and mlx-lm, and who runs kernels."""
    device = "cpu" if mx.default_device() == mx.cpu else str(mx.device_info().get("device_name", "gpu"))
    if backend is not None:
        kernels = f"kernels: {backend.name}"
    elif mx.default_device() == mx.cpu:
        kernels = "kernels: references in MLX (CPU)"
    else:
        kernels = "kernels: none installed, references in MLX run; pip install ./metal makes this fast"
    return f"mlx {metadata.version('mlx')} on {device}, mlx-lm {metadata.version('mlx-lm')}; {kernels}"


def start_report(
    planned: PlannedModel,
    model: LoadedModel,
    backend: KernelBackend | None,
    plugins: Plugins,
    settings: Settings,
    step_tokens: int,
) -> list[str]:
    """Return the lines of the start-up report."""
    plan = planned.plan
    model_type = planned.checkpoint.config["model_type"]
    owners = sorted({f"{o.family.name} of {plugins.owner(o.family.name)}" for o in planned.sites})
    lines = [
        f"plait {metadata.version('plait')}: {settings.model} ({model_type}) in {planned.dtype}, "
        f"weights {planned.checkpoint.weight_bytes:,} bytes on disk",
        device_line(backend),
        blas.status().describe(),
        f"families: {'; '.join(owners)}",
        *plan_table(plan, {o.site.name: o.family.name for o in planned.sites}).splitlines(),
        f"steps: up to {plan.max_num_seqs} requests and {step_tokens} tokens",
        "prefix caching: off",
        f"arenas allocated: {model.arenas.nbytes:,} bytes",
    ]
    lines += model.notes
    lines += plugins.report_header(settings)
    lines += [f"plugin set aside: {info}: {info.reason}" for info in plugins.set_aside]
    if settings.trust_remote_code:
        lines.append("--trust-remote-code is taken, and changes nothing: Plait never runs remote code")
    return lines
