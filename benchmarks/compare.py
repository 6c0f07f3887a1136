"""Plait against mlx-lm's BatchGenerator: one command, one run, the same checkpoint, interleaved, as ratios.

    python benchmarks/compare.py                     # both models, both peers: a quarter of an hour on 2 cores
    python benchmarks/compare.py --model qwen3_5_98m --peer same --runs 3

Peers: `stock` is mlx-lm as a user runs it, in a process of its own; `same` is mlx-lm in Plait's process, with the
same BLAS under it and the weights in the form that Plait holds. Every figure is the median of the runs; a ratio is
mlx-lm's time over Plait's, so more than 1 means that Plait is faster.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table

import plait
import plait.blas

# After Plait, which prepares the BLAS that MLX binds.
from models import Model, prepare  # isort: skip
from peer import MlxLm  # isort: skip
from served import Served  # isort: skip

BATCHES = (1, 4, 16)
CONTEXT = 512


class Stock:
    """The peer in a process of its own."""

    def __init__(self, path: Path) -> None:
        command = [sys.executable, str(Path(__file__).with_name("peer.py")), str(path)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=dict(os.environ)
        )
        self._read()

    def _read(self) -> dict[str, float]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the stock peer ended")
        answer: dict[str, float] = json.loads(line)
        return answer

    def _ask(self, request: dict[str, object]) -> float:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self._read()["seconds"]

    def prefill(self, tokens: int) -> float:
        """See `MlxLm.prefill`."""
        return self._ask({"prefill": tokens})

    def decode(self, batch: int, context: int, steps: int) -> float:
        """See `MlxLm.decode`."""
        return self._ask({"decode": [batch, context, steps]})

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()


def interleave(runs: int, mine: Callable[[], float], theirs: Callable[[], float]) -> tuple[float, float]:
    """Run both in turn; return the medians. The first run of each is a warm-up and does not count."""
    mine(), theirs()
    pairs = [(mine(), theirs()) for _ in range(runs)]
    return statistics.median(a for a, _ in pairs), statistics.median(b for _, b in pairs)


def compare(name: str, served: Served, peer: Stock | MlxLm, runs: int, steps: int) -> Table:
    """Measure one model against one peer."""
    table = Table(title=name)
    for column in ("what", "plait", "mlx-lm", "ratio", "Plait's own Python per step"):
        table.add_column(column, justify="right")
    mine, theirs = interleave(runs, lambda: served.prefill(CONTEXT), lambda: peer.prefill(CONTEXT))
    table.add_row(f"prefill {CONTEXT}", f"{mine * 1e3:.0f} ms", f"{theirs * 1e3:.0f} ms", f"{theirs / mine:.2f}", "")
    ratios = []
    for batch in BATCHES:
        served.overhead.clear()
        mine, theirs = interleave(
            runs, lambda b=batch: served.decode(b, CONTEXT, steps), lambda b=batch: peer.decode(b, CONTEXT, steps)
        )
        ratios.append(theirs / mine)
        own = f"{statistics.median(served.overhead) * 1e3:.2f} ms (bound {1 + 0.03 * batch:.2f})"
        table.add_row(f"decode x {batch}", f"{mine * 1e3:.1f} ms", f"{theirs * 1e3:.1f} ms", f"{ratios[-1]:.2f}", own)
    mean = math.prod(ratios) ** (1 / len(ratios))
    table.add_row("decode, geometric mean", "", "", f"{mean:.2f}", "")
    return table


def main() -> None:
    """Parse the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", help="qwen3_5_98m, demo, or a checkpoint directory (repeatable)")
    parser.add_argument("--peer", choices=("stock", "same", "both"), default="both")
    parser.add_argument("--runs", type=int, default=5, help="interleaved runs per figure")
    parser.add_argument("--steps", type=int, default=12, help="decode steps per run")
    arguments = parser.parse_args()
    console = Console()
    console.print(f"plait {plait.__version__}; {plait.blas.status().describe()}")
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.model or ["qwen3_5_98m", "demo"]:
            model: Model = prepare(name, Path(folder))
            with Served(model.plait, max(BATCHES), CONTEXT, arguments.steps) as served:
                if arguments.peer != "same":
                    stock = Stock(model.stock)
                    console.print(
                        compare(f"{name}, mlx-lm stock, own process", served, stock, arguments.runs, arguments.steps)
                    )
                    stock.close()
                if arguments.peer != "stock":
                    same = MlxLm(model.same)
                    console.print(
                        compare(f"{name}, mlx-lm in this process", served, same, arguments.runs, arguments.steps)
                    )


if __name__ == "__main__":
    main()
