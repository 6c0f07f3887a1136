"""Turns kernel texts into libraries with the host's C++ compiler, and keeps them in the user's cache folder."""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import attrs

from plait.errors import PluginError
from plait_metal.emulator.errors import KernelDefectError
from plait_metal.emulator.options import EmulatorOptions

_HERE = Path(__file__).parent
_INCLUDES = [f"-I{_HERE / 'include'}"]
_RUNTIME = _HERE / "runtime"

# Undefined behaviour that the compiler reports to the runtime's handlers, like every load and store.
_CHECKS = [
    "-fsanitize=thread",
    "-fsanitize=bounds,shift,integer-divide-by-zero,signed-integer-overflow,float-cast-overflow",
    "-fsanitize-coverage=trace-pc",
]
# -O1 keeps line numbers exact. Kernel texts reinterpret memory freely, as Metal lets them; endless loops stay endless.
_KERNEL = ["-std=c++17", "-O1", "-g", "-fPIC", "-w", "-fno-math-errno", "-fno-strict-aliasing", "-fno-finite-loops"]
_POISON_PRIVATE = ["-ftrivial-auto-var-init=pattern"]
# Metal has no double: a literal without a suffix is a float.
_GCC = ["-fsingle-precision-constant", "--param", "tsan-instrument-func-entry-exit=0"]
_CLANG = [
    *("-Xclang", "-cl-single-precision-constant"),
    *("-mllvm", "-tsan-instrument-func-entry-exit=0"),
    *("-mllvm", "-tsan-instrument-read-before-write"),  # y[i] += 1 is a read as well
    "-Wno-reserved-user-defined-literal",  # 1.0h and 1.0bf
]


@attrs.frozen
class Compiler:
    """A C++ compiler of this machine.

    Attributes:
        path: where it is.
        version: the first line of what it says about itself.
    """

    path: str
    version: str

    @property
    def is_clang(self) -> bool:
        """Whether it takes clang's options rather than GCC's."""
        return "clang" in self.version


@functools.cache
def find_compiler() -> Compiler | None:
    """`$CXX`, g++ or clang++, whichever is found first and answers."""
    for name in (os.environ.get("CXX"), "g++", "clang++"):
        path = shutil.which(name) if name else None
        if path is None:
            continue
        answer = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
        if answer.returncode == 0 and answer.stdout:
            return Compiler(path, answer.stdout.splitlines()[0])
    return None


def unavailable_reason() -> str | None:
    """Why this machine cannot run the emulator, or None."""
    if sys.platform != "linux":
        return f"the kernel emulator runs on Linux, not on {sys.platform}"
    if platform.machine() not in ("x86_64", "aarch64"):
        return f"the kernel emulator runs on x86-64 and aarch64, not on {platform.machine()}"
    if find_compiler() is None:
        return "the kernel emulator needs a C++ compiler: install g++ or clang++, or name one in CXX"
    return None


def compile_kernel(text: str, name: str, options: EmulatorOptions) -> Path:
    """The library of one kernel text.

    Raises:
        KernelDefectError: the compiler refuses the text.
        PluginError: there is no compiler.
    """
    compiler = _compiler()
    flags = _kernel_flags(compiler, options)
    runtime = runtime_library()
    target = cache_folder() / f"{name}-{_digest(text, compiler.version, *flags, runtime.name)}.so"
    if target.exists():
        return target
    with tempfile.TemporaryDirectory(dir=cache_folder()) as folder:
        source, compiled, linked = (Path(folder) / f"{name}{suffix}" for suffix in (".cpp", ".o", ".so"))
        source.write_text(text, encoding="utf-8")
        answer = _run([compiler.path, *flags, "-c", str(source), "-o", str(compiled)])
        if answer.returncode != 0:
            raise KernelDefectError("compile", f"kernel {name}: {compiler.version} refuses it:\n{answer.stderr[:4000]}")
        # Linked without -fsanitize: the runtime answers the sanitizers' calls.
        _must(
            [compiler.path, "-shared", str(compiled), str(runtime), f"-Wl,-rpath,{runtime.parent}", "-o", str(linked)]
        )
        os.replace(linked, target)
    return target


@functools.cache
def runtime_library() -> Path:
    """The runtime, one library that all kernels of a process share."""
    compiler = _compiler()
    sources = sorted(_RUNTIME.glob("*.cpp"))
    flags = ["-std=c++17", "-O2", "-g", "-fPIC", "-fno-strict-aliasing", *_INCLUDES, f"-I{_RUNTIME}"]
    name = f"libplait_emulator-{_digest(*_headers_and_runtime(), compiler.version, *flags)}.so"
    target = cache_folder() / name
    if not target.exists():
        with tempfile.TemporaryDirectory(dir=cache_folder()) as folder:
            linked = Path(folder) / name
            files = [str(source) for source in sources]
            _must([compiler.path, *flags, "-shared", f"-Wl,-soname,{name}", *files, "-o", str(linked)])
            os.replace(linked, target)
    return target


def cache_folder() -> Path:
    """Where libraries are kept, `~/.cache/plait/emulator`; it may be deleted at any time."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = base / "plait" / "emulator"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def locate(library: Path, offset: int, file: str) -> int | None:
    """The line of `file` that the instruction at `offset` of a library came from, or None if nothing tells."""
    tool = shutil.which("addr2line") or shutil.which("llvm-addr2line")
    if tool is None or offset == 0:
        return None
    # The offset is a return address: the call lies before it. Inlined frames come innermost first.
    answer = _run([tool, "-i", "-e", str(library), hex(offset - 1)])
    for line in answer.stdout.splitlines():
        path, _, number = line.partition(" ")[0].rpartition(":")
        if Path(path).name == file and number.isdigit():
            return int(number)
    return None


def _kernel_flags(compiler: Compiler, options: EmulatorOptions) -> list[str]:
    # GCC fuses only among its expensive optimisations, which -O1 leaves out.
    fused = ["-ffp-contract=fast", *([] if compiler.is_clang else ["-fexpensive-optimizations"])]
    fused += ["-mfma"] if platform.machine() == "x86_64" else []
    return [
        *_KERNEL,
        *_POISON_PRIVATE,
        *_CHECKS,
        *(_CLANG if compiler.is_clang else _GCC),
        *(fused if options.contract else ["-ffp-contract=off"]),
        f"-DMSL_REDUCTION_ORDER={options.reduction_order}",
        *_INCLUDES,
    ]


def _compiler() -> Compiler:
    reason = unavailable_reason()
    compiler = find_compiler()
    if reason is not None or compiler is None:
        raise PluginError(f"plait-metal: {reason}")
    return compiler


@functools.cache
def _headers_and_runtime() -> tuple[str, ...]:
    files = sorted(path for folder in (_HERE / "include", _RUNTIME) for path in folder.rglob("*") if path.is_file())
    return tuple(path.read_text(encoding="utf-8") for path in files)


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:20]


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _must(command: Sequence[str]) -> None:
    answer = _run(command)
    if answer.returncode != 0:
        raise PluginError(f"plait-metal: cannot build the kernel emulator: {' '.join(command)}\n{answer.stderr[:4000]}")
