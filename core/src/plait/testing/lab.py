"""Checkpoints, references and engines, each made once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import attrs

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
        self._plans: dict[tuple[Path, str, int], Plan] = {}
        self._rigs: dict[str, Rig] = {}

    def checkpoint(self, name: str, config: Mapping[str, Any] | None = None, **options: Any) -> Path:
        """Return a tiny checkpoint; see `build_checkpoint`. A name means the same checkpoint each time."""
        if name not in self._checkpoints:
            self._checkpoints[name] = build_checkpoint(name, self._folder, config=config, **options)
        return self._checkpoints[name]

    def reference(self, path: Path) -> Reference:
        """Return the stock model of a checkpoint."""
        if path not in self._references:
            self._references[path] = Reference.load(path)
        return self._references[path]

    def rig(self, path: Path, **settings: Any) -> Rig:
        """Return a running engine; the same one for the same settings."""
        asked = Settings(model=str(path), **settings)
        if str(asked) not in self._rigs:
            self._rigs[str(asked)] = Rig(asked)
        return self._rigs[str(asked)]

    def run(self, path: Path, scenario: Scenario, lesion: Lesion | None = None) -> Run:
        """Run a scenario on the engine that it asks for."""
        plan = self._ample_plan(path, scenario)
        settings: dict[str, Any] = _settings(scenario)
        jobs = scenario.jobs(plan.block_size)
        if not scenario.preemption:
            return self.rig(path, max_model_len=MOST_TOKENS, **settings).run(jobs, scenario.chunk, lesion)
        pages, longest = tight_pool(plan, scenario)
        rig = self.rig(path, max_model_len=longest, kv_cache_memory_bytes=pages * plan.page_id_bytes, **settings)
        assert rig.plan.num_pages == pages and rig.plan.block_size == plan.block_size
        return rig.run(jobs, scenario.chunk, lesion)

    def _ample_plan(self, path: Path, scenario: Scenario) -> Plan:
        key = path, scenario.layout, scenario.block_size
        if key not in self._plans:
            settings = Settings(model=str(path), max_model_len=MOST_TOKENS, **_settings(scenario))
            self._plans[key] = plan_model(settings, Plugins()).plan
        return self._plans[key]

    def close(self) -> None:
        """End all engines."""
        for rig in self._rigs.values():
            rig.close()
        self._rigs.clear()


def _settings(scenario: Scenario) -> dict[str, Any]:
    return {"layout": scenario.layout, "block_size": scenario.block_size, "max_num_seqs": MOST_REQUESTS}


def tight_pool(plan: Plan, scenario: Scenario) -> tuple[int, int]:
    """Return the pages that hold two of a scenario's prompts and any one of its requests, and the longest request.

    The two first requests of a scenario with preemption outgrow them, whatever else runs. The other factors do not
    matter, so that scenarios share engines.
    """
    largest = attrs.evolve(scenario, requests=len(OUTPUTS), preemption=True, aborts=True)
    jobs = largest.jobs(plan.block_size)
    longest = max(len(job.prompt) + job.max_tokens for job in jobs)
    two = sum(plan.pages_for(len(job.prompt)) for job in jobs[:2])
    return 1 + max(two, plan.pages_for(longest)), longest


def sites_by_growth(plan: Plan) -> dict[Growth, Iterable[str]]:
    """Return the names of a plan's sites by what they keep."""
    return {
        growth: names
        for growth in Growth
        if (names := [binding.site for binding in plan.bindings if binding.spec.growth is growth])
    }
