"""Finds the places of a model that keep something between tokens, and their owners."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import attrs
import mlx.nn as nn
from mlx_lm.models.cache import make_prompt_cache

from plait.errors import CheckpointError, SiteClaimError
from plait.family import StateFamily
from plait.plugins import Plugins
from plait.spec import CacheSpec, Site, check_spec


@attrs.frozen
class OwnedSite:
    """A site, the family that owns it, and what it keeps."""

    site: Site
    family: StateFamily
    spec: CacheSpec


def takes_cache(module: nn.Module) -> bool:
    """Whether the module's call has a parameter named `cache`."""
    return "cache" in inspect.signature(type(module).__call__).parameters


def _candidates(module: nn.Module, path: str) -> Iterator[tuple[str, nn.Module]]:
    """Yield the outermost modules strictly below `module` that take a cache, with their paths."""
    for name, child in module.children().items():
        for step, part in _modules(child, f"{path}.{name}" if path else name):
            if takes_cache(part):
                yield step, part
            else:
                yield from _candidates(part, step)


def _modules(value: Any, path: str) -> Iterator[tuple[str, nn.Module]]:
    if isinstance(value, nn.Module):
        yield path, value
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _modules(item, f"{path}.{index}")
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _modules(item, f"{path}.{key}")


def _stock_caches(model: nn.Module) -> list[Any]:
    """Return the caches that mlx-lm makes, one for each layer that keeps state (they allocate nothing until used)."""
    return list(make_prompt_cache(model))


def _cache_names(cache: Any) -> tuple[str, ...]:
    if cache is None:
        return ()
    parts = getattr(cache, "caches", None)
    return (type(cache).__name__,) if parts is None else tuple(type(part).__name__ for part in parts)


def find_sites(model: nn.Module, config: dict[str, Any], dtype: str, plugins: Plugins) -> list[OwnedSite]:
    """Return every site of a model with its owner, in layer, then definition order. Reads no weights.

    Raises:
        SiteClaimError: a candidate without an owner or with two, or a model whose layers with a site are not those
            for which mlx-lm makes a cache.
        FamilyContractError: a family's spec is unsound.
    """
    layers = model.layers
    caches = _stock_caches(model)
    candidates = [list(_candidates(layer, "")) for layer in layers]
    stateful = [index for index, found in enumerate(candidates) if found]
    if len(caches) != len(stateful):
        raise SiteClaimError(
            f"{len(stateful)} of {len(layers)} layers have a module that takes a cache, but mlx-lm makes {len(caches)} "
            f"caches for {type(model).__module__}: this model keeps state where Plait cannot see it, and is not served."
        )
    names = {layer: _cache_names(cache) for layer, cache in zip(stateful, caches, strict=True)}
    owned: list[OwnedSite] = []
    unowned: dict[type, Site] = {}
    for index, found in enumerate(candidates):
        for path, module in found:
            site = Site(f"layers.{index}.{path}", index, path, module, config, dtype, names.get(index, ()))
            owned.extend(_own(site, plugins, unowned))
    if unowned:
        # One sentence for each kind of mixer: a model that wants two plugins says so at once.
        raise SiteClaimError("\n".join(str(plugins.unclaimed(site)) for site in unowned.values()))
    if not owned:
        raise CheckpointError(
            f"{type(model).__module__} has no layer that keeps state between tokens; nothing to serve."
        )
    return owned


def _own(site: Site, plugins: Plugins, unowned: dict[type, Site]) -> list[OwnedSite]:
    """Return a candidate's owner, or those of the candidates within it; what nobody owns goes to `unowned`."""
    family = plugins.claim(site)
    if family is not None:
        where = f"family {family.name!r} of plugin {plugins.owner(family.name)}, site {site.name}"
        return [OwnedSite(site, family, check_spec(family.spec(site), where))]
    inner = list(_candidates(site.module, ""))
    if not inner:
        unowned.setdefault(type(site.module), site)
    owned = []
    for path, module in inner:
        part = attrs.evolve(site, name=f"{site.name}.{path}", path=f"{site.path}.{path}", module=module)
        owned.extend(_own(part, plugins, unowned))
    return owned
