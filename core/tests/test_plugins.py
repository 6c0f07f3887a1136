"""Finding plugins and asking them: what is loaded, what is set aside, and what comes back from a hook."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest
import structlog

import plait
from plait.adapter import Demo, ModelAdapter
from plait.engine.llm import LLM
from plait.errors import (
    CheckpointError,
    FamilyContractError,
    PlaitError,
    PlanError,
    PluginApiError,
    PluginError,
    PluginLoadError,
    SiteClaimError,
)
from plait.hooks import API_GROUP, hookimpl
from plait.models.load import plan_model
from plait.plugins import PluginInfo, Plugins, known_distribution, selected_names
from plait.scheduler.request import Request
from plait.scheduler.scheduler import StepReport
from plait.settings import Settings
from plait.spec import Claim, Site
from plait.testing.checkpoints import CONFIGS, build_checkpoint

import mlx.nn as nn  # isort: skip

PREAMBLE = """
from plait.adapter import Demo, ModelAdapter
from plait.errors import PlanError, SiteClaimError
from plait.family import StateFamily
from plait.hooks import hookimpl
from plait.spec import CacheSpec, Claim, Growth, TensorSpec
"""
FAMILY = """
class Family(StateFamily):
    name = {name!r}

    def spec(self, site):
        return CacheSpec(Growth.STATE, (TensorSpec("s", (4,), "float32"),))

    def bind(self, site, view):
        raise NotImplementedError

@hookimpl
def plait_families():
    return [Family()]
"""

Install = Callable[..., Path]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Puts a distribution on the path as pip would: `install(name, source)` is plugin NAME of plait-NAME 1.2.

    What was installed so is selected, and what else this environment has is not.
    """
    before = set(sys.modules)
    count = 0
    names: list[str] = []

    def put(name: str, source: str, *, group: str = API_GROUP, dist: str | None = None, version: str = "1.2") -> Path:
        nonlocal count
        count += 1
        dist = dist or f"plait-{name}"
        module = f"plugin_for_test_{count}_{name}"
        site = tmp_path / f"site{count}"
        info = site / f"{dist.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        (site / f"{module}.py").write_text(PREAMBLE + textwrap.dedent(source))
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {dist}\nVersion: {version}\n")
        (info / "entry_points.txt").write_text(f"[{group}]\n{name} = {module}\n")
        monkeypatch.syspath_prepend(str(site))
        names.append(name)
        monkeypatch.setenv("PLAIT_PLUGINS", ",".join(names))
        return site / f"{module}.py"

    yield put
    for module in set(sys.modules) - before:
        if module.startswith("plugin_for_test_"):
            del sys.modules[module]


@pytest.fixture(autouse=True)
def core_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAIT_PLUGINS", "")


def site_of(module: nn.Module | None = None, **config: Any) -> Site:
    return Site("layers.0.mixer", 0, "mixer", module or nn.Linear(4, 4), config, "float32")


def set_aside(plugins: Plugins) -> dict[str, str | None]:
    return {str(info): info.reason for info in plugins.set_aside}


def loaded(plugins: Plugins) -> list[str]:
    return [info.name for info in plugins.loaded]


class Impl:
    """A plugin made of functions, to register without installing it."""

    def __init__(self, **hooks: Callable[..., Any]) -> None:
        for name, function in hooks.items():
            setattr(self, name, hookimpl(function))


def with_plugin(**hooks: Callable[..., Any]) -> Plugins:
    """Core's own plugins and one more, `fake (plait-fake 1.2)`."""
    plugins = Plugins()
    plugins.register(Impl(**hooks), PluginInfo("fake", "plait-fake", "1.2"))
    return plugins


# Loading


def test_core_registers_like_everyone() -> None:
    plugins = Plugins()
    assert loaded(plugins) == ["attention", "demo"]
    own = plugins.loaded
    assert all((info.distribution, info.version) == ("plait", plait.__version__) for info in own)
    assert plugins.owner("attention") == own[0]
    assert str(own[0]) == f"attention (plait {plait.__version__})"


