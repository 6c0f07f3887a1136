"""Each kind of defect, injected, is reported; the same body without it stays silent.

The report's kind is not always the one the defect's name suggests: where a barrier is missing, what shows first may be
a read of memory that nobody wrote yet. So a set of kinds is expected.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import mlx.core as mx
import pytest

from plait_metal.emulator import KernelDefectError


@attrs.frozen
class Injection:
    """A body that is right with `good` in place of `@` and wrong with `bad`.

    Attributes:
        kinds: what the emulator may call it.
        body: reads `x` (float, 64 elements) and `slots` (int, 8 elements), writes `y` (float, one per thread).
        threads: threads of the one threadgroup; the grid is `groups` of them.
        dtype: of `y`.
        arena: also give it `arena`, 64 uint32 words that it writes in place.
    """

    kinds: set[str]
    body: str
    good: str
    bad: str
    threads: int = 64
    groups: int = 1
    dtype: mx.Dtype = mx.float32
    arena: bool = False


I_ = "const uint i = thread_position_in_grid.x, t = thread_index_in_threadgroup, lane = thread_index_in_simdgroup; "
SHARED = I_ + "threadgroup float a[64]; "
TG, SG = "threadgroup_barrier(mem_flags::mem_{});", "simdgroup_barrier(mem_flags::mem_{});"
BARRIER = TG.format("threadgroup")
READ_THEN_WRITE = SHARED + "a[t] = x[i]; " + BARRIER + " float s = 0; if ({}) s = a[0]; @ if ({}) a[0] = 7; y[i] = s;"
MEETING = {"divergence", "race", "uninit"}

INJECTIONS = {
    # Addresses
    "bad slot": Injection({"oob"}, I_ + "y[i] = x[slots[@] * 8 + t % 8];", "t / 8 % 4", "t / 8 % 8"),
    "write past the end": Injection({"oob"}, I_ + "y[@] = x[i];", "i", "i + 1"),
    "read before the start": Injection({"oob"}, I_ + "y[i] = x[int(i) @];", "- 0", "- 1"),
    "wild index": Injection({"oob"}, I_ + "y[i] = x[i @];", "+ 0", "+ 400000000"),
    "pointer arithmetic": Injection({"oob"}, I_ + "auto p = x + i @; y[i] = *(p + 32);", "- 32", "+ 32"),
    "past an arena": Injection(
        {"oob"}, I_ + "const_cast<device uint*>(arena)[i @] = 1; y[i] = 0;", "", "+ 1", arena=True
    ),
    "write to an input": Injection({"readonly"}, I_ + "y[i] = 0; @", "", "const_cast<device float*>(x)[i] = 0;"),
    "private array": Injection(
        {"ub", "oob"},
        I_ + "float s[8]; for (uint k = 0; k < @ + t / 64; ++k) s[k] = x[k]; y[i] = s[slots[0]];",
        "8",
        "9",
    ),
    "threadgroup array": Injection({"ub"}, SHARED + "a[t @] = x[i]; y[i] = a[t @];", "", "+ 1"),
    "pointer past a threadgroup array": Injection(
        {"oob"},
        SHARED + "threadgroup float b[64]; auto p = &a[t]; b[t] = 1; p@ = x[i]; y[i] = b[t] + p@;",
        "[0]",
        "[64]",
    ),
    "another thread's private memory": Injection(
        {"private"},
        I_ + "threadgroup ulong p[64]; float mine[2] = {x[i], x[t]}; "
        "p[t] = reinterpret_cast<ulong>(&mine[t % 2]); " + BARRIER + " y[i] = *reinterpret_cast<thread float*>(p[@]);",
        "t",
        "t ^ 1",
    ),
    "too much threadgroup memory": Injection(
        {"tgmem"}, I_ + "threadgroup float a[@]; a[t] = 1; y[i] = a[t];", "8192", "8193"
    ),
    # Meetings
    "reduction under a lane's if": Injection(
        {"divergence"}, I_ + "float s = x[i]; if (@) s = simd_sum(s); y[i] = s;", "t < 32", "lane < 5"
    ),
    "early return of one lane": Injection(
        {"divergence"}, I_ + "y[i] = x[i]; if (@) return; y[i] = simd_sum(x[i]);", "t >= 32", "t == 7"
    ),
    "different trip counts": Injection(
        {"divergence"},
        I_ + "float s = 0; for (uint k = 0; k < @; ++k) s += simd_sum(x[k]); y[i] = s;",
        "3",
        "1 + lane % 2",
    ),
    "two reductions of unlike kind": Injection(
        {"divergence"}, I_ + "y[i] = @ ? simd_sum(x[i]) : simd_max(x[i]);", "t < 32", "lane < 16"
    ),
    "barrier by some lanes": Injection(
        MEETING, SHARED + "a[t] = x[i]; if (@) {" + BARRIER + "} y[i] = a[t];", "t < 64", "t < 5"
    ),
    "barrier by one SIMD group": Injection(
        MEETING, SHARED + "a[t] = x[i]; if (@) {" + BARRIER + "} y[i] = a[t];", "t < 64", "t < 32"
    ),
    "two barriers": Injection(
        MEETING,
        SHARED + "a[t] = x[i]; if (@) {" + BARRIER + "\n} else {\n" + BARRIER + "} y[i] = a[t];",
        "t < 64",
        "t < 32",
    ),
    "shuffle from a missing lane": Injection({"lane"}, I_ + "y[i] = simd_shuffle(x[i], @);", "15", "16", threads=16),
    # Order
    "missing barrier": Injection({"race", "uninit"}, SHARED + "a[t] = x[i]; @ y[i] = a[63 - t];", BARRIER, ""),
    "barrier of a SIMD group only": Injection(
        {"race", "uninit"}, SHARED + "a[t] = x[i]; @ y[i] = a[63 - t];", BARRIER, SG.format("threadgroup")
    ),
    "barrier that orders nothing": Injection(
        {"race"}, SHARED + "a[t] = x[i]; @ y[i] = a[63 - t];", BARRIER, TG.format("none")
    ),
    "barrier that orders device memory": Injection(
        {"race"}, SHARED + "a[t] = x[i]; @ y[i] = a[63 - t];", BARRIER, TG.format("device")
    ),
    "barrier that orders threadgroup memory": Injection(
        {"race"},
        I_ + "y[i] = x[i]; @ const float other = y[63 - i]; " + TG.format("device") + " y[i] = other;",
        TG.format("device"),
        BARRIER,
    ),
    "reduction instead of a barrier": Injection(
        {"race"}, SHARED + "a[t] = x[i]; float s = simd_sum(x[i]); @ y[i] = s + a[t ^ 1];", SG.format("threadgroup"), ""
    ),
    "memory reused too early": Injection(
        {"race"},
        SHARED + "a[t] = x[i]; " + BARRIER + " const float s = a[63 - t]; @ a[t] = s; y[i] = a[t];",
        BARRIER,
        "",
    ),
    "written after another lane read": Injection(
        {"race"}, READ_THEN_WRITE.format("t == 5", "t == 9"), SG.format("threadgroup"), ""
    ),
    "written after two lanes read": Injection(
        {"race"}, READ_THEN_WRITE.format("t == 5 || t == 6", "t == 9"), SG.format("threadgroup"), ""
    ),
    "written after another group read": Injection(
        {"race"}, READ_THEN_WRITE.format("t == 5 || t == 6", "t == 40"), BARRIER, SG.format("threadgroup")
    ),
    "written after two groups read": Injection(
        {"race"}, READ_THEN_WRITE.format("t == 5 || t == 40", "t == 45"), BARRIER, SG.format("threadgroup")
    ),
    "read, then written, after an earlier threadgroup read": Injection(
        {"race"},
        I_ + "auto w = const_cast<device uint*>(arena); const uint g = threadgroup_position_in_grid.x; y[i] = 0; "
        "if (g == 0 && t < 32) y[i] = w[t]; if (g == 1 && t < 8) w[@ + t] += 1;",
        "32",
        "0",
        groups=2,
        arena=True,
    ),
    "unwritten threadgroup memory": Injection({"uninit"}, SHARED + "if (t < @) a[t] = x[i]; y[i] = a[t];", "64", "63"),
    "different values in one place": Injection(
        {"race"}, SHARED + "a[0] = @; " + BARRIER + " y[i] = a[0];", "7.0f", "static_cast<float>(t)"
    ),
    "threadgroups that share": Injection(
        {"race"}, I_ + "y[i] = x[i % 64]; if (threadgroup_position_in_grid.x == 1) y[@] += 1;", "i", "i - 64", groups=2
    ),
    "write to what an earlier threadgroup read": Injection(
        {"race"},
        I_ + "auto w = const_cast<device uint*>(arena); const uint g = threadgroup_position_in_grid.x; y[i] = 0; "
        "if (g == 0 && t < 32) y[i] = w[t]; if (g == 1 && t < 8) w[@ + t] = 0;",
        "32",
        "0",
        groups=2,
        arena=True,
    ),
    # Values
    "output never written": Injection({"unwritten"}, I_ + "if (@) y[i] = x[i];", "i < 64", "i != 9"),
    "output read before written": Injection({"uninit"}, I_ + "@ y[i] += x[i];", "y[i] = 0;", ""),
    "integer division by zero": Injection({"ub"}, I_ + "y[i] = 7 / (slots[0] @);", "+ 1", ""),
    "shift too wide": Injection({"ub"}, I_ + "y[i] = 1 << (slots[7] @);", "", "+ 25"),
    "int32 index overflow": Injection({"ub"}, I_ + "y[i] = x[(slots[7] * @) % 64];", "1000", "400000001"),
    "float beyond int": Injection({"ub"}, I_ + "y[i] = static_cast<int>(x[i] @);", "", "+ 3e9f"),
    "float to bfloat without a cast": Injection(
        {"compile"}, I_ + "bfloat v = @; y[i] = v;", "bfloat(x[i])", "x[i]", dtype=mx.bfloat16
    ),
    "threadgroup initialiser": Injection(
        {"compile"}, I_ + "threadgroup float a[2] @; a[0] = 1; y[i] = a[0];", "", "= {0, 0}"
    ),
    "endless loop over memory": Injection({"budget"}, I_ + "y[i] = 0; while (y[i] < @) y[i] += x[1];", "3", "1e30f"),
    "endless loop in registers": Injection(
        {"budget"},
        I_ + "uint k = 0; const uint end = slots[7]; do { k = k + @; } while (k != end); y[i] = k;",
        "1",
        "16",
    ),
}


def run_injection(run_text: Callable[..., Any], case: Injection, choice: str, **options: Any) -> Any:
    inputs = {"x": mx.arange(64, dtype=mx.float32), "slots": mx.array([0, 1, 2, 3, 4, 5, 6, 8], dtype=mx.int32)}
    if case.arena:
        inputs["arena"] = mx.arange(64, dtype=mx.uint32)
    total = case.threads * case.groups
    return run_text(
        case.body.replace("@", choice),
        inputs,
        {"y": ((total,), case.dtype)},
        (total, 1, 1),
        (max(case.threads, 32), 1, 1),
        writes=("arena",) if case.arena else (),
        budget=100_000,
        **options,
    )


@pytest.mark.parametrize("name", INJECTIONS)
def test_defect_is_reported(run_text: Callable[..., Any], name: str) -> None:
    case = INJECTIONS[name]
    run_injection(run_text, case, case.good)
    with pytest.raises(KernelDefectError) as error:
        run_injection(run_text, case, case.bad)
    assert error.value.kind in case.kinds, str(error.value)


@pytest.mark.parametrize("name", ["missing barrier", "memory reused too early", "reduction under a lane's if"])
@pytest.mark.parametrize("order", [1, 2, 3])
def test_defect_is_reported_in_every_order(run_text: Callable[..., Any], name: str, order: int) -> None:
    case = INJECTIONS[name]
    run_injection(run_text, case, case.good, order=order)
    with pytest.raises(KernelDefectError):
        run_injection(run_text, case, case.bad, order=order)


def test_a_report_names_kernel_line_thread_and_source(run_text: Callable[..., Any]) -> None:
    body = "const uint i = thread_position_in_grid.x;\n\nfloat v = x[i];\ny[i + 2] = v;\n"
    with pytest.raises(KernelDefectError) as error:
        run_text(body, {"x": mx.ones(40)}, {"y": ((40,), mx.float32)}, (40, 1, 1))
    text = str(error.value)
    for part in ("kernel body, line 4 `y[i + 2] = v;`", "write of 4 bytes at byte offset 160 of y (160 bytes)"):
        assert part in text
    assert "thread (38, 0, 0) of the grid, SIMD group 0, lane 6" in text


def test_outputs_and_threadgroup_memory_are_poisoned(run_text: Callable[..., Any]) -> None:
    (y,) = run_text(
        "if (thread_position_in_grid.x != 3) y[thread_position_in_grid.x] = 1;",
        {"x": mx.ones(1)},
        {"y": ((32,), mx.float32)},
        (32, 1, 1),
        allow_unwritten=True,
    )
    assert mx.isnan(y).tolist() == [i == 3 for i in range(32)]


def test_writes_land_in_the_array_itself(run_text: Callable[..., Any]) -> None:
    arena = mx.zeros((4, 16), dtype=mx.uint32)
    run_text(
        "const_cast<device uint*>(arena)[thread_position_in_grid.x] = thread_position_in_grid.x; y[0] = 0;",
        {"arena": arena},
        {"y": ((1,), mx.int32)},
        (32, 1, 1),
        writes=("arena",),
    )
    assert arena.tolist() == mx.concatenate([mx.arange(32), mx.zeros(32, mx.int32)]).reshape(4, 16).tolist()


def test_what_hardware_orders_passes_when_asked_for(run_text: Callable[..., Any]) -> None:
    case = INJECTIONS["reduction instead of a barrier"]
    run_injection(run_text, case, case.bad, lockstep_orders_memory=True)
    run_injection(run_text, case, case.bad, check_races=False)


def test_the_process_survives_many_defects(run_text: Callable[..., Any]) -> None:
    case = INJECTIONS["wild index"]
    for _ in range(50):
        with pytest.raises(KernelDefectError):
            run_injection(run_text, case, case.bad)
    run_injection(run_text, case, case.good)
