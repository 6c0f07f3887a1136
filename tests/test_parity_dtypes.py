"""Models in 16 bits: as close to float32 as mlx-lm's own 16-bit run is, with recurrent states that stay float32."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from plait import LLM, SamplingParams
from plait.engine.core import EngineCore
from plait.memory.view import StateView
from plait.models.weights import settle_weights
from plait.spec import Growth
from plait.step import Step
from plait.testing.checkpoints import CONFIGS
from plait.testing.lab import Lab
from plait.testing.reference import Reference, in_float32
from plait.testing.rig import Job
from plait.testing.scenario import prompt_tokens

LENGTHS = (20, 3, 17, 1, 23, 9, 25, 12)
OUTPUT = 8
BATCHES = 4  # of as many requests: where rounding chooses another expert, a sequence says little by itself
DRIFT = 1.5  # times the mean difference of mlx-lm's own 16-bit run


def test_bfloat16_is_as_close_as_mlx_lm(lab: Lab, model: str) -> None:
    path = lab.checkpoint(f"{model}_bfloat16", CONFIGS[model], dtype="bfloat16")
    exact = Reference.load(path, in_float32)
    # MLX multiplies experts in float32 only on CPU, so both runs keep them there.
    stock = Reference.load(path, lambda loaded: settle_weights(loaded, "bfloat16"))
    rig = lab.rig(path, dtype="bfloat16", max_model_len=128, max_num_seqs=8)
    ours, theirs = [], []
    for batch in range(BATCHES):
        prompts = [prompt_tokens(batch * len(LENGTHS) + index, length) for index, length in enumerate(LENGTHS)]
        jobs = [Job(prompt=prompt, max_tokens=OUTPUT) for prompt in prompts]
        for transcript in rig.run(jobs, chunk=8).transcripts:
            cold = exact.forced(transcript.job.prompt, transcript.tokens).cold
            ours.append(np.abs(np.stack(transcript.logprobs) - cold))
            theirs.append(np.abs(stock.forced(transcript.job.prompt, transcript.tokens).single - cold))
    mean, stock_mean = float(np.mean(np.concatenate(ours))), float(np.mean(np.concatenate(theirs)))
    assert 0 < mean <= DRIFT * stock_mean, (mean, stock_mean)


def test_report_says_what_is_upcast(lab: Lab, model: str) -> None:
    path = lab.checkpoint(model)
    rig = lab.rig(path, dtype="bfloat16", max_model_len=64, max_num_seqs=2)
    said = [line for line in rig.engine.report if "expert layers kept in float32 beside bfloat16" in line]
    assert len(said) == ("moe" in model or model == "qwen3_next")
    assert any("in bfloat16" in line for line in rig.engine.report)


@pytest.mark.parametrize("dtype", ["auto", "float32", "bfloat16", "float16"])
def test_every_dtype_runs(lab: Lab, model: str, dtype: str) -> None:
    with LLM(str(lab.checkpoint(model)), dtype=dtype, max_model_len=32, max_num_seqs=2) as llm:
        params = SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True, logprobs=1)
        (output,) = llm.generate([prompt_tokens(0, 5)], params, use_tqdm=False)
    entries = output.outputs[0].logprobs
    assert entries is not None and len(entries) == 3
    assert all(np.isfinite(entry.logprob) for position in entries for entry in position.values())


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_recurrent_states_stay_float32(lab: Lab, model: str, dtype: str) -> None:
    """Read from pages after steps in 16 bits, a state holds numbers that 16 bits do not hold."""
    rig = lab.rig(lab.checkpoint(model), dtype=dtype, max_model_len=64, max_num_seqs=2)
    states = [binding for binding in rig.plan.bindings if binding.spec.growth is Growth.STATE]
    if not states:
        pytest.skip("keeps no state")
    read: dict[str, tuple[mx.array, ...]] = {}

    def spy(core: EngineCore) -> None:
        for binding in states:
            view = core._arenas.views[binding.site]
            assert isinstance(view, StateView)
            _watch(view, binding.site, read)

    def leave(core: EngineCore) -> None:
        for binding in states:
            del core._arenas.views[binding.site].read  # type: ignore[union-attr]

    rig.engine.ask(spy)
    rig.run([Job(prompt=prompt_tokens(0, 20), max_tokens=4)])
    rig.engine.ask(leave)
    for binding in states:
        wanted = [spec.dtype for spec in binding.spec.tensors]
        assert [str(t.dtype).removeprefix("mlx.core.") for t in read[binding.site]] == wanted
        assert dtype in wanted and "float32" in wanted
        for tensor in read[binding.site]:
            if tensor.dtype == mx.float32:
                bits = np.array(tensor).view(np.uint32)
                assert (bits & 0xFFFF).any(), "float32 in name only: every number fits 16 bits"


def _watch(view: StateView, site: str, read: dict[str, tuple[mx.array, ...]]) -> None:
    inner = view.read

    def reading(step: Step) -> tuple[mx.array, ...]:
        read[site] = inner(step)
        return read[site]

    view.read = reading  # type: ignore[method-assign]