def test_an_installed_family_is_there(install: Install) -> None:
    install("wave", FAMILY.format(name="wave"))
    plugins = Plugins()
    assert plugins.owner("wave") == PluginInfo("wave", "plait-wave", "1.2")
    assert "wave" in plugins.families() and plugins.families()["wave"].name == "wave"
    assert plugins.set_aside == []


def test_a_plugin_of_another_api_is_refused_before_it_is_imported(install: Install, tmp_path: Path) -> None:
    proof = tmp_path / "imported"
    module = install("old", f"open({str(proof)!r}, 'w').close()", group="plait.v0")
    plugins = Plugins()
    assert not proof.exists() and module.stem not in sys.modules
    assert "old" not in loaded(plugins)
    assert set_aside(plugins) == {
        "old (plait-old 1.2)": "plugin old (plait-old 1.2) is written for hook API 'plait.v0'; this Plait has "
        f"'plait.v1'. Install a release of plait-old that matches plait {plait.__version__}."
    }
    # The test would see an import.
    assert API_GROUP == "plait.v1"
    install("new", f"open({str(proof)!r}, 'w').close()")
    Plugins()
    assert proof.exists()


def test_a_distribution_that_serves_two_versions_of_the_api_is_used(install: Install) -> None:
    """It has an entry point for each; the one for this API counts."""
    module = install("twin", FAMILY.format(name="twin"))
    entries = module.parent / "plait_twin-1.2.dist-info" / "entry_points.txt"
    entries.write_text(f"[plait.v0]\ntwin = nowhere\n\n[plait.v1]\ntwin = {module.stem}\n")
    assert "twin" in Plugins().families()


@pytest.mark.parametrize("group", ["plait.v2", "plait.v10"])
def test_a_later_api_is_refused_too(install: Install, group: str) -> None:
    install("late", "raise RuntimeError", group=group)
    (reason,) = set_aside(Plugins()).values()
    assert reason is not None and f"is written for hook API {group!r}" in reason


def test_a_broken_import_is_set_aside_with_its_reason(install: Install) -> None:
    module = install("broken", "import a_module_that_is_not_there")
    plugins = Plugins()
    assert set_aside(plugins) == {
        "broken (plait-broken 1.2)": f"plugin broken (plait-broken 1.2): importing {module.stem} raised "
        "ModuleNotFoundError(\"No module named 'a_module_that_is_not_there'\")"
    }
    assert "attention" in plugins.families(), "the others are there"


def test_an_object_that_is_not_there_is_set_aside(install: Install, tmp_path: Path) -> None:
    module = install("hollow", "")
    info = module.parent / "plait_hollow-1.2.dist-info" / "entry_points.txt"
    info.write_text(f"[plait.v1]\nhollow = {module.stem}:nothing\n")
    (reason,) = set_aside(Plugins()).values()
    assert reason is not None and "nothing" in reason and "AttributeError" in reason


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (
            "@hookimpl\ndef plait_famlies():\n    return []",
            "plait_famlies is not a hook of Plait; hooks are plait_add_options, plait_choose_victim, "
            "plait_claim_site, plait_configure, plait_demos, plait_families, plait_kernel_backend, plait_models, "
            "plait_report_header, plait_step_done",
        ),
        (
            "@hookimpl\ndef plait_claim_site(site=None):\n    return None",
            "plait_claim_site: argument 'site' has a default, so it would never be passed",
        ),
        (
            "@hookimpl\ndef plait_choose_victim(running, need, *, eager=True):\n    return None",
            "plait_choose_victim: argument 'eager' has a default",
        ),
        (
            "@hookimpl\ndef plait_claim_site(place):\n    return None",
            "Argument(s) {'place'} are declared in the hookimpl",
        ),
    ],
    ids=["unknown hook", "default", "keyword default", "unknown argument"],
)
def test_row_138_what_pluggy_would_pass_over_is_set_aside(install: Install, source: str, reason: str) -> None:
    install("odd", source)
    plugins = Plugins()
    ((info, found),) = set_aside(plugins).items()
    assert info == "odd (plait-odd 1.2)" and found is not None
    assert found.startswith("plugin odd (plait-odd 1.2): ") and reason in found
    assert "odd" not in loaded(plugins)


