"""Checkpoints, references and engines, each made once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs
import mlx.nn as nn

from plait.models.load import plan_model
from plait.plan import Plan
from plait.plugins import Plugins
from plait.settings import Settings
from plait.spec import Growth
from plait.testing.checkpoints import build_checkpoint
from plait.testing.lesion import Lesion
from plait.testing.reference import Reference
from plait.testing.rig import Rig, Run
from plait.testing.scenario import MOST_REQUESTS, MOST_TOKENS, OUTPUTS, Scenario


class Lab:
    """Makes what a parity test needs, and keeps it until it is closed."""

    def __init__(self, folder: Path) -> None:
        """`folder` takes the checkpoints."""
        self._folder = folder
        self._checkpoints: dict[str, Path] = {}
        self._references: dict[Path, Reference] = {}
        self._plans: dict[str, Plan] = {}
        self._rigs: dict[str, Rig] = {}

    def checkpoint(self, name: str, config: Mapping[str, Any] | None = None, **options: Any) -> Path:
        """Return a tiny checkpoint; see `build_checkpoint`. A name means the same checkpoint each time."""
        if name not in self._checkpoints:
            self._checkpoints[name] = build_checkpoint(name, self._folder, config=config, **options)
        return self._checkpoints[name]

    def reference(self, path: Path, prepare: Callable[[nn.Module], object] | None = None) -> Reference:
        """Return the stock model of a checkpoint, changed by `prepare` when it is first loaded."""
        if path not in self._references:
            self._references[path] = Reference.load(path, prepare)
        return self._references[path]

    def plan(self, path: Path, **settings: Any) -> Plan:
        """Return the plan that an engine would have."""
        asked = Settings(model=str(path), **settings)
        if str(asked) not in self._plans:
            self._plans[str(asked)] = plan_model(asked, Plugins()).plan
        return self._plans[str(asked)]

    def rig(self, path: Path, **settings: Any) -> Rig:
        """Return a running engine; the same one for the same settings."""
        asked = Settings(model=str(path), **settings)
        if str(asked) not in self._rigs:
            self._rigs[str(asked)] = Rig(asked)
        return self._rigs[str(asked)]

    def tight_rig(self, path: Path, pages: int, **settings: Any) -> Rig:
        """Return a running engine with so many pages for requests."""
        nbytes = (1 + pages) * self.plan(path, **settings).page_id_bytes
        rig = self.rig(path, kv_cache_memory_bytes=nbytes, **settings)
        assert rig.plan.num_pages == 1 + pages
        return rig

    def run(self, path: Path, scenario: Scenario, lesion: Lesion | None = None) -> Run:
        """Run a scenario on the engine that it asks for."""
        settings = {"layout": scenario.layout, "block_size": scenario.block_size, "max_num_seqs": MOST_REQUESTS}
        plan = self.plan(path, max_model_len=MOST_TOKENS, **settings)
        if scenario.preemption:
            pages, longest = tight_pool(plan, scenario)
            rig = self.tight_rig(path, pages, max_model_len=longest, **settings)
        else:
            rig = self.rig(path, max_model_len=MOST_TOKENS, **settings)
        assert rig.plan.block_size == plan.block_size
        return rig.run(scenario.jobs(plan.block_size), scenario.chunk, lesion)

    def close(self) -> None:
        """End all engines."""
        for rig in self._rigs.values():
            rig.close()
        self._rigs.clear()


def tight_pool(plan: Plan, scenario: Scenario) -> tuple[int, int]:
    """Return the pages that hold two of a scenario's prompts and any one of its requests, and the longest request.

    The two first requests outgrow these pages. Scenarios that differ in nothing but their requests share them.
    """
    largest = attrs.evolve(scenario, requests=len(OUTPUTS), aborts=True)
    jobs = largest.jobs(plan.block_size)
    longest = max(len(job.prompt) + job.max_tokens for job in jobs)
    two = sum(plan.pages_for(len(job.prompt)) for job in jobs[:2])
    return max(two, plan.pages_for(longest)), longest


def site_names(plan: Plan, growth: Growth | None = None) -> list[str]:
    """Return the names of a plan's sites, or of those that keep something of one kind."""
    return [binding.site for binding in plan.bindings if growth in (None, binding.spec.growth)]
