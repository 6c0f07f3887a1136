"""Finds plugins, and asks them through typed methods.

The rest of Plait never touches pluggy: every hook has one method here, which checks what came back. A plugin that
cannot be used is set aside with its reason; that becomes an error only when a site then has no owner, or when asked
to be strict.
"""

from __future__ import annotations

import inspect
import os
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from importlib import metadata, resources
from typing import TYPE_CHECKING, Any

import attrs
import pluggy
import structlog

from plait import hooks
from plait.adapter import Demo, ModelAdapter
from plait.errors import (
    CheckpointError,
    FamilyContractError,
    PlaitError,
    PluginApiError,
    PluginError,
    PluginLoadError,
    SiteClaimError,
)
from plait.family import StateFamily
from plait.kernel import KernelBackend
from plait.options import Options
from plait.spec import Claim, Site

if TYPE_CHECKING:
    from plait.scheduler.request import Request
    from plait.scheduler.scheduler import StepReport
    from plait.settings import Settings

log = structlog.get_logger(__name__)

GROUP_PREFIX = "plait.v"
OWN_DISTRIBUTION = "plait"  # core's own plugins are entry points like everyone's, and load whatever is chosen


@attrs.frozen
class PluginInfo:
    """A plugin as reports name it.

    Attributes:
        name: of the entry point.
        distribution: that ships it.
        version: of the distribution.
        reason: why it was set aside, or None if it is in use.
    """

    name: str
    distribution: str
    version: str
    reason: str | None = None

    def __str__(self) -> str:
        return f"{self.name} ({self.distribution} {self.version})"


def known_distribution(mixer: str, architectures: Iterable[str]) -> str | None:
    """Return the distribution that is known to own a mixer class or an architecture, for error texts."""
    known = tomllib.loads(resources.files("plait").joinpath("known_plugins.toml").read_text())
    if mixer in known["mixers"]:
        return str(known["mixers"][mixer])
    return next((str(known["architectures"][a]) for a in architectures if a in known["architectures"]), None)


def selected_names() -> set[str] | None:
    """Return the entry-point names in `PLAIT_PLUGINS`, or None if it is not set: everything loads."""
    value = os.environ.get("PLAIT_PLUGINS")
    return None if value is None else {name.strip() for name in value.split(",") if name.strip()}


