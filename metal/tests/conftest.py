"""Fixtures for kernels, and the line that says where they ran."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import plait  # before mlx: it preloads a BLAS

assert plait

import mlx.core as mx  # noqa: E402
import pytest  # noqa: E402

from plait.kernel import Kernel, KernelBackend, Launch  # noqa: E402
from plait_metal.emulator import EmulatorBackend, EmulatorOptions, unavailable_reason  # noqa: E402
from plait_metal.emulator.compiler import find_compiler  # noqa: E402
from plait_metal.plugin import plait_kernel_backend  # noqa: E402

RunText = Callable[..., Sequence[mx.array]]


@pytest.fixture(scope="session")
def emulator() -> EmulatorBackend:
    """The emulator, or a skip with the reason."""
    reason = unavailable_reason()
    if reason is not None:
        pytest.skip(reason)
    return EmulatorBackend()


@pytest.fixture(scope="session", params=["emulator", "gpu"])
def backend(request: pytest.FixtureRequest) -> KernelBackend:
    """Each home of the kernels that this machine has."""
    if request.param == "emulator":
        chosen: KernelBackend = request.getfixturevalue("emulator")
        return chosen
    gpu = plait_kernel_backend()
    if gpu is None:
        pytest.skip("MLX computes on a CPU here: no GPU backend")
    return gpu


@pytest.fixture(scope="session")
def run_text(emulator: EmulatorBackend) -> RunText:
    """Runs a body in the emulator: `run_text(source, inputs, outputs, grid, ...) -> output arrays`."""

    def run(
        source: str,
        inputs: Mapping[str, mx.array],
        outputs: Mapping[str, tuple[tuple[int, ...], mx.Dtype]],
        grid: tuple[int, int, int],
        threadgroup: tuple[int, int, int] = (32, 1, 1),
        template: Mapping[str, Any] | None = None,
        header: str = "",
        writes: tuple[str, ...] = (),
        **options: Any,
    ) -> Sequence[mx.array]:
        kernel = Kernel("body", tuple(inputs), tuple(outputs), source, _no_reference, header, writes)
        launch = Launch(
            grid,
            threadgroup,
            [shape for shape, _ in outputs.values()],
            [d for _, d in outputs.values()],
            template or {},
        )
        return EmulatorBackend(EmulatorOptions(**options)).build(kernel)(list(inputs.values()), launch)

    return run


def _no_reference(*arrays: mx.array, **template: Any) -> Sequence[mx.array]:
    raise NotImplementedError


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say where the kernels ran, so that nobody takes a run on Linux for one on an Apple GPU."""
    gpu, compiler, reason = plait_kernel_backend(), find_compiler(), unavailable_reason()
    homes = [f"MLX's {gpu.name} backend"] if gpu else []
    if reason is None and compiler is not None:
        homes.append(f"the CPU emulator ({compiler.version})")
    where = " and ".join(homes) or f"no home here ({reason})"
    terminalreporter.write_line(f"plait-metal: kernels ran in {where}")
