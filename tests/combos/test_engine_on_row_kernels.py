"""The whole engine, writing its pages through the row kernels: their text, run by the checked CPU emulator."""

from __future__ import annotations

import queue
from pathlib import Path

import pytest

from plait.engine.outputs import Delta
from plait.engine.sampling_params import SamplingParams
from plait.engine.thread import EngineThread
from plait.hooks import hookimpl
from plait.kernel import KernelBackend
from plait.plugins import PluginInfo, Plugins
from plait.settings import Settings
from plait.testing.checkpoints import build_checkpoint
from plait_metal.emulator.backend import EmulatorBackend
from plait_metal.emulator.compiler import unavailable_reason

PROMPTS = [list(range(5, 5 + length)) for length in (3, 20, 33)]


class OnEmulator:
    """A plugin that offers the emulator as the kernel backend."""

    @hookimpl
    def plait_kernel_backend(self) -> KernelBackend:
        """Return the emulator."""
        return EmulatorBackend()


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny hybrid checkpoint."""
    return build_checkpoint("qwen3_5", tmp_path_factory.mktemp("checkpoints"))


def run(model: Path, layout: str, plugins: Plugins) -> tuple[list[list[tuple[int, float]]], list[str]]:
    """Serve the prompts together; returns each one's tokens with their log-probabilities, and the start-up report."""
    settings = Settings(
        model=str(model), max_model_len=64, max_num_seqs=4, max_num_batched_tokens=16, layout=layout, dtype="float32"
    )
    engine = EngineThread(settings, plugins)
    deltas: queue.SimpleQueue[Delta] = queue.SimpleQueue()
    params = SamplingParams(temperature=0, max_tokens=6, logprobs=0, ignore_eos=True)
    ids = [engine.submit(prompt, params, deltas.put) for prompt in PROMPTS]
    answers: dict[str, list[tuple[int, float]]] = {request_id: [] for request_id in ids}
    left = len(ids)
    while left:
        delta = deltas.get(timeout=120)
        if delta.error is not None:
            raise delta.error
        for token, entries in zip(delta.token_ids, delta.logprobs or [], strict=True):
            answers[delta.request_id].append((token, entries[token].logprob))
        left -= delta.finish_reason is not None
    engine.shutdown()
    return [answers[request_id] for request_id in ids], engine.report


@pytest.mark.skipif(unavailable_reason() is not None, reason=str(unavailable_reason()))
@pytest.mark.parametrize("layout", ["spanning", "unified"])
def test_row_kernels_write_what_numpy_writes(hybrid: Path, layout: str) -> None:
    plugins = Plugins()
    plugins.register(OnEmulator(), PluginInfo("emulator", "tests", "0"))
    through_kernels, report = run(hybrid, layout, plugins)
    assert "kernels: emulator" in "\n".join(report)
    through_numpy, report = run(hybrid, layout, Plugins())
    assert "kernels: references" in "\n".join(report)
    for ours, theirs in zip(through_kernels, through_numpy, strict=True):
        assert [token for token, _ in ours] == [token for token, _ in theirs]
        assert max(abs(a - b) for (_, a), (_, b) in zip(ours, theirs, strict=True)) < 1e-4
