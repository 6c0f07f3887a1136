"""A site as the plan sees it."""

from __future__ import annotations

import attrs

from plait.spec import CacheSpec


@attrs.frozen
class SiteSpec:
    """A site's name and what it keeps.

    Attributes:
        name: unique in the model, as in "layers.3.self_attn".
        spec: what the site's family says about it, checked by `plait.spec.check_spec`.
    """

    name: str
    spec: CacheSpec
