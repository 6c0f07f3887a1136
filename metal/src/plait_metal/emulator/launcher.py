"""Runs a compiled kernel in the emulator's runtime and turns its report into an exception."""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Sequence
from pathlib import Path

from plait.kernel import Kernel, Launch
from plait_metal.emulator import compiler
from plait_metal.emulator.arrays import RawArray
from plait_metal.emulator.errors import KernelDefectError
from plait_metal.emulator.options import EmulatorOptions
from plait_metal.emulator.source import ENTRY

INPUT, OUTPUT, IN_PLACE = 0, 1, 2
"""Kinds of buffers, as in `msl/abi.h`, whose structs the classes below mirror."""

_MAX_COPIED = 1 << 29  # bytes: half a buffer's gigabyte of address space
_ONE_AT_A_TIME = threading.Lock()  # the runtime is one machine
_Triple = ctypes.c_uint32 * 3


class _ThreadIds(ctypes.Structure):
    _fields_ = (
        ("thread_position_in_grid", _Triple),
        ("thread_position_in_threadgroup", _Triple),
        ("threadgroup_position_in_grid", _Triple),
        ("threads_per_threadgroup", _Triple),
        ("dispatch_threads_per_threadgroup", _Triple),
        ("threads_per_grid", _Triple),
        ("threadgroups_per_grid", _Triple),
        ("thread_index_in_threadgroup", ctypes.c_uint32),
        ("thread_index_in_simdgroup", ctypes.c_uint32),
        ("simdgroup_index_in_threadgroup", ctypes.c_uint32),
        ("simdgroups_per_threadgroup", ctypes.c_uint32),
    )


class _Buffer(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("bytes", ctypes.c_uint64),
        ("kind", ctypes.c_int32),
        ("name", ctypes.c_char_p),
        ("unwritten", ctypes.c_uint64),
        ("first_unwritten", ctypes.c_uint64),
    )


class _Report(ctypes.Structure):
    _fields_ = (
        ("kind", ctypes.c_char * 32),
        ("message", ctypes.c_char * 512),
        ("image_offset", ctypes.c_uint64),
        ("line", ctypes.c_int32),
        ("ids", _ThreadIds),
        ("accesses", ctypes.c_uint64),
        ("benign_conflicts", ctypes.c_uint64),
    )


class _Launch(ctypes.Structure):
    _fields_ = (
        ("entry", ctypes.c_void_p),
        ("buffers", ctypes.POINTER(_Buffer)),
        ("buffer_count", ctypes.c_uint32),
        ("grid", _Triple),
        ("threadgroup", _Triple),
        ("flags", ctypes.c_uint32),
        ("order", ctypes.c_uint32),
        ("budget", ctypes.c_uint64),
        ("threadgroup_memory", ctypes.c_uint64),
    )


def run(
    library: Path,
    kernel: Kernel,
    inputs: Sequence[RawArray],
    outputs: Sequence[RawArray],
    launch: Launch,
    options: EmulatorOptions,
) -> None:
    """Run every thread of the grid; fills `outputs`, and those inputs that `kernel.writes` names.

    Raises:
        KernelDefectError: at the first defect; in-place buffers then keep what was written so far.
    """
    kinds = [IN_PLACE if raw.name in kernel.writes else INPUT for raw in inputs] + [OUTPUT] * len(outputs)
    arrays = [*inputs, *outputs]
    for raw, kind in zip(arrays, kinds, strict=True):
        if kind != IN_PLACE and raw.bits.nbytes > _MAX_COPIED:
            raise KernelDefectError("oob", f"kernel {kernel.name}: {raw.name} has over {_MAX_COPIED} bytes")
    buffers = (_Buffer * len(arrays))(
        *(
            _Buffer(raw.bits.ctypes.data, raw.bits.nbytes, kind, raw.name.encode(), 0, 0)
            for raw, kind in zip(arrays, kinds, strict=True)
        )
    )
    flags = options.check_races | options.lockstep_orders_memory << 1 | options.flush_denormals << 2
    request = _Launch(
        ctypes.cast(getattr(_load(library), ENTRY), ctypes.c_void_p),
        buffers,
        len(arrays),
        _Triple(*launch.grid),
        _Triple(*launch.threadgroup),
        flags,
        options.order,
        options.budget,
        options.threadgroup_memory,
    )
    report = _Report()
    with _ONE_AT_A_TIME:
        failed = _load(compiler.runtime_library()).emu_launch(ctypes.byref(request), ctypes.byref(report))
    if failed:
        raise _defect(library, kernel, report)
    if not options.allow_unwritten:
        _check_written(kernel, buffers[len(inputs) :])


@functools.cache
def _load(library: Path) -> ctypes.CDLL:
    return ctypes.CDLL(str(library))


def _check_written(kernel: Kernel, outputs: Sequence[_Buffer]) -> None:
    for buffer in outputs:
        if buffer.unwritten:
            raise KernelDefectError(
                "unwritten",
                f"kernel {kernel.name}: {buffer.unwritten} of {buffer.bytes} bytes of output {buffer.name.decode()} "
                f"were never written, the first at byte {buffer.first_unwritten}",
            )


def _defect(library: Path, kernel: Kernel, report: _Report) -> KernelDefectError:
    line = compiler.locate(library, report.image_offset, kernel.name) or report.line
    lines = kernel.source.splitlines()
    text = f" `{lines[line - 1].strip()}`" if 0 < line <= len(lines) else ""
    ids = report.ids
    return KernelDefectError(
        report.kind.decode(),
        f"kernel {kernel.name}, line {line}{text}: {report.message.decode()}; thread "
        f"{tuple(ids.thread_position_in_grid)} of the grid, SIMD group {ids.simdgroup_index_in_threadgroup}, lane "
        f"{ids.thread_index_in_simdgroup}",
    )
