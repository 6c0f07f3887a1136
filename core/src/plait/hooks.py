"""The hooks of Plait, in the order in which they are called.

Hooks register and decide at load time, and run at most once per step; the layer loop calls plain methods on the
objects that hooks returned. The version of this API is in the entry-point group, `plait.v1`:

    [project.entry-points."plait.v1"]
    myfamily = "plait_myfamily.plugin"

An implementation may leave arguments out, but must not give one a default: pluggy would never pass it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from plait.adapter import Demo, ModelAdapter
    from plait.family import StateFamily
    from plait.kernel import KernelBackend
    from plait.options import Options
    from plait.scheduler.request import Request
    from plait.scheduler.scheduler import StepReport
    from plait.settings import Settings
    from plait.spec import Claim, Site

API_GROUP = "plait.v1"

hookspec = pluggy.HookspecMarker("plait")
hookimpl = pluggy.HookimplMarker("plait")


@hookspec
def plait_add_options(parser: Options) -> None:
    """Add options to the commands that run an engine (`plait serve`, `plait generate`).

    Any plugin; called once, before the command line is read.
    """


@hookspec(historic=True)
def plait_configure(config: Settings) -> None:
    """Look at the settings of an engine that is about to start; values of own options are in `config.options`.

    Any plugin; called once per engine, before the model's configuration is read. Raise `PlaitError` to refuse.
    """


@hookspec
def plait_models() -> Sequence[ModelAdapter]:  # type: ignore[empty-body]
    """Return adapters for checkpoints whose configuration mlx-lm alone would misread.

    Any plugin; called once, before a model is built. Two adapters that accept one configuration are an error.
    """


@hookspec
def plait_demos() -> Sequence[Demo]:  # type: ignore[empty-body]
    """Return small checkpoints that `plait serve NAME` fetches.

    Any plugin; called when a model is looked up by name. Two demos of one name are an error.
    """


@hookspec
def plait_families() -> Sequence[StateFamily]:  # type: ignore[empty-body]
    """Return the state families of this plugin.

    Family plugins; called once, at load. A name that is taken is an error that names both distributions.
    """


@hookspec
def plait_claim_site(site: Site) -> Claim | None:
    """Claim a site for one of this plugin's families, or return None.

    Family plugins; called at load for each module that could keep state. Claim by a whitelist of sub-modules and
    fields, and do not claim a module in which anything is unknown. Every plugin is asked: two claims of a site are
    an error, for the order of installation must never decide. Raise `SiteClaimError` to refuse by name a site that is
    yours but not supported.
    """


@hookspec
def plait_kernel_backend() -> KernelBackend | None:
    """Return a kernel backend for the device at hand, or None if there is none for it.

    Kernel plugins; called once, at load. Two backends are an error that names both.
    """


@hookspec
def plait_report_header(config: Settings) -> str | Sequence[str] | None:
    """Return lines for the start-up report and `plait doctor`.

    Any plugin; called once per engine, and by `plait doctor`.
    """


@hookspec(firstresult=True)
def plait_choose_victim(running: Sequence[Request], need: int) -> Request | None:
    """Choose the request that gives up its pages when `need` pages are wanting, or return None to leave it to others.

    Any plugin; called when pages run out. `running` is in order of arrival. Core's own choice is the newest.
    """


@hookspec
def plait_step_done(report: StepReport) -> None:
    """Look at what a step did.

    Any plugin, read-only; called once per step. One that raises is logged once and set aside; serving goes on.
    """
