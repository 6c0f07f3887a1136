"""Where models keep something between tokens: stock skeletons, and models made up for one trait each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

import plait  # noqa: F401  before MLX
from plait.errors import CheckpointError, FamilyContractError, SiteClaimError
from plait.family import BoundSite, StateFamily
from plait.hooks import hookimpl
from plait.memory.view import View
from plait.models.load import layer_roles
from plait.models.sites import OwnedSite, find_sites, takes_cache
from plait.plan import LayerRole
from plait.plugins import PluginInfo, Plugins
from plait.spec import CacheSpec, Claim, Growth, Resume, Site, TensorSpec
from plait.testing.checkpoints import BASE, CONFIGS

import mlx.core as mx  # isort: skip
import mlx.nn as nn  # isort: skip
from mlx_lm.models.cache import CacheList, KVCache, RotatingKVCache  # isort: skip
from mlx_lm.utils import _get_classes  # isort: skip


@pytest.fixture(autouse=True)
def core_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAIT_PLUGINS", "")


def skeleton(name: str, **changes: Any) -> tuple[nn.Module, dict[str, Any]]:
    config = {**BASE, **CONFIGS[name], **changes}
    model_class, args_class = _get_classes(config)
    return model_class(args_class.from_dict(config)), config


# Stock models


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3", "qwen3_moe"])
def test_attention_in_every_layer(name: str) -> None:
    model, config = skeleton(name)
    owned = find_sites(model, config, "bfloat16", Plugins())
    assert [o.site.name for o in owned] == [f"layers.{i}.self_attn" for i in range(4)]
    assert [(o.site.layer, o.site.path) for o in owned] == [(i, "self_attn") for i in range(4)]
    assert all(o.site.module is model.layers[o.site.layer].self_attn for o in owned)
    assert {o.family.name for o in owned} == {"attention"}
    assert {o.site.stock_caches for o in owned} == {("KVCache",)}
    dim = 32 if name in ("qwen3", "qwen3_moe") else 16
    wanted = CacheSpec(Growth.TOKEN, (TensorSpec("kv", (2, 2, dim), "bfloat16", block_axis=2),))
    assert {o.spec for o in owned} == {wanted}
    assert layer_roles(4, owned) == [LayerRole.TOKEN] * 4


@pytest.mark.parametrize("name", ["qwen3_5", "qwen3_5_moe", "qwen3_next"])
def test_candidates_of_a_hybrid(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three recurrent mixers, then attention; a family claims the former by their class."""
    model, config = skeleton(name)
    plugins = plugins_with({"GatedDeltaNet": "wave", "Qwen3NextGatedDeltaNet": "wave"})
    owned = find_sites(model, config, "float32", plugins)
    assert [o.family.name for o in owned] == ["wave", "wave", "wave", "attention"] * 2
    assert [o.site.path for o in owned] == ["linear_attn", "linear_attn", "linear_attn", "self_attn"] * 2
    assert [o.site.stock_caches for o in owned][2:4] == [("ArraysCache",), ("KVCache",)]
    assert layer_roles(8, owned) == [LayerRole.STATE, LayerRole.STATE, LayerRole.STATE, LayerRole.TOKEN] * 2


def test_no_array_is_evaluated() -> None:
    """A skeleton of random weights costs nothing until somebody reads one."""
    active = mx.get_active_memory()
    model, config = skeleton("llama", hidden_size=4096, intermediate_size=16384, num_attention_heads=32)
    mx.reset_peak_memory()
    find_sites(model, config, "float32", Plugins())
    assert mx.get_peak_memory() - active < 1024 * 1024


def test_row_36_sliding_windows_are_refused_by_name() -> None:
    kinds = ["full_attention", "sliding_attention"] * 2
    model, config = skeleton("llama", layer_types=kinds, sliding_window=32)
    with pytest.raises(SiteClaimError) as caught:
        find_sites(model, config, "float32", Plugins())
    assert str(caught.value) == (
        "site layers.1.self_attn (Attention, family attention) is a sliding-window layer; sliding windows are not "
        "supported yet. Choose a checkpoint whose layers all attend to the whole context."
    )
    model, config = skeleton("llama", layer_types=["full_attention"] * 4, sliding_window=32)
    assert len(find_sites(model, config, "float32", Plugins())) == 4


def test_a_rotary_embedding_that_is_not_known_is_refused_by_name() -> None:
    model, config = skeleton("llama")

    class StrangeRoPE(nn.Module):
        pass

    model.layers[2].self_attn.rope = StrangeRoPE()
    with pytest.raises(SiteClaimError) as caught:
        find_sites(model, config, "float32", Plugins())
    assert "site layers.2.self_attn (Attention, family attention) uses rotary embedding StrangeRoPE" in str(
        caught.value
    )


