"""The contract of a state family: what it keeps, and how a step changes it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

import mlx.core as mx

from plait.kernel import Kernel
from plait.spec import CacheSpec, Site

if TYPE_CHECKING:
    from plait.memory.view import View
    from plait.step import Step


class BoundSite(ABC):
    """One site of a loaded model, bound to its place in the arenas. The layer loop calls it, once per step."""

    @abstractmethod
    def __call__(self, x: mx.array, step: Step) -> mx.array:
        """Run the site's mixer over a step.

        Args:
            x: the packed batch [1, tokens, hidden]: `step.decode` rows of one token each, then the chunks.
            step: positions, spans and tables of the batch. Memory is read and written through the site's view only:
                what is written here becomes visible after the step, never within it.

        Returns:
            [1, tokens, hidden], in the order of `x`.
        """


class StateFamily(ABC):
    """A kind of per-layer memory.

    A family holds no arrays of its own and allocates nothing per request: core gives each site a view of its pages.
    It imports the microkernel and `plait.ops`, never another family. One instance serves every site of every model.
    """

    name: ClassVar[str]
    """Unique among the installed plugins, as reports and errors print it."""

    kernels: ClassVar[Sequence[Kernel]] = ()
    """Kernels of this family; built once by the kernel backend, if there is one."""

    @abstractmethod
    def spec(self, site: Site) -> CacheSpec:
        """Say what `site` keeps. Pure: makes no array, and gives the same answer each time.

        Sizes are read from the module's attributes (tensor parallelism divides them), not from the config.
        """

    @abstractmethod
    def bind(self, site: Site, view: View) -> BoundSite:
        """Return the object that runs `site` on `view`, once the weights are loaded."""