def test_a_plugin_that_is_set_aside_has_no_hooks_left() -> None:
    """One bad hook takes the good ones with it: older releases of pluggy leave them registered."""
    asked: list[str] = []

    def plait_claim_site(site: Site) -> None:
        asked.append(site.name)

    def plait_families(nonsense: int) -> list[Any]:
        return []

    plugins = with_plugin(plait_claim_site=plait_claim_site, plait_families=plait_families)
    assert [info.name for info in plugins.set_aside] == ["fake"]
    assert plugins.claim(site_of()) is None
    assert "attention" in plugins.families() and asked == []


def test_an_implementation_may_leave_arguments_out() -> None:
    plugins = with_plugin(plait_claim_site=lambda: None, plait_choose_victim=lambda running: running[0])
    assert plugins.set_aside == []
    assert plugins.claim(site_of()) is None
    requests = [Request("a", [1], 1), Request("b", [1], 1)]
    assert plugins.choose_victim(requests, 1) is requests[0]


def test_a_name_that_is_taken(install: Install) -> None:
    install("same", FAMILY.format(name="one"), dist="plait-a")
    install("same", FAMILY.format(name="two"), dist="plait-b")
    plugins = Plugins()
    assert "one" in plugins.families() and "two" not in plugins.families(), "the first distribution by name"
    assert set_aside(plugins) == {"same (plait-b 1.2)": "plugin same (plait-b 1.2): the name 'same' is taken"}


