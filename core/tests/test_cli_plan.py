"""`plait plan` on configurations without weights, and on files of layer lists."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import plait  # noqa: F401  before MLX
from plait.cli.app import build_app
from plait.testing.checkpoints import BASE, CONFIGS

LAYERS = Path(__file__).parent / "data" / "page_plans.json"

KIMI_LINEAR = {
    "model_type": "kimi_linear", "architectures": ["KimiLinearForCausalLM"], "hidden_size": 64, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 4, "intermediate_size": 128, "head_dim": 16, "rope_theta": 1e4,
    "rms_norm_eps": 1e-6, "model_max_length": 4096, "num_experts": 8, "moe_intermediate_size": 32, "kv_lora_rank": 32,
    "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32, "mla_use_nope": True,
    "num_experts_per_token": 2, "num_shared_experts": 1, "first_k_dense_replace": 1, "routed_scaling_factor": 2.4,
    "num_expert_group": 1, "topk_group": 1,
    "linear_attn_config": {
        "kda_layers": [1, 2, 3], "full_attn_layers": [4], "num_heads": 4, "head_dim": 32, "short_conv_kernel_size": 4
    },
}  # fmt: skip
DEEPSEEK_V2 = {
    "model_type": "deepseek_v2", "hidden_size": 64, "intermediate_size": 128, "moe_intermediate_size": 32,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4, "n_shared_experts": 1,
    "n_routed_experts": 8, "routed_scaling_factor": 1.0, "kv_lora_rank": 32, "q_lora_rank": None,
    "qk_rope_head_dim": 16, "v_head_dim": 32, "qk_nope_head_dim": 32, "num_experts_per_tok": 2,
    "first_k_dense_replace": 1, "max_position_embeddings": 4096,
    "rope_scaling": {
        "type": "yarn", "factor": 2.0, "original_max_position_embeddings": 2048, "beta_fast": 32, "beta_slow": 1,
        "mscale": 0.707, "mscale_all_dim": 0.707,
    },
}  # fmt: skip

needs_gdn = pytest.mark.skipif(importlib.util.find_spec("plait_gdn") is None, reason="plait-gdn is not installed")


@pytest.fixture(autouse=True)
def core_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAIT_PLUGINS", "")


def run(*args: str) -> Any:
    return CliRunner().invoke(build_app(), ["plan", *args])


def plan_json(*args: str) -> Any:
    done = run(*args, "--json")
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


def plan_text(*args: str) -> str:
    done = run(*args)
    assert done.exit_code == 0, done.stderr
    return str(done.stdout)


def folder(path: Path, config: dict[str, Any]) -> str:
    (path / "config.json").write_text(json.dumps({**BASE, **config}))
    return str(path)


def test_a_model_of_attention_only(tmp_path: Path) -> None:
    model = folder(tmp_path, CONFIGS["llama"])
    text = run(model)
    assert text.exit_code == 0
    assert f"{model} (llama) in float32, weights not here, not counted" in text.stdout
    # 2 key-value heads of 16, key and value, in float32
    assert "token   attention  [2, 2, 16] float32  256 bytes per token  layers.0.self_attn" in text.stdout
    plan = plan_json(model, "--dtype", "bfloat16", "--max-model-len", "100", "--max-num-seqs", "3")
    assert (plan["model"], plan["model_type"], plan["dtype"]) == (model, "llama", "bfloat16")
    assert plan["layout"] == "spanning" and plan["bytes_per_token"] == 4 * 128 and plan["page_bytes"] == 16 * 4 * 128
    assert plan["num_pages"] == 1 + 3 * 7 and plan["request"]["max_model_len"] == 100
    assert [site["family"] for site in plan["sites"]] == ["attention"] * 4


def test_the_budget_is_as_asked(tmp_path: Path) -> None:
    plan = plan_json(folder(tmp_path, CONFIGS["llama"]), "--kv-cache-memory-bytes", "1M", "--block-size", "32")
    assert plan["page_bytes"] == 32 * 4 * 256 and plan["num_pages"] == 32 and plan["request"]["memory_bytes"] == 1 << 20


@needs_gdn
def test_a_hybrid_in_both_layouts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAIT_PLUGINS", "gdn")
    model = folder(tmp_path, CONFIGS["qwen3_5"])
    spanning, unified = plan_json(model), plan_json(model, "--layout", "unified", "--enable-prefix-caching")
    families = ["gdn", "gdn", "gdn", "attention"] * 2
    for plan in (spanning, unified):
        assert [site["family"] for site in plan["sites"]] == families
        # convolution [3, 2 * 64 + 128] and recurrent state [4, 32, 32], both float32 on a CPU
        assert plan["bytes_per_token"] == 2 * 512 and plan["state_bytes"] == 6 * 4 * (3 * 256 + 4 * 32 * 32)
    assert (spanning["layout"], spanning["mode"], spanning["block_size"]) == ("spanning", "none", 16)
    assert (unified["layout"], unified["mode"], unified["block_size"]) == ("unified", "align", 48)
    assert unified["smallest_cacheable_prefix"] == 48 and len(unified["arenas"]) == 2
    table = plan_text(model, "--layout", "unified")
    assert "6      state   gdn" in table and "2      token   attention" in table and "layout" in table


@pytest.mark.parametrize(("config", "plugin"), [(KIMI_LINEAR, "plait-kda"), (DEEPSEEK_V2, "plait-mla")])
def test_a_site_without_owner_names_the_plugin_to_install(config: dict[str, Any], plugin: str, tmp_path: Path) -> None:
    done = run(folder(tmp_path, config))
    assert done.exit_code == 1 and done.stdout == "" and done.stderr.startswith("error: site layers.0.self_attn")
    assert f"It belongs to {plugin}: install that" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(("layout", "expected"), [("spanning", "expect_spanning"), ("unified", "expect")])
def test_the_layer_lists_come_out_exactly(layout: str, expected: str) -> None:
    wanted = json.loads(LAYERS.read_text())["plans"]
    assert plan_json("--layers", str(LAYERS), "--layout", layout) == [
        {"name": p["name"], **p[expected]} for p in wanted
    ]
    lines = plan_text("--layers", str(LAYERS), "--layout", layout).splitlines()
    assert len(lines) == len(wanted)
    assert all(line.startswith(f"{plan['name']}: block_size ") for line, plan in zip(lines, wanted, strict=True))
    assert f"page_bytes {wanted[0][expected]['page_bytes']}" in lines[0]


def test_a_model_that_does_not_fit_says_what_to_change(tmp_path: Path) -> None:
    line = ["--kv-cache-memory-bytes", "20000", "--max-model-len", "4096"]
    done = run(folder(tmp_path, CONFIGS["llama"]), *line)
    assert done.exit_code == 1 and done.stderr.count("\n") == 1
    assert "4,096" in done.stderr and "--kv-cache-memory-bytes" in done.stderr


def test_of_a_repository_only_the_configuration_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    asked: list[tuple[str, list[str]]] = []

    def snapshot(name: str, *, allow_patterns: list[str]) -> str:
        asked.append((name, allow_patterns))
        return folder(tmp_path, CONFIGS["llama"])

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    assert plan_json("some-owner/some-model")["model"] == "some-owner/some-model"
    assert asked == [("some-owner/some-model", ["*.json"])]

    def refusal(name: str, *, allow_patterns: list[str]) -> str:
        raise OSError("no network")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refusal)
    done = run("some-owner/some-model")
    assert done.exit_code == 1 and "some-owner/some-model cannot be fetched" in done.stderr
