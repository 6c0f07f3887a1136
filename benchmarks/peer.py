"""mlx-lm's BatchGenerator on a checkpoint: the other side of every comparison. Never imports Plait.

As a program it is the stock peer: a process of its own, with MLX as its wheel is. It reads one JSON line per request
({"prefill": tokens} or {"decode": [batch, context, steps]}) and answers with the seconds taken.
"""

from __future__ import annotations

import copy
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm.generate import BatchGenerator
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load_model


class MlxLm:
    """mlx-lm with a model of its own."""

    def __init__(self, path: Path) -> None:
        self.model, _ = load_model(path)
        mx.eval(self.model.parameters())
        self._filled: dict[int, list[Any]] = {}

    def prefill(self, tokens: int) -> float:
        """Seconds from a prompt's arrival to its first token."""
        generator = BatchGenerator(self.model, max_tokens=2)
        start = time.perf_counter()
        generator.insert([prompt_ids(tokens)])
        generator.next_generated()
        seconds = time.perf_counter() - start
        generator.close()
        return seconds

    def decode(self, batch: int, context: int, steps: int) -> float:
        """Median seconds of a step in which `batch` sequences, each of `context` tokens, get a token each."""
        if context not in self._filled:
            cache = make_prompt_cache(self.model)
            self.model(mx.array([prompt_ids(context)]), cache=cache)
            mx.eval([c.state for c in cache])
            self._filled[context] = cache
        generator = BatchGenerator(
            self.model, max_tokens=steps + 4, completion_batch_size=max(32, batch), prefill_batch_size=batch
        )
        generator.insert([[7]] * batch, caches=[copy.deepcopy(self._filled[context]) for _ in range(batch)])
        while len(generator.next_generated()) < batch:
            pass
        generator.next_generated()
        times = []
        for _ in range(steps):
            start = time.perf_counter()
            answers = generator.next_generated()
            times.append(time.perf_counter() - start)
            assert len(answers) == batch
        generator.close()
        return statistics.median(times)


def prompt_ids(tokens: int) -> list[int]:
    """A prompt of as many tokens, the same on both sides."""
    return [(i * 37 + 11) % 251 for i in range(tokens)]


def main() -> None:
    """Serve measurements over standard input and output."""
    peer = MlxLm(Path(sys.argv[1]))
    print(json.dumps({"mlx": mx.__version__, "device": str(mx.default_device())}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        decode = request.get("decode")
        seconds = peer.prefill(request["prefill"]) if decode is None else peer.decode(*decode)
        print(json.dumps({"seconds": seconds}), flush=True)


if __name__ == "__main__":
    main()