@pytest.mark.parametrize(
    "change",
    [
        lambda mixer: setattr(mixer, "sinks", mx.zeros((4,))),  # a parameter that the maths here does not know
        lambda mixer: setattr(mixer, "softcap", 30.0),
        lambda mixer: setattr(mixer, "k_norm", nn.RMSNorm(16)),  # without its fellow
        lambda mixer: setattr(mixer, "v_proj", nn.Linear(64, 64)),
        lambda mixer: mixer.pop("o_proj"),
    ],
)
def test_attention_with_something_unknown_in_it_is_not_claimed(change: Callable[[Any], Any]) -> None:
    model, config = skeleton("llama")
    change(model.layers[1].self_attn)
    with pytest.raises(SiteClaimError, match=r"site layers\.1\.self_attn \(Attention\) has no owner"):
        find_sites(model, config, "float32", Plugins())


# Made-up models


class Mixer(nn.Module):
    def __call__(self, x: mx.array, mask: Any = None, cache: Any = None) -> mx.array:
        return x


class Other(nn.Module):
    def __call__(self, x: mx.array, *, cache: Any) -> mx.array:
        return x


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(4, 4)

    def __call__(self, x: mx.array) -> mx.array:
        return x


class Holder(nn.Module):
    """Has no call of its own, as containers of modules often do."""

    def __init__(self, **parts: Any) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)


class Outer(Holder):
    """Takes the cache and hands it on."""

    def __call__(self, x: mx.array, cache: Any = None) -> mx.array:
        return x


class Layer(Holder):
    def __call__(self, x: mx.array, mask: Any = None, cache: Any = None) -> mx.array:
        return x


class Model(nn.Module):
    def __init__(self, layers: Sequence[nn.Module], caches: Sequence[Any] | None = None) -> None:
        super().__init__()
        self.layers = list(layers)
        if caches is not None:
            self.make_cache = lambda: list(caches)


class Wave(StateFamily):
    """Claims by class name; one tensor per site."""

    name = "wave"

    def spec(self, site: Site) -> CacheSpec:
        return CacheSpec(Growth.STATE, (TensorSpec("s", (4,), "float32"),), resume=Resume.CHECKPOINT)

    def bind(self, site: Site, view: View) -> BoundSite:
        raise AssertionError("not bound here")


class Tide(Wave):
    name = "tide"

    def spec(self, site: Site) -> CacheSpec:
        return CacheSpec(Growth.TOKEN, (TensorSpec("kv", (4,), "float32"),))


class Bad(Wave):
    name = "bad"

    def spec(self, site: Site) -> Any:
        return {"bytes": 7}


def plugins_with(claims: dict[str, str]) -> Plugins:
    """Core's plugins and one that claims classes by name."""

    class Plugin:
        @hookimpl
        def plait_families(self) -> Sequence[StateFamily]:
            return [Wave(), Tide(), Bad()]

        @hookimpl
        def plait_claim_site(self, site: Site) -> Claim | None:
            family = claims.get(type(site.module).__name__)
            return None if family is None else Claim(family)

    plugins = Plugins()
    plugins.register(Plugin(), PluginInfo("fake", "plait-fake", "1.2"))
    return plugins


def sites(model: nn.Module, **claims: str) -> list[OwnedSite]:
    return find_sites(model, {}, "float32", plugins_with(claims or {"Mixer": "wave", "Other": "tide"}))


def names(owned: Sequence[OwnedSite]) -> list[str]:
    return [o.site.name for o in owned]


def test_takes_cache() -> None:
    assert takes_cache(Mixer()) and takes_cache(Other()) and takes_cache(Layer())
    assert not takes_cache(Mlp()) and not takes_cache(nn.Linear(2, 2))
    assert not takes_cache(Holder()), "no call of its own"


def test_nested_modules_in_lists_and_dicts() -> None:
    layer = Layer(
        mlp=Mlp(),
        first=Holder(inner=Holder(mixer=Mixer(), mlp=Mlp())),
        many=[Mlp(), Mixer(), [Other()]],
        named={"a": Mixer(), "b": {"c": Mlp(), "d": Holder(e=Other())}},
    )
    owned = sites(Model([layer]))
    assert names(owned) == [
        "layers.0.first.inner.mixer",
        "layers.0.many.1",
        "layers.0.many.2.0",
        "layers.0.named.a",
        "layers.0.named.b.d.e",
    ]
    assert [o.family.name for o in owned] == ["wave", "wave", "tide", "wave", "tide"]
    assert [o.site.path for o in owned][:2] == ["first.inner.mixer", "many.1"]
    assert owned[2].site.module is layer.many[2][0]


