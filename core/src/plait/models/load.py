"""From settings to a plan, and from a plan to a model on pages."""

from __future__ import annotations

from typing import Any

import attrs
import mlx.core as mx
import mlx.nn as nn

from plait.errors import CapacityError, PlanError
from plait.kernel import KernelBackend
from plait.memory.arena import Arenas
from plait.models.checkpoint import Checkpoint, open_checkpoint
from plait.models.forward import Forward, SiteModule, replace
from plait.models.sites import OwnedSite, find_sites
from plait.plan import LayerRole, Plan, PlanRequest, SiteSpec, arena_budget, make_plan
from plait.plugins import Plugins
from plait.settings import Settings
from plait.spec import Growth

FALLBACK_LENGTH = 4096  # tokens, where a configuration names no limit


@attrs.frozen
class PlannedModel:
    """A model whose memory is laid out, and whose weights are still on disk."""

    checkpoint: Checkpoint
    skeleton: nn.Module
    dtype: str
    sites: list[OwnedSite]
    plan: Plan

    @property
    def vocabulary(self) -> int:
        """Token ids that the model has an embedding for."""
        modules = (module for _, module in self.skeleton.named_modules())
        return max(int(m.weight.shape[0]) for m in modules if isinstance(m, nn.Embedding | nn.QuantizedEmbedding))


@attrs.frozen
class LoadedModel:
    """A model that runs on pages.

    Attributes:
        forward: packed tokens in, logits out.
        arenas: the pages.
        notes: what was converted while loading, and why.
    """

    forward: Forward
    arenas: Arenas
    notes: list[str]


def model_length(config: dict[str, Any]) -> int | None:
    """Return the tokens that a model was made for, or None if its configuration does not say."""
    for part in (config, config.get("text_config") or {}):
        for key in ("max_position_embeddings", "model_max_length", "max_sequence_length", "n_positions"):
            if isinstance(part.get(key), int) and part[key] > 0:
                return int(part[key])
    return None


def layer_roles(layers: int, sites: list[OwnedSite]) -> list[LayerRole]:
    """Return what each layer keeps, from its sites."""
    growths: list[set[Growth]] = [set() for _ in range(layers)]
    for owned in sites:
        growths[owned.site.layer].add(owned.spec.growth)
    roles = {frozenset({Growth.TOKEN}): LayerRole.TOKEN, frozenset({Growth.STATE}): LayerRole.STATE}
    roles |= {frozenset(): LayerRole.STATELESS, frozenset(Growth): LayerRole.BOTH}
    return [roles[frozenset(kinds)] for kinds in growths]


def plan_model(settings: Settings, plugins: Plugins) -> PlannedModel:
    """Lay out a model's memory; reads no weights.

    Raises:
        CheckpointError, SiteClaimError, FamilyContractError, PlanError, CapacityError: see each.
    """
    settings = attrs.evolve(settings, options=plugins.options().values(settings.options))
    plugins.configure(settings)
    checkpoint = open_checkpoint(settings.model, plugins)
    skeleton = checkpoint.skeleton(plugins)
    dtype = checkpoint.dtype(settings.dtype)
    sites = find_sites(skeleton, checkpoint.config, dtype, plugins)
    roles = layer_roles(len(skeleton.layers), sites)
    plan = _plan(settings, checkpoint, sites, roles)
    return PlannedModel(checkpoint, skeleton, dtype, sites, plan)


def load_model(planned: PlannedModel, backend: KernelBackend | None) -> LoadedModel:
    """Read the weights and bind every site to its pages.

    Raises:
        CheckpointError: the weights cannot be read.
        CapacityError: the pages cannot be allocated.
    """
    model = planned.skeleton
    notes = planned.checkpoint.load(model, planned.dtype)
    arenas = Arenas(planned.plan, backend)
    for owned in planned.sites:
        site = owned.site
        bound = owned.family.bind(site, arenas.views[site.name])
        replace(model.layers[site.layer], site.path, SiteModule(site.name, site.module, bound))
    return LoadedModel(Forward(model), arenas, notes)


def device_memory() -> tuple[int | None, int | None]:
    """Return the bytes that the device recommends using and its largest buffer; None where it says nothing."""
    if mx.default_device() == mx.cpu:
        return None, None
    info = mx.device_info()
    sizes = [info.get(key) for key in ("max_recommended_working_set_size", "memory_size", "total_memory")]
    largest = info.get("max_buffer_length")
    return next((int(size) for size in sizes if size), None), int(largest) if largest else None


def _plan(settings: Settings, checkpoint: Checkpoint, sites: list[OwnedSite], roles: list[LayerRole]) -> Plan:
    specs = [SiteSpec(owned.site.name, owned.spec) for owned in sites]
    limit = model_length(checkpoint.config)
    length = settings.max_model_len or limit or FALLBACK_LENGTH
    if limit is not None and length > limit:
        raise PlanError(
            f"--max-model-len is {length}, but config.json says that the model was made for {limit} tokens. "
            f"Set it to {limit} or less."
        )
    usable, largest = device_memory()
    request = PlanRequest(
        max_model_len=length,
        max_num_seqs=settings.max_num_seqs,
        layout=settings.layout,
        block_size=settings.block_size,
        enable_prefix_caching=settings.enable_prefix_caching,
    )
    need = make_plan(specs, request, roles)
    budget = arena_budget(
        device_bytes=usable,
        weight_bytes=checkpoint.weight_bytes,
        need_bytes=need.nbytes,
        state_bytes=need.run_bytes,
        request_bytes=need.bytes_of(length),
        gpu_memory_utilization=settings.gpu_memory_utilization,
        kv_cache_memory_bytes=settings.kv_cache_memory_bytes,
    )
    request = attrs.evolve(request, memory_bytes=budget, max_buffer_bytes=largest)
    try:
        return make_plan(specs, request, roles)
    except CapacityError:
        if settings.max_model_len is not None:
            raise
        # Nobody asked for the model's whole length: take what fits, if that is anything.
        fits = make_plan(specs, attrs.evolve(request, max_model_len=1), roles).max_tokens_that_fit()
        if not fits:
            raise
        plan = make_plan(specs, attrs.evolve(request, max_model_len=min(fits, length)), roles)
        note = (
            f"max_model_len lowered from {length:,} to {plan.request.max_model_len:,}, which is what {budget:,} bytes "
            "of pages hold"
        )
        return attrs.evolve(plan, notes=(*plan.notes, note))
