"""The plan as people and programs read it."""

from __future__ import annotations

import json
from typing import Any

from plait.plan import LayerRole, Plan, PlanRequest, SiteSpec, make_plan, plan_json, plan_table
from plait.spec import CacheSpec, Growth, Resume, TensorSpec

ATTENTION = CacheSpec(Growth.TOKEN, (TensorSpec("kv", (2, 2, 256), "bfloat16", block_axis=2),))
STATE = CacheSpec(
    Growth.STATE,
    (TensorSpec("conv", (3, 6144), "bfloat16"), TensorSpec("state", (16, 128, 128), "float32")),
    resume=Resume.CHECKPOINT,
)
ROLES = [LayerRole.STATE, LayerRole.STATE, LayerRole.STATE, LayerRole.TOKEN] * 6
SITES = [
    SiteSpec(f"layers.{i}.{'self_attn' if i % 4 == 3 else 'mixer'}", ATTENTION if i % 4 == 3 else STATE)
    for i in range(24)
]
FAMILIES = {site.name: "attention" if site.spec is ATTENTION else "delta" for site in SITES}


def plan_of(sites: list[SiteSpec] = SITES, **request: Any) -> Plan:
    request = {"max_model_len": 32768, "max_num_seqs": 256, "memory_bytes": 8 * 1024**3, **request}
    return make_plan(sites, PlanRequest(**request), ROLES)


def test_spanning_table() -> None:
    assert plan_table(plan_of(max_num_seqs=500), FAMILIES).splitlines() == [
        "sites  growth  family     keeps                                        bytes                         first",
        "18     state   delta      [3, 6144] bfloat16 + [16, 128, 128] float32  1,085,440 bytes per sequence"
        "  layers.0.mixer",
        "6      token   attention  [2, 2, 256] bfloat16                         2,048 bytes per token       "
        "  layers.3.self_attn",
        "",
        "layers                          24: 18 state, 6 token",
        "layout                          spanning, mode align, prefix caching on",
        "block                           16 tokens, 12,288 bytes per token",
        "page                            196,608 bytes, 0 bytes of padding (0.00%) per block",
        "pages                           43,690 and 8,589,803,520 bytes of a budget of 8,589,934,592; "
        "page 0 is the null page",
        "state                           19,537,920 bytes per sequence on 100 pages of 19,660,800 bytes, "
        "122,880 bytes of padding (0.62%)",
        "smallest cacheable prefix       16 tokens",
        "one sequence of 32,768 tokens   422,313,984 bytes, 2,148 pages",
        "at once, of 32,768 tokens each  20 sequences",
        "sequences that may run at once  432 of 500 asked",
        "note                            max_num_seqs lowered from 500 to 432: a sequence takes 19,857,408 bytes at "
        "least (states 19,537,920), and 43,689 pages of 196,608 bytes are there",
    ]


def test_unified_table_tells_kernel_blocks_arenas_and_padding() -> None:
    text = plan_table(plan_of(layout="unified", enable_prefix_caching=False))
    assert "unified, mode none, prefix caching off" in text
    assert "544 tokens = 17 kernel blocks of 32, 12,288 bytes per token" in text
    assert "1,114,112 bytes in each of 6 arenas, 0 bytes of padding (0.00%) per block" in text
    assert "on 3 pages of 20,054,016 bytes, 516,096 bytes of padding (2.57%)" in text
    assert "smallest cacheable prefix" not in text
    assert "18     state   -       [3, 6144]" in text


def test_tables_of_models_of_one_growth() -> None:
    states = plan_table(plan_of(SITES[:3]))
    assert "16 tokens between checkpoints (no site grows with the tokens)" in states
    assert "\npage                            65,536 bytes\n" in states
    tokens = plan_table(plan_of(SITES[3:4]))
    assert "\nstate                           none\n" in tokens


def test_json_is_json_and_says_what_the_plan_says() -> None:
    plan = plan_of()
    data = plan_json(plan, FAMILIES)
    assert json.loads(json.dumps(data)) == data
    assert data["page_bytes"] == 196_608
    assert data["num_pages"] == 43_690
    assert data["nbytes"] == plan.nbytes
    assert data["state_pages"] == 100
    assert data["waste"]["run_rounding"] == 122_880
    assert data["requests_of_max_model_len"] == 20
    assert data["roles"][:4] == ["state", "state", "state", "token"]
    assert data["request"]["layout"] == data["layout"] == "spanning"
    assert data["sites"][4] == {
        "name": "layers.4.mixer",
        "family": "delta",
        "growth": "state",
        "tensors": [
            {"name": "conv", "shape": [3, 6144], "dtype": "bfloat16"},
            {"name": "state", "shape": [16, 128, 128], "dtype": "float32"},
        ],
        "bytes": 1_085_440,
        "arena": 0,
        "table": 1,
        "offset": 3 * 1_085_440,
        "nbytes": 1_085_440,
        "tensor_offsets": [0, 36_864],
    }
    assert data["tables"][1]["pages"] == 100
    assert len(data["tables"][0]["sites"]) == 6