def test_two_sites_in_a_layer_in_order_of_definition() -> None:
    """Where a layer has two, mlx-lm makes one cache of two parts for it."""
    layers = [Layer(b=Other(), a=Mixer()), Layer(a=Mixer())]
    owned = sites(Model(layers, [CacheList(KVCache(), RotatingKVCache(max_size=4)), KVCache()]))
    assert names(owned) == ["layers.0.b", "layers.0.a", "layers.1.a"]
    assert [o.site.stock_caches for o in owned] == [
        ("KVCache", "RotatingKVCache"),
        ("KVCache", "RotatingKVCache"),
        ("KVCache",),
    ]
    assert layer_roles(2, owned) == [LayerRole.BOTH, LayerRole.STATE]


def test_a_layer_that_keeps_nothing() -> None:
    """mlx-lm makes no cache for it, so caches are counted off among the layers that keep something."""
    layers = [Layer(mlp=Mlp()), Layer(mixer=Mixer()), Layer(mlp=Mlp()), Layer(mixer=Other())]
    owned = sites(Model(layers, [KVCache(), RotatingKVCache(max_size=4)]))
    assert names(owned) == ["layers.1.mixer", "layers.3.mixer"]
    assert [o.site.stock_caches for o in owned] == [("KVCache",), ("RotatingKVCache",)]
    assert layer_roles(4, owned) == [LayerRole.STATELESS, LayerRole.STATE, LayerRole.STATELESS, LayerRole.TOKEN]


def test_the_outermost_claim_takes_everything_below() -> None:
    layers = [Layer(block=Outer(left=Mixer(), right=Other()))]
    assert names(sites(Model(layers), Outer="wave", Mixer="wave", Other="tide")) == ["layers.0.block"]


def test_without_an_outer_claim_the_inner_ones_count() -> None:
    layers = [Layer(block=Outer(left=Mixer(), deep=Outer(right=Other())))]
    owned = sites(Model(layers))
    assert names(owned) == ["layers.0.block.left", "layers.0.block.deep.right"]
    assert [o.site.path for o in owned] == ["block.left", "block.deep.right"]
    assert owned[1].site.module is layers[0].block.deep.right


def test_one_inner_module_without_an_owner_is_enough() -> None:
    layers = [Layer(block=Outer(left=Mixer(), right=Other()))]
    with pytest.raises(SiteClaimError, match=r"site layers\.0\.block\.right \(Other\) has no owner"):
        sites(Model(layers), Mixer="wave")


def test_a_candidate_without_an_owner_is_named() -> None:
    with pytest.raises(SiteClaimError) as caught:
        sites(Model([Layer(mixer=Mixer()), Layer(mixer=Other())]), Mixer="wave")
    assert str(caught.value).startswith("site layers.1.mixer (Other) has no owner among the families ")


@pytest.mark.parametrize(("caches", "count"), [([], 0), ([KVCache()], 1), ([KVCache()] * 3, 3)])
def test_caches_that_do_not_match_the_layers(caches: list[Any], count: int) -> None:
    layers = [Layer(mixer=Mixer()), Layer(mlp=Mlp()), Layer(mixer=Mixer())]
    with pytest.raises(SiteClaimError) as caught:
        sites(Model(layers, caches))
    assert str(caught.value) == (
        f"2 of 3 layers have a module that takes a cache, but mlx-lm makes {count} caches for {Model.__module__}: this "
        "model keeps state where Plait cannot see it, and is not served."
    )


def test_a_model_without_make_cache_has_one_cache_per_layer() -> None:
    assert len(sites(Model([Layer(mixer=Mixer()), Layer(mixer=Mixer())]))) == 2
    with pytest.raises(SiteClaimError, match="1 of 2 layers have a module that takes a cache, but mlx-lm makes 2"):
        sites(Model([Layer(mixer=Mixer()), Layer(mlp=Mlp())]))


def test_a_model_that_keeps_nothing() -> None:
    with pytest.raises(CheckpointError, match="has no layer that keeps state between tokens; nothing to serve"):
        sites(Model([Layer(mlp=Mlp())], []))


def test_an_unsound_spec_names_family_distribution_and_site() -> None:
    with pytest.raises(FamilyContractError) as caught:
        sites(Model([Layer(mixer=Mixer())]), Mixer="bad")
    assert str(caught.value) == (
        "family 'bad' of plugin fake (plait-fake 1.2), site layers.0.mixer: `spec` returned dict, wanted CacheSpec. "
        "Fix the family's `spec`."
    )


def test_a_site_knows_its_configuration_and_dtype() -> None:
    config = {"model_type": "made-up"}
    owned = find_sites(Model([Layer(mixer=Mixer())]), config, "bfloat16", plugins_with({"Mixer": "wave"}))
    assert owned[0].site.config is config and owned[0].site.dtype == "bfloat16" and owned[0].site.layer == 0
