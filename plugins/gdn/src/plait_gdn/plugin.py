"""Registers the family with Plait."""

from __future__ import annotations

from collections.abc import Sequence

from plait.errors import SiteClaimError
from plait.family import StateFamily
from plait.hooks import hookimpl
from plait.spec import Claim, Site
from plait_gdn.family import GatedDeltaNet
from plait_gdn.mixer import is_mixer

FAMILY = GatedDeltaNet()


@hookimpl
def plait_families() -> Sequence[StateFamily]:
    """Ship the family."""
    return [FAMILY]


@hookimpl
def plait_claim_site(site: Site) -> Claim | None:
    """Claim Gated DeltaNet mixers of Qwen3-Next and Qwen3.5."""
    if not is_mixer(site.module):
        return None
    if getattr(site.module, "sharding_group", None) is not None:
        raise SiteClaimError(
            f"site {site.name} (family {FAMILY.name}) is sharded over devices, which is not supported yet."
        )
    return Claim(FAMILY.name)
