"""Whatever shares the batch, however prompts are cut and memory is laid out: the output is that of one request alone.

Each row of the table is a run of an engine; every token's whole distribution is held to one cold forward of the stock
model and to mlx-lm's single run. The same row is run again with a lesion: one request forgets what one site kept, in
one step, and the same comparison must fail.
"""

from __future__ import annotations

import attrs
import pytest

from plait.engine.core import EngineCore
from plait.testing.checkpoints import CONFIGS
from plait.testing.lab import Lab, site_names
from plait.testing.lesion import Lesion
from plait.testing.pairwise import all_pairs, cross, missing_pairs, pairwise_rows, rows_with_every_level
from plait.testing.parity import FORGOTTEN, compare
from plait.testing.parity_table import TABLE
from plait.testing.scenario import FACTORS, Scenario

ROWS = [attrs.astuple(scenario) for scenario in TABLE]

# Short enough for 1,120 runs, with two sites of one kind; a state so small that blocks of 16 tokens stay as they are.
SHORT = {
    **CONFIGS["qwen3_5"],
    "text_config": {
        **CONFIGS["qwen3_5"]["text_config"],
        "num_hidden_layers": 3,
        "full_attention_interval": 3,
        "linear_num_value_heads": 2,
        "linear_num_key_heads": 1,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 16,
    },
}
ENGINE_FACTORS = ("requests", "chunk", "block_size", "layout")
SCENARIO_FACTORS = {name: levels for name, levels in FACTORS.items() if name not in ENGINE_FACTORS}


def test_table_covers_every_pair_of_levels() -> None:
    assert list(FACTORS) == [field.name for field in attrs.fields(Scenario)]
    covered = len(all_pairs(FACTORS)) - len(missing_pairs(FACTORS, ROWS))
    assert covered == len(all_pairs(FACTORS)) == 195
    # 5 x 7 pairs of the two longest factors: no table is shorter.
    assert len(set(ROWS)) == len(ROWS) == 35


def test_pairwise_arithmetic() -> None:
    factors = {"a": (1, 2, 3), "b": (True, False), "c": ("x", None)}
    assert len(all_pairs(factors)) == 3 * 2 + 3 * 2 + 2 * 2
    assert len(missing_pairs(factors, [(1, True, "x")])) == 16 - 3
    assert not missing_pairs(factors, cross(factors)) and len(cross(factors)) == 12
    rows = pairwise_rows(factors)
    assert not missing_pairs(factors, rows) and len(rows) < 12
    few = rows_with_every_level(factors, rows)
    assert {level for row in few for level in row} == {1, 2, 3, False, "x", None}
    with pytest.raises(ValueError, match="no row holds"):
        rows_with_every_level(factors, [(1, True, "x")])


@pytest.mark.parametrize("scenario", TABLE, ids=str)
def test_table(lab: Lab, model: str, scenario: Scenario) -> None:
    path = lab.checkpoint(model)
    run = lab.run(path, scenario)
    compare(run, lab.reference(path)).check()
    _check_happened(run, scenario)


@pytest.mark.parametrize("scenario", TABLE, ids=str)
def test_table_notices_what_one_site_forgets(lab: Lab, model: str, scenario: Scenario) -> None:
    path = lab.checkpoint(model)
    names = site_names(lab.plan(path))
    lesion = Lesion([names[TABLE.index(scenario) % len(names)]])
    comparison = compare(lab.run(path, scenario, lesion), lab.reference(path))
    assert lesion.done
    assert comparison.worst > FORGOTTEN, comparison
    # Where experts tie, a lesion cannot be told from the tie; the table has other rows for that site.
    assert comparison.faults or comparison.excused


@pytest.mark.parametrize("layout", FACTORS["layout"])
@pytest.mark.parametrize("block_size", FACTORS["block_size"])
@pytest.mark.parametrize("chunk", FACTORS["chunk"])
@pytest.mark.parametrize("requests", FACTORS["requests"])
def test_full_cross(lab: Lab, requests: int, chunk: int | None, block_size: int, layout: str) -> None:
    pytest.importorskip("plait_gdn")
    path = lab.checkpoint("qwen3_5_short", SHORT)
    for rest in cross(SCENARIO_FACTORS):
        scenario = Scenario(requests, chunk, block_size, layout, *rest)
        run = lab.run(path, scenario)
        try:
            compare(run, lab.reference(path)).check()
            _check_happened(run, scenario)
        except AssertionError as error:
            raise AssertionError(f"{scenario}: {error}") from error


def test_runs_depend_on_cleared_pages(lab: Lab, model: str) -> None:
    """Pages that nobody owns hold poison, and it shows where they are not cleared for a new owner."""
    path = lab.checkpoint(model)
    rig = lab.rig(path, max_model_len=64, max_num_seqs=3)

    def keep_poison(core: EngineCore) -> None:
        core._arenas.zero = lambda pages: None  # type: ignore[method-assign]

    def clear_again(core: EngineCore) -> None:
        del core._arenas.zero

    jobs = Scenario(3, None, 16, "spanning", False, False, False).jobs(16)[1:]
    compare(rig.run(jobs), lab.reference(path)).check()
    rig.engine.ask(keep_poison)
    spoiled = compare(rig.run(jobs), lab.reference(path))
    rig.engine.ask(clear_again)
    assert spoiled.worst > FORGOTTEN, spoiled
    compare(rig.run(jobs), lab.reference(path)).check()


def _check_happened(run, scenario: Scenario) -> None:  # type: ignore[no-untyped-def]
    """Assert that a run was what its scenario says: a level that does nothing tests nothing."""
    reasons = [transcript.finish_reason for transcript in run.transcripts]
    assert reasons[: scenario.requests] == ["length"] * scenario.requests
    assert len(reasons) == scenario.requests + 2 * scenario.aborts
    if scenario.chunk is not None:
        assert max(run.chunk_sizes) <= scenario.chunk
    if scenario.preemption:
        assert run.preemptions > 0 or scenario.requests == 1
    elif not scenario.staggered:
        assert run.most_running >= scenario.requests
