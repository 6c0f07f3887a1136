"""For all tests of the repository: loaded ahead of every one of them."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import tempfile

import pytest

# Models are tiny here: a second BLAS thread only waits for the first. It counts when the library loads.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import plait  # before MLX, whose BLAS binds when it is imported


def pytest_report_header() -> str:
    """Say what is tested: wheels in an environment of tox, or an editable install."""
    return f"plait {plait.__version__} from {os.path.dirname(plait.__file__)}; {plait.blas.status().describe()}"


@functools.cache
def index_refusal() -> str | None:
    """Return why pip cannot fetch anything here, or None."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "-qq", "--no-deps", "--no-cache-dir", "--dest", folder]
        try:
            done = subprocess.run([*command, "iniconfig"], capture_output=True, text=True, timeout=60)
        except subprocess.TimeoutExpired:
            return "pip gets no answer from a package index"
    return None if done.returncode == 0 else f"pip reaches no package index: {done.stderr.strip()[-200:]}"


@pytest.fixture(scope="session")
def package_index() -> None:
    """Skip where pip reaches no package index; for what has the mark `network` only now and then."""
    if refusal := index_refusal():
        pytest.skip(refusal)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs a package index where there is none."""
    if item.get_closest_marker("network") and (refusal := index_refusal()):
        pytest.skip(refusal)
