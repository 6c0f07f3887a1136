"""What the tests of several distributions together share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib import metadata

import pytest

# The models are tiny: a second BLAS thread only waits for the first. It must be said before the library loads.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from plait.testing.lab import Lab

MODELS = {
    "plait": ("llama", "qwen2", "qwen3", "qwen3_moe"),
    "plait-gdn": ("qwen3_5", "qwen3_5_moe", "qwen3_next"),
}
"""Tiny checkpoints by the distribution whose family they need. Tests with an argument `model` run for each."""


def installed(distribution: str) -> bool:
    """Whether a distribution is installed here."""
    try:
        metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run tests with an argument `model` for every model of `MODELS`."""
    if "model" in metafunc.fixturenames:
        models = [
            pytest.param(name, marks=pytest.mark.skipif(not installed(distribution), reason=f"needs {distribution}"))
            for distribution, names in MODELS.items()
            for name in names
        ]
        metafunc.parametrize("model", models)


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Checkpoints, references and engines, each made once."""
    made = Lab(tmp_path_factory.mktemp("checkpoints"))
    yield made
    made.close()