def test_one_module_under_two_names(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    module = install("first", FAMILY.format(name="wave"))
    entries = module.parent / "plait_first-1.2.dist-info" / "entry_points.txt"
    entries.write_text(f"[plait.v1]\nfirst = {module.stem}\nsecond = {module.stem}\n")
    monkeypatch.setenv("PLAIT_PLUGINS", "first,second")
    plugins = Plugins()
    assert "wave" in plugins.families()
    assert [info.name for info in plugins.set_aside] == ["second"]


# Strict


@pytest.mark.parametrize(
    ("source", "group", "error"),
    [
        ("raise RuntimeError('no')", API_GROUP, PluginLoadError),
        ("raise RuntimeError('no')", "plait.v0", PluginApiError),
        ("@hookimpl\ndef plait_nothing():\n    pass", API_GROUP, PluginLoadError),
    ],
)
def test_strict_raises_for_what_would_be_set_aside(
    install: Install, source: str, group: str, error: type[PluginError]
) -> None:
    install("bad", source, group=group)
    with pytest.raises(error, match=r"plugin bad \(plait-bad 1\.2\)"):
        Plugins(strict=True)


def test_strict_is_content_with_good_plugins(install: Install) -> None:
    install("wave", FAMILY.format(name="wave"))
    assert "wave" in Plugins(strict=True).families()


# Selection


def test_without_a_selection_everything_loads(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install("one", FAMILY.format(name="one"))
    install("two", "raise RuntimeError('no')")
    monkeypatch.delenv("PLAIT_PLUGINS")
    plugins = Plugins()
    assert {"attention", "demo", "one"} <= set(loaded(plugins))
    assert "two (plait-two 1.2)" in set_aside(plugins)


def test_selection_by_name(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install("one", FAMILY.format(name="one"))
    install("two", "raise RuntimeError('not chosen, so not imported')")
    install("old", "", group="plait.v0")
    monkeypatch.setenv("PLAIT_PLUGINS", "one")
    plugins = Plugins()
    assert sorted(loaded(plugins)) == ["attention", "demo", "one"]
    assert plugins.set_aside == []


def test_an_empty_selection_leaves_core_only(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install("one", FAMILY.format(name="one"))
    monkeypatch.setenv("PLAIT_PLUGINS", "")
    assert sorted(loaded(Plugins())) == ["attention", "demo"]


@pytest.mark.parametrize(
    ("value", "names"),
    [(None, None), ("", set()), (" , ", set()), ("a", {"a"}), (" a,b , a ", {"a", "b"})],
)
def test_selected_names(monkeypatch: pytest.MonkeyPatch, value: str | None, names: set[str] | None) -> None:
    monkeypatch.delenv("PLAIT_PLUGINS")
    if value is not None:
        monkeypatch.setenv("PLAIT_PLUGINS", value)
    assert selected_names() == names


def test_a_selection_of_what_is_not_installed(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install("one", FAMILY.format(name="one"))
    monkeypatch.setenv("PLAIT_PLUGINS", "one,zebra,yak")
    with pytest.raises(PluginLoadError) as caught:
        Plugins()
    text = str(caught.value)
    assert text.startswith("PLAIT_PLUGINS names yak, zebra, which is not installed. Installed: attention, demo, ")
    assert "one" in text


# Families and claims


def test_two_families_of_one_name_name_both_distributions(install: Install) -> None:
    install("one", FAMILY.format(name="wave"))
    install("two", FAMILY.format(name="wave"))
    with pytest.raises(FamilyContractError) as caught:
        Plugins().families()
    assert str(caught.value) == (
        "family 'wave' is shipped twice, by plugin one (plait-one 1.2) and by plugin two (plait-two 1.2). "
        "Uninstall one, or choose with PLAIT_PLUGINS."
    )


CLAIM = FAMILY + "\n@hookimpl\ndef plait_claim_site(site):\n    return Claim({name!r})\n"


def test_two_claims_name_both(install: Install) -> None:
    install("one", CLAIM.format(name="wave"))
    install("two", CLAIM.format(name="tide"))
    with pytest.raises(SiteClaimError) as caught:
        Plugins().claim(site_of())
    text = str(caught.value)
    assert text.startswith("site layers.0.mixer (Linear) is claimed twice, by ")
    assert "'wave' of plugin one (plait-one 1.2)" in text and "'tide' of plugin two (plait-two 1.2)" in text
    assert text.endswith(". Uninstall one, or choose with PLAIT_PLUGINS=name,name.")


def test_a_claim_gives_the_family(install: Install) -> None:
    install("one", CLAIM.format(name="wave"))
    plugins = Plugins()
    assert plugins.claim(site_of()) is plugins.families()["wave"]


def test_a_family_may_refuse_a_site_by_name(install: Install) -> None:
    install(
        "one", FAMILY.format(name="wave") + "\n@hookimpl\ndef plait_claim_site(site):\n    raise SiteClaimError('no')\n"
    )
    with pytest.raises(SiteClaimError, match=r"^no$"):
        Plugins().claim(site_of())


def test_an_unclaimed_mixer_that_is_known_names_what_to_install(tmp_path: Path) -> None:
    model = build_checkpoint("qwen3_5", tmp_path)
    with pytest.raises(SiteClaimError) as caught:
        plan_model(Settings(model=str(model)), Plugins())
    assert str(caught.value) == (
        "site layers.0.linear_attn (GatedDeltaNet) has no owner among the families attention. It belongs to plait-gdn: "
        "install that (from a clone: pip install ./plugins/gdn). PLAIT_PLUGINS= limits what is loaded."
    )


def test_an_unclaimed_mixer_that_nobody_knows() -> None:
    plugins = Plugins()
    assert plugins.claim(site_of()) is None
    assert str(plugins.unclaimed(site_of())) == (
        "site layers.0.mixer (Linear) has no owner among the families attention. No known plugin serves this kind of "
        "layer; `plait families` lists what is installed. PLAIT_PLUGINS= limits what is loaded."
    )


def test_the_error_for_an_unclaimed_site_says_what_was_set_aside(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("broken", "raise RuntimeError('it rains')")
    plugins = Plugins()
    text = str(plugins.unclaimed(site_of(architectures=["KimiLinearForCausalLM"])))
    assert "It belongs to plait-kda: install that" in text
    assert "Set aside: broken (plait-broken 1.2): " in text and "it rains" in text
    assert "PLAIT_PLUGINS=broken limits what is loaded." in text
    monkeypatch.delenv("PLAIT_PLUGINS")
    assert "PLAIT_PLUGINS" not in str(plugins.unclaimed(site_of()))


def test_known_distributions_go_by_mixer_then_architecture() -> None:
    assert known_distribution("KimiMLAAttention", ["KimiLinearForCausalLM"]) == "plait-mla"
    assert known_distribution("Other", ["Nobody", "FalconH1ForCausalLM"]) == "plait-mamba2"
    assert known_distribution("Other", []) is None
    plugins = Plugins()
    assert "It belongs to" not in str(plugins.unclaimed(site_of(architectures=None)))


# What comes back from a hook


@pytest.mark.parametrize("answer", [None, 5, "wave", [1], [None], (Demo("d", "", Path),), iter(())])
def test_families_of_a_wrong_type(answer: Any) -> None:
    plugins = with_plugin(plait_families=lambda: answer)
    with pytest.raises(FamilyContractError) as caught:
        plugins.families()
    assert "plugin fake (plait-fake 1.2): plait_families returned" in str(caught.value)
    assert "wanted a list of StateFamily" in str(caught.value)


@pytest.mark.parametrize("answer", [True, "attention", 0, ["attention"], object()])
def test_a_claim_of_a_wrong_type(answer: Any) -> None:
    plugins = with_plugin(plait_claim_site=lambda site: answer)
    with pytest.raises(FamilyContractError, match=r"plugin fake \(plait-fake 1\.2\): plait_claim_site returned"):
        plugins.claim(site_of())


def test_a_claim_for_a_family_that_is_not_there() -> None:
    plugins = with_plugin(plait_claim_site=lambda site: Claim("nobody"))
    with pytest.raises(FamilyContractError) as caught:
        plugins.claim(site_of())
    assert str(caught.value) == (
        "plugin fake (plait-fake 1.2): plait_claim_site returned Claim(family='nobody') for layers.0.mixer; wanted a "
        "Claim of one of the families attention, or None."
    )


@pytest.mark.parametrize("answer", [1, "metal", [], object()])
def test_a_kernel_backend_of_a_wrong_type(answer: Any) -> None:
    plugins = with_plugin(plait_kernel_backend=lambda: answer)
    with pytest.raises(FamilyContractError, match=r"plugin fake \(plait-fake 1\.2\): plait_kernel_backend returned"):
        plugins.kernel_backend()


@pytest.mark.parametrize("answer", [None, {"name": 1}, ["x"], 3])
def test_models_and_demos_of_a_wrong_type(answer: Any) -> None:
    plugins = with_plugin(plait_models=lambda: answer, plait_demos=lambda: answer)
    with pytest.raises(FamilyContractError, match=r"plugin fake .*plait_models returned .*a list of ModelAdapter"):
        plugins.adapter({})
    with pytest.raises(FamilyContractError, match=r"plugin fake .*plait_demos returned .*a list of Demo"):
        plugins.demos()


@pytest.mark.parametrize("answer", [5, [1, 2], {"a": 1}, ["fine", None], b"bytes"])
def test_report_lines_of_a_wrong_type(answer: Any) -> None:
    plugins = with_plugin(plait_report_header=lambda config: answer)
    with pytest.raises(FamilyContractError, match=r"plugin fake \(plait-fake 1\.2\): plait_report_header returned"):
        plugins.report_header(Settings(model="m"))


def boom(*_: Any) -> Any:
    raise ZeroDivisionError("it rains")


@pytest.mark.parametrize(
    ("hook", "ask"),
    [
        ("plait_families", lambda p: p.families()),
        ("plait_kernel_backend", lambda p: p.kernel_backend()),
        ("plait_models", lambda p: p.adapter({})),
        ("plait_demos", lambda p: p.demos()),
        ("plait_add_options", lambda p: p.options()),
        ("plait_configure", lambda p: p.configure(Settings(model="m"))),
        ("plait_report_header", lambda p: p.report_header(Settings(model="m"))),
    ],
)
def test_a_hook_that_raises_is_an_error_that_names_the_plugin(hook: str, ask: Callable[[Plugins], Any]) -> None:
    plugins = with_plugin(**{hook: lambda: boom()})
    with pytest.raises(PluginError) as caught:
        ask(plugins)
    assert str(caught.value) == (
        f"plugin fake (plait-fake 1.2): {hook} raised ZeroDivisionError('it rains'). Report it to plait-fake."
    )


def test_our_own_errors_come_through_a_hook_as_they_are() -> None:
    def refuse(config: Settings) -> None:
        raise PlanError("not on Mondays")

    plugins = with_plugin(plait_configure=refuse, plait_report_header=refuse)
    for ask in (plugins.configure, plugins.report_header):
        with pytest.raises(PlanError, match=r"^not on Mondays$"):
            ask(Settings(model="m"))


# Backends, adapters, demos


BACKEND = """
from plait.kernel import KernelBackend

class Backend(KernelBackend):
    name = {name!r}
    def build(self, kernel): raise NotImplementedError
    def write_tokens(self, *args): raise NotImplementedError
    def write_runs(self, *args): raise NotImplementedError
    def zero_pages(self, *args): raise NotImplementedError
    def copy_pages(self, *args): raise NotImplementedError

@hookimpl
def plait_kernel_backend():
    return {answer}
"""


def test_one_kernel_backend_or_none(install: Install) -> None:
    assert Plugins().kernel_backend() is None
    install("none", BACKEND.format(name="none", answer="None"))
    assert Plugins().kernel_backend() is None
    install("fast", BACKEND.format(name="fast", answer="Backend()"))
    backend = Plugins().kernel_backend()
    assert backend is not None and backend.name == "fast"


def test_two_kernel_backends_name_both(install: Install) -> None:
    install("a", BACKEND.format(name="fast", answer="Backend()"))
    install("b", BACKEND.format(name="faster", answer="Backend()"))
    with pytest.raises(PluginError) as caught:
        Plugins().kernel_backend()
    text = str(caught.value)
    assert "fast of plugin a (plait-a 1.2)" in text and "faster of plugin b (plait-b 1.2)" in text
    assert text.startswith("two kernel backends: ") and text.endswith(". Uninstall one, or choose with PLAIT_PLUGINS.")


def adapter_of(name: str, accepts: Callable[[dict[str, Any]], bool]) -> ModelAdapter:
    class Adapter(ModelAdapter):
        def accepts(self, config: dict[str, Any]) -> bool:
            return accepts(config)

        def classes(self, config: dict[str, Any]) -> tuple[type, type]:
            raise AssertionError("not asked here")

    adapter = Adapter()
    adapter.name = name
    return adapter


def test_an_adapter_is_found_by_what_it_accepts() -> None:
    plugins = with_plugin(
        plait_models=lambda: [adapter_of(kind, lambda config, kind=kind: config["kind"] == kind) for kind in "ab"],
    )
    found = plugins.adapter({"kind": "b"})
    assert found is not None and found.name == "b"
    assert plugins.adapter({"kind": "c"}) is None


def test_two_adapters_name_both() -> None:
    plugins = with_plugin(plait_models=lambda: [adapter_of("one", lambda c: True)])
    plugins.register(
        Impl(plait_models=lambda: [adapter_of("two", lambda c: True)]), PluginInfo("other", "plait-other", "3")
    )
    with pytest.raises(CheckpointError) as caught:
        plugins.adapter({})
    text = str(caught.value)
    assert "one of plugin fake (plait-fake 1.2)" in text and "two of plugin other (plait-other 3)" in text


def test_demos_by_name_and_two_of_one_name() -> None:
    demo = Demo("loom", "a loom", lambda: Path("x"))
    plugins = with_plugin(plait_demos=lambda: [demo])
    assert plugins.demos()["loom"] is demo
    plugins.register(Impl(plait_demos=lambda: [demo]), PluginInfo("other", "plait-other", "3"))
    with pytest.raises(FamilyContractError) as caught:
        plugins.demos()
    assert "'loom'" in str(caught.value)
    assert "plugin fake (plait-fake 1.2)" in str(caught.value) and "plugin other (plait-other 3)" in str(caught.value)


ADAPTER = """
from mlx_lm.models import llama

class Loom(ModelAdapter):
    name = "loom"

    def accepts(self, config):
        return "LoomForCausalLM" in (config.get("architectures") or ())

    def classes(self, config):
        if config.get("warp") == "silk":
            from plait.errors import CheckpointError
            raise CheckpointError("loom: silk is not supported")
        return llama.Model, llama.ModelArgs

@hookimpl
def plait_models():
    return [Loom()]
"""


def test_row_96_an_adapter_decides_by_architecture(install: Install, tmp_path: Path) -> None:
    """One model_type that mlx-lm does not know, told apart by `architectures`, from the folder to the plan."""
    install("loom", ADAPTER)
    model = build_checkpoint("llama", tmp_path)
    config = {**CONFIGS["llama"], "vocab_size": 264, "model_type": "loom", "architectures": ["LoomForCausalLM"]}

    def plan(**changes: Any) -> Any:
        (model / "config.json").write_text(json.dumps({**config, **changes}))
        return plan_model(Settings(model=str(model)), Plugins())

    planned = plan()
    assert [owned.family.name for owned in planned.sites] == ["attention"] * 4
    assert planned.vocabulary == 264
    with pytest.raises(CheckpointError, match=r"^loom: silk is not supported$"):
        plan(warp="silk")
    with pytest.raises(CheckpointError, match="model_type 'loom', architectures None"):
        plan(architectures=None)


# Options, configure, report


def test_options_of_plugins() -> None:
    def add(parser: Any) -> None:
        parser.add("fake-speed", type=float, default=2.5, help="How fast.")

    assert with_plugin().options().entries == {}
    plugins = with_plugin(plait_add_options=add)
    assert list(plugins.options().entries) == list(plugins.options().entries) == ["fake-speed"]
    plugins.register(Impl(plait_add_options=add), PluginInfo("other", "plait-other", "3"))
    with pytest.raises(FamilyContractError, match="--fake-speed"):
        plugins.options()


def test_configure_reaches_plugins_that_come_later() -> None:
    seen: list[tuple[str, Settings]] = []
    plugins = with_plugin(plait_configure=lambda config: seen.append(("early", config)))
    settings = Settings(model="m")
    plugins.configure(settings)
    assert seen == [("early", settings)]
    late = Impl(plait_configure=lambda config: seen.append(("late", config)))
    plugins.register(late, PluginInfo("late", "plait-late", "1"))
    assert seen == [("early", settings), ("late", settings)]


def test_a_late_plugin_that_refuses_its_history_is_set_aside() -> None:
    plugins = with_plugin()
    plugins.configure(Settings(model="m"))
    plugins.register(
        Impl(plait_configure=lambda config: boom(), plait_claim_site=lambda site: boom()),
        PluginInfo("late", "plait-late", "1"),
    )
    ((name, reason),) = set_aside(plugins).items()
    assert name == "late (plait-late 1)" and reason is not None and "it rains" in reason
    assert plugins.claim(site_of()) is None


def test_report_lines() -> None:
    plugins = with_plugin(plait_report_header=lambda config: f"one line for {config.model}")
    plugins.register(Impl(plait_report_header=lambda: ["two", "three"]), PluginInfo("b", "plait-b", "1"))
    plugins.register(Impl(plait_report_header=lambda: None), PluginInfo("c", "plait-c", "1"))
    assert sorted(plugins.report_header(Settings(model="m"))) == ["one line for m", "three", "two"]


def test_defaults_of_options_reach_every_hook_of_an_engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A program that starts an engine without naming the option sees its default, as the command line does."""
    seen: list[Any] = []

    def add(parser: Any) -> None:
        parser.add("fake-speed", type=float, default=2.5, help="How fast.")

    plugins = with_plugin(
        plait_add_options=add,
        plait_configure=lambda config: seen.append(config.options["fake-speed"]),
        plait_report_header=lambda config: f"speed {config.options['fake-speed']}",
    )
    monkeypatch.setattr("plait.engine.thread.Plugins", lambda: plugins)
    with LLM(str(build_checkpoint("llama", tmp_path)), max_model_len=64) as llm:
        assert "speed 2.5" in llm.engine.report
    assert seen == [2.5]


# In the loop


def report_of(index: int = 0) -> StepReport:
    values: dict[str, Any] = {field.name: 0 for field in attrs.fields(StepReport)}
    return StepReport(**{**values, "index": index, "preempted": ()})


def test_step_done_that_raises_is_logged_once_and_set_aside() -> None:
    steps: list[int] = []
    calls: list[int] = []

    def bad(report: StepReport) -> None:
        calls.append(report.index)
        raise ZeroDivisionError("it rains")

    plugins = with_plugin(plait_step_done=bad, plait_families=lambda: [])
    plugins.register(
        Impl(plait_step_done=lambda report: steps.append(report.index)), PluginInfo("good", "plait-good", "1")
    )
    with structlog.testing.capture_logs() as logs:
        for index in range(3):
            plugins.step_done(report_of(index))
    assert calls == [0] and steps == [0, 1, 2]
    assert [(entry["log_level"], entry["plugin"], entry["hook"]) for entry in logs] == [
        ("error", "fake (plait-fake 1.2)", "plait_step_done")
    ]
    assert set_aside(plugins) == {"fake (plait-fake 1.2)": "plait_step_done raised ZeroDivisionError('it rains')"}
    assert loaded(plugins) == ["attention", "demo", "good"]


def test_a_family_whose_step_done_raises_still_serves(install: Install) -> None:
    install("wave", CLAIM.format(name="wave") + "\n@hookimpl\ndef plait_step_done():\n    raise OSError\n")
    plugins = Plugins()
    assert plugins.claim(site_of()) is not None
    plugins.step_done(report_of())
    assert "wave" in plugins.families() and plugins.owner("wave").distribution == "plait-wave"


def test_the_first_plugin_that_chooses_a_victim_decides() -> None:
    requests = [Request(name, [1], 1) for name in "abc"]
    seen: list[tuple[Sequence[Request], int]] = []

    def last(running: Sequence[Request], need: int) -> Request:
        seen.append((running, need))
        return running[1]

    assert with_plugin().choose_victim(requests, 2) is None
    plugins = with_plugin(plait_choose_victim=last)
    plugins.register(Impl(plait_choose_victim=lambda: None), PluginInfo("b", "plait-b", "1"))
    assert plugins.choose_victim(requests, 2) is requests[1]
    assert seen == [(requests, 2)]


def stranger(running: Sequence[Request], need: int) -> Any:
    return Request("stranger", [1], 1)


@pytest.mark.parametrize("choose", [stranger, lambda running: "a", lambda need: need, boom])
def test_a_plugin_that_chooses_no_running_request_is_set_aside(choose: Callable[..., Any]) -> None:
    """Pages run out in the middle of serving: nothing that a plugin answers may end the engine."""
    requests = [Request(name, [1], 1) for name in "abc"]
    plugins = with_plugin(plait_choose_victim=choose)
    with structlog.testing.capture_logs() as logs:
        assert plugins.choose_victim(requests, 2) is None
        assert plugins.choose_victim(requests, 2) is None
    assert [(entry["plugin"], entry["hook"]) for entry in logs] == [("fake (plait-fake 1.2)", "plait_choose_victim")]
    assert list(set_aside(plugins)) == ["fake (plait-fake 1.2)"] and "fake" not in loaded(plugins)


def test_every_error_of_this_module_is_one_of_ours() -> None:
    for error in (PluginApiError, PluginLoadError, FamilyContractError):
        assert issubclass(error, PluginError) and issubclass(error, PlaitError)
    assert issubclass(SiteClaimError, PlaitError)