class Plugins:
    """The plugins of this process."""

    def __init__(self, *, strict: bool = False) -> None:
        """Load core's own plugins, and those of the installed ones that `PLAIT_PLUGINS` admits.

        Args:
            strict: raise for the first plugin that has to be set aside.
        """
        self.loaded: list[PluginInfo] = []
        self.set_aside: list[PluginInfo] = []
        self._strict = strict
        self._manager = pluggy.PluginManager("plait")
        self._manager.add_hookspecs(hooks)
        self._info: dict[str, PluginInfo] = {}
        self._configured: list[Settings] = []
        self._load_installed()
        self._families: dict[str, tuple[StateFamily, PluginInfo]] | None = None

    def register(self, plugin: object, info: PluginInfo) -> None:
        """Take a plugin in, or set it aside with the reason."""
        reason = _misfit(plugin)
        if reason is None:
            try:
                self._manager.register(plugin, name=info.name)
            except (pluggy.PluginValidationError, ValueError) as error:
                reason = str(error)
                if info.name not in self._info and self._manager.get_plugin(info.name) is plugin:
                    self._manager.unregister(name=info.name)  # pluggy before 1.7 keeps the hooks that it took first
        if reason is None:
            reason = self._tell_history(plugin)
            if reason is not None:
                self._manager.unregister(plugin)
        if reason is None:
            self.loaded.append(info)
            self._info[info.name] = info
            self._families = None
        else:
            self._set_aside(info, PluginLoadError(f"plugin {info}: {reason}"))

    def _tell_history(self, plugin: object) -> str | None:
        """Show a late plugin the settings of the engines that have started; returns what it raised, or None."""
        function = getattr(plugin, "plait_configure", None)
        if function is None:
            return None
        wants = inspect.signature(function).parameters
        for settings in self._configured:
            try:
                function(**({"config": settings} if wants else {}))
            except Exception as error:
                return f"plait_configure raised {error!r}"
        return None

    def families(self) -> dict[str, StateFamily]:
        """Return the families by name.

        Raises:
            FamilyContractError: something that is not a family, or one name twice.
        """
        return {name: family for name, (family, _) in self._family_owners().items()}

    def owner(self, family: str) -> PluginInfo:
        """Return the plugin that ships a family."""
        return self._family_owners()[family][1]

    def claim(self, site: Site) -> StateFamily | None:
        """Return the family that owns a site, or None.

        Raises:
            SiteClaimError: two claims, or a family that refuses the site by name.
            FamilyContractError: a claim for a family that does not exist.
        """
        owners = self._family_owners()
        claims: list[tuple[Claim, PluginInfo]] = []
        for info, claim in self._ask("plait_claim_site", site=site):
            if claim is None:
                continue
            if not isinstance(claim, Claim) or claim.family not in owners:
                raise FamilyContractError(
                    f"plugin {info}: plait_claim_site returned {claim!r} for {site.name}; wanted a Claim of one of the "
                    f"families {', '.join(owners)}, or None."
                )
            claims.append((claim, info))
        if len(claims) > 1:
            rivals = " and ".join(f"{claim.family!r} of plugin {info}" for claim, info in claims)
            raise SiteClaimError(
                f"site {site.name} ({type(site.module).__name__}) is claimed twice, by {rivals}. Uninstall one, or "
                "choose with PLAIT_PLUGINS=name,name."
            )
        return owners[claims[0][0].family][0] if claims else None

    def unclaimed(self, site: Site) -> SiteClaimError:
        """Return the error for a site that nobody claims."""
        mixer = type(site.module).__name__
        architectures = site.config.get("architectures") or ()
        text = f"site {site.name} ({mixer}) has no owner among the families {', '.join(self.families())}."
        if distribution := known_distribution(mixer, architectures):
            folder = f"./plugins/{distribution.removeprefix('plait-')}"
            text += f" It belongs to {distribution}: install that (from a clone: pip install {folder})."
        else:
            text += " No known plugin serves this kind of layer; `plait families` lists what is installed."
        if selected_names() is not None:
            text += f" PLAIT_PLUGINS={os.environ['PLAIT_PLUGINS']} limits what is loaded."
        for info in self.set_aside:
            text += f" Set aside: {info}: {info.reason}"
        return SiteClaimError(text)

    def kernel_backend(self) -> KernelBackend | None:
        """Return the kernel backend for the device at hand, or None.

        Raises:
            PluginError: two plugins offer one, or one offers something else.
        """
        found = [(info, backend) for info, backend in self._ask("plait_kernel_backend") if backend is not None]
        for info, backend in found:
            if not isinstance(backend, KernelBackend):
                raise FamilyContractError(f"plugin {info}: plait_kernel_backend returned {type(backend).__name__}")
        if len(found) > 1:
            names = " and ".join(f"{backend.name} of plugin {info}" for info, backend in found)
            raise PluginError(f"two kernel backends: {names}. Uninstall one, or choose with PLAIT_PLUGINS.")
        return found[0][1] if found else None

    def adapter(self, config: dict[str, Any]) -> ModelAdapter | None:
        """Return the adapter that accepts a configuration, or None. Raises `CheckpointError` if two do."""
        found = [(i, a) for i, a in self._each("plait_models", ModelAdapter) if a.accepts(config)]
        if len(found) > 1:
            names = " and ".join(f"{adapter.name} of plugin {info}" for info, adapter in found)
            raise CheckpointError(f"two model adapters accept this configuration: {names}. Uninstall one.")
        return found[0][1] if found else None

    def demos(self) -> dict[str, Demo]:
        """Return the demos by name. Raises `FamilyContractError` for one name twice."""
        demos: dict[str, tuple[Demo, PluginInfo]] = {}
        for info, demo in self._each("plait_demos", Demo):
            if demo.name in demos:
                raise FamilyContractError(
                    f"demo {demo.name!r} is shipped twice, by plugin {demos[demo.name][1]} and by plugin {info}. "
                    "Uninstall one, or choose with PLAIT_PLUGINS."
                )
            demos[demo.name] = (demo, info)
        return {name: demo for name, (demo, _) in demos.items()}

    def options(self) -> Options:
        """Return the options that plugins add to the commands."""
        options = Options()
        self._ask("plait_add_options", parser=options)
        return options

    def configure(self, settings: Settings) -> None:
        """Show every plugin, present and future, the settings of an engine that starts."""
        self._configured.append(settings)
        self._ask("plait_configure", config=settings)

    def report_header(self, settings: Settings) -> list[str]:
        """Return the plugins' lines for reports. Raises `FamilyContractError` for anything but texts."""
        lines: list[str] = []
        for info, answer in self._ask("plait_report_header", config=settings):
            texts = [answer] if isinstance(answer, str) else [] if answer is None else answer
            if not isinstance(texts, list | tuple) or any(not isinstance(text, str) for text in texts):
                raise FamilyContractError(
                    f"plugin {info}: plait_report_header returned {answer!r}; wanted a text, a list of texts or None"
                )
            lines.extend(texts)
        return lines

    def choose_victim(self, running: Sequence[Request], need: int) -> Request | None:
        """Return the running request that a plugin wants to give up its pages, or None.

        A plugin that raises or answers something else is set aside, once, and serving goes on.
        """
        for impl in reversed(self._manager.hook.plait_choose_victim.get_hookimpls()):
            arguments: dict[str, Any] = {"running": running, "need": need}
            try:
                chosen: Any = impl.function(**{name: arguments[name] for name in impl.argnames})
            except Exception as error:
                self._retire(impl.plugin_name, "plait_choose_victim", f"raised {error!r}")
                continue
            if any(chosen is request for request in running):
                victim: Request = chosen
                return victim
            if chosen is not None:
                self._retire(impl.plugin_name, "plait_choose_victim", f"returned {chosen!r}, no running request")
        return None

    def step_done(self, report: StepReport) -> None:
        """Show every plugin what a step did; one that raises is set aside, once, and serving goes on."""
        for impl in self._manager.hook.plait_step_done.get_hookimpls():
            try:
                impl.function(**{name: report for name in impl.argnames})
            except Exception as error:
                self._retire(impl.plugin_name, "plait_step_done", f"raised {error!r}")

    def _retire(self, name: str, hook: str, what: str) -> None:
        """Set aside a plugin that failed while serving."""
        info = self._info[name]
        log.error("plugin set aside", plugin=str(info), hook=hook, reason=what)
        self._manager.unregister(name=name)
        self.loaded.remove(info)
        self.set_aside.append(attrs.evolve(info, reason=f"{hook} {what}"))

    def _family_owners(self) -> dict[str, tuple[StateFamily, PluginInfo]]:
        if self._families is None:
            families: dict[str, tuple[StateFamily, PluginInfo]] = {}
            for info, family in self._each("plait_families", StateFamily):
                if family.name in families:
                    raise FamilyContractError(
                        f"family {family.name!r} is shipped twice, by plugin {families[family.name][1]} and by plugin "
                        f"{info}. Uninstall one, or choose with PLAIT_PLUGINS."
                    )
                families[family.name] = (family, info)
            self._families = families
        return self._families

    def _each(self, hook: str, wanted: type) -> Iterator[tuple[PluginInfo, Any]]:
        for info, answer in self._ask(hook):
            if not isinstance(answer, Sequence) or any(not isinstance(item, wanted) for item in answer):
                raise FamilyContractError(
                    f"plugin {info}: {hook} returned {answer!r}; wanted a list of {wanted.__name__}"
                )
            for item in answer:
                yield info, item

    def _ask(self, hook: str, **kwargs: object) -> list[tuple[PluginInfo, Any]]:
        """Call each implementation, keeping whose answer it is; a foreign exception names the plugin."""
        answers = []
        for impl in getattr(self._manager.hook, hook).get_hookimpls():
            info = self._info[impl.plugin_name]
            try:
                answers.append((info, impl.function(**{name: kwargs[name] for name in impl.argnames})))
            except PlaitError:
                raise
            except Exception as error:
                raise PluginError(
                    f"plugin {info}: {hook} raised {error!r}. Report it to {info.distribution}."
                ) from error
        return answers

    def _set_aside(self, info: PluginInfo, error: PluginError) -> None:
        if self._strict:
            raise error
        log.warning("plugin set aside", plugin=str(info), reason=str(error))
        self.set_aside.append(attrs.evolve(info, reason=str(error)))

    def _load_installed(self) -> None:
        selected = selected_names()
        seen: set[str] = set()
        for point in _entry_points():
            dist = point.dist
            info = PluginInfo(point.name, dist.name if dist else "?", dist.version if dist else "?")
            if selected is not None and point.name not in selected and info.distribution != OWN_DISTRIBUTION:
                continue
            if point.group != hooks.API_GROUP:
                text = (
                    f"plugin {info} is written for hook API {point.group!r}; this Plait has {hooks.API_GROUP!r}. "
                    f"Install a release of {info.distribution} that matches plait {metadata.version('plait')}."
                )
                self._set_aside(info, PluginApiError(text))
            elif point.name in self._info:
                self._set_aside(info, PluginLoadError(f"plugin {info}: the name {point.name!r} is taken"))
            else:
                self._load(point, info)
            seen.add(point.name)
        if selected is not None and (missing := selected - seen):
            installed = sorted(p.name for p in _entry_points())
            raise PluginLoadError(
                f"PLAIT_PLUGINS names {', '.join(sorted(missing))}, which is not installed. Installed: "
                f"{', '.join(installed) or 'none'}."
            )

    def _load(self, point: metadata.EntryPoint, info: PluginInfo) -> None:
        try:
            plugin = point.load()
        except Exception as error:
            self._set_aside(info, PluginLoadError(f"plugin {info}: importing {point.value} raised {error!r}"))
        else:
            self.register(plugin, info)


def _entry_points() -> list[metadata.EntryPoint]:
    """Return the entry points of every version of the hook API, in a fixed order."""
    found = metadata.entry_points()
    groups = sorted(group for group in found.groups if group.startswith(GROUP_PREFIX))
    points = [point for group in groups for point in metadata.entry_points(group=group)]
    return sorted(points, key=lambda p: (p.name, p.dist.name if p.dist else ""))


def _misfit(plugin: object) -> str | None:
    """Say what pluggy would pass over in silence: an unknown hook, or an argument with a default."""
    known = {name for name in dir(hooks) if name.startswith("plait_")}
    for name in dir(plugin):
        function = getattr(plugin, name, None)
        if not (callable(function) and hasattr(function, "plait_impl")):
            continue
        if name not in known:
            return f"{name} is not a hook of Plait; hooks are {', '.join(sorted(known))}"
        for parameter in inspect.signature(function).parameters.values():
            if parameter.default is not inspect.Parameter.empty:
                return f"{name}: argument {parameter.name!r} has a default, so it would never be passed; remove it"
    return None
