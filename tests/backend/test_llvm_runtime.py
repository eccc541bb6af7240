"""Compiling, loading and running LLVM kernels, and the text they are made from.

``python -m tests.golden.llvm_texts`` records the text.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from kernmantle.backends.cpu import emit as text
from kernmantle.backends.cpu import gram_plan, threads
from kernmantle.backends.cpu import jit as runtime
from kernmantle.compiler.nest import Buffer, Nest
from kernmantle.errors import CompileError
from kernmantle.ir.node import Node, var
from kernmantle.ir.reductions import REDUCTIONS

A, B = var("x0"), var("x1")
DISTANCE = Node("abs", (Node("sub", (A, B)),))
RECORDER = """
define void @km(ptr %pointers, ptr %integers, ptr %numbers, i64 %begin, i64 %end, ptr %scratch) {
  %into = load ptr, ptr %pointers, align 8
  br label %head
head:
  %i = phi i64 [ %begin, %0 ], [ %next, %body ]
  %more = icmp slt i64 %i, %end
  br i1 %more, label %body, label %done
body:
  %place = getelementptr i64, ptr %into, i64 %i
  %old = load i64, ptr %place, align 8
  %new = add i64 %old, 1
  store i64 %new, ptr %place, align 8
  store i8 1, ptr %scratch, align 1
  %next = add i64 %i, 1
  br label %head
done:
  ret void
}
"""


def gram(reduce: str = "sum", mapped: Node = DISTANCE, dtype: str = "f32", out: str | None = None, **flags) -> Nest:
    buffers = Buffer("x0", "mk", dtype), Buffer("x1", "nk", dtype)
    outs = (Buffer("out0", "mn", out or dtype),)
    return Nest(
        buffers,
        ("p",),
        outs,
        (mapped,),
        (REDUCTIONS[reduce],),
        (var("s0"),),
        dtype,
        **flags | {"reproducible": REDUCTIONS[reduce].reproducible},
    )


def test_the_same_plan_gives_the_same_text():
    one, again = (text.emit(gram_plan.plan(gram(), 32, 16)) for _ in range(2))
    assert one == again


UNROLLED = """
define void @km(ptr %p, ptr %integers, ptr %numbers, i64 %begin, i64 %end, ptr %scratch) {
  br label %head
head:
  %i = phi i64 [ 0, %0 ], [ %next, %head ]
  %at = getelementptr i64, ptr %p, i64 %i
  %value = load volatile i64, ptr %at, align 8
  %next = add nsw i64 %i, 1
  %more = icmp slt i64 %next, 24
  br i1 %more, label %head, label %done{tag}
done:
  ret void
}
!0 = distinct !{!0, !1}
!1 = !{!"llvm.loop.unroll.count", i32 24}
!2 = distinct !{!2, !3}
!3 = !{!"llvm.loop.unroll.disable"}
"""
TAGS = (", !llvm.loop !0", ", !llvm.loop !2")


def test_hints_say_which_loops_are_unrolled():
    """A loop without a hint is unrolled where the module has none at all."""

    def size(*functions):
        return len(runtime.compile_ir("".join(functions), runtime.host()))

    free, counted, disabled = (UNROLLED.replace("{tag}", tag) for tag in ("", *TAGS))
    assert size(free) == size(counted) > size(disabled)
    other = free.replace("@km", "@other").partition("\n!0")[0]
    assert size(other, disabled) - size(disabled) < size(other, free) - size(free)


def test_other_machines_can_be_compiled_for():
    host = runtime.host()
    assert host.vector_bytes in (16, 32, 64)
    assert host.vector_registers in (16, 32)
    plain = runtime.compile_ir(text.emit(gram_plan.plan(gram(), 16, 16)), replace(host, cpu="", features=""))
    assert len(plain) > 1000


@pytest.mark.parametrize(
    ("features", "machine", "expected"),
    [
        ({"avx2": True, "fma": True}, "x86_64", (32, 16)),
        ({"avx2": True, "fma": True, "avx512f": True, "avx512vl": True, "avx512dq": True}, "AMD64", (64, 32)),
        ({"sse2": True, "avx2": False}, "x86_64", (16, 16)),
        ({}, "arm64", (16, 32)),
        ({"neon": True}, "aarch64", (16, 32)),
    ],
)
def test_vectors_of_a_machine(features, machine, expected):
    assert runtime.vectors(features, machine) == expected


def test_text_that_llvm_rejects():
    with pytest.raises(CompileError, match="rejected"):
        runtime.compile_ir("define void @km() { ret i32 0 }", runtime.host())


def test_object_code_without_the_entry():
    other = runtime.compile_ir(RECORDER.replace("@km", "@other"), runtime.host())
    with pytest.raises(CompileError, match="km"):
        runtime.load(other)


@pytest.fixture(scope="module")
def recorder() -> runtime.LoadedKernel:
    return runtime.load(runtime.compile_ir(RECORDER, runtime.host()))


@pytest.mark.parametrize(("items", "count", "grain"), [(0, 2, 1), (1, 4, 1), (7, 2, 1), (1000, 3, 1), (1000, 2, 300)])
def test_every_item_is_run_once(recorder, items, count, grain):
    counts = np.zeros(max(items, 1), np.int64)
    integers = np.zeros(1, np.int64)
    runtime.run(recorder, items, 64, [counts.ctypes.data], integers, [], count, grain)
    assert counts[:items].tolist() == [1] * items
    assert counts.sum() == items


def test_threads_do_not_share_scratch():
    body = "".join(
        f"  store volatile i64 %i, ptr %scratch, align 8\n  %held{i} = load volatile i64, ptr %scratch, align 8\n"
        f"  %sum{i} = add i64 %held{i}, {f'%sum{i - 1}' if i else '0'}\n"
        for i in range(50)
    )
    source = RECORDER.replace("  %new = add i64 %old, 1\n", f"{body}  %new = add i64 %old, %sum49\n")
    source = source.replace("  store i8 1, ptr %scratch, align 1\n", "")
    kernel, items = runtime.load(runtime.compile_ir(source, runtime.host())), 2000
    for count in (2, 3, 5, 2):
        found = np.zeros(items, np.int64)
        for _ in range(20):
            runtime.run(kernel, items, 8, [found.ctypes.data], b"", [], count)
        assert found.tolist() == [20 * 50 * i for i in range(items)]


def test_the_caller_works_alone_where_the_team_is_taken(recorder):
    counts, pool = np.zeros(100, np.int64), runtime._pool()
    assert pool._taken.acquire(blocking=False)
    try:
        runtime.run(recorder, 100, 64, [counts.ctypes.data], b"", [], 2)
    finally:
        pool._taken.release()
    assert counts.tolist() == [1] * 100


@pytest.mark.parametrize(("items", "grain", "refusals"), [(1000, 1, 3), (10, 3, 2), (7, 1, 1)])
def test_a_caller_that_began_alone_asks_for_the_team_again(recorder, monkeypatch, items, grain, refusals):
    counts, pool, asked = np.zeros(items, np.int64), runtime._pool(), []

    def run(kernel, arguments, scratch, left, *rest):
        asked.append(left)
        return len(asked) > refusals and pool.run(kernel, arguments, scratch, left, *rest)

    monkeypatch.setattr(runtime, "_pool", lambda: SimpleNamespace(run=run))
    runtime.run(recorder, items, 64, [counts.ctypes.data], b"", [], 2, grain)
    assert counts.tolist() == [1] * items
    alone, together = itertools.pairwise(asked[: refusals + 1]), asked[refusals:]
    assert all(after.start > before.start and after.stop == before.stop for before, after in alone)
    assert list(itertools.chain(*together)) == list(range(together[0].start, items))


@pytest.mark.parametrize("machine", ["x86_64", "AMD64", "aarch64", "arm64"])
def test_the_text_of_threads_is_right_for_every_processor(machine):
    runtime.host()
    module = runtime.binding.parse_assembly(threads.text(machine))
    module.verify()
    assert {"lead", "join"} <= {function.name for function in module.functions}


def test_a_sleeping_worker_is_woken(recorder):
    runtime.run(recorder, 2, 64, [np.zeros(2, np.int64).ctypes.data], b"", [], 2)
    (worker, *_), patience = runtime._pool()._workers, time.monotonic() + 20
    while not worker._asleep:
        assert time.monotonic() < patience
        time.sleep(0.001)
    counts = np.zeros(1000, np.int64)
    runtime.run(recorder, 1000, 64, [counts.ctypes.data], b"", [], 2)
    assert counts.tolist() == [1] * 1000
    while not worker._asleep:
        assert time.monotonic() < patience
        time.sleep(0.001)


def test_a_small_call_stays_in_its_thread(monkeypatch, recorder):
    monkeypatch.setattr(runtime, "_pool", lambda: pytest.fail("a thread was started"))
    counts = np.zeros(4, np.int64)
    runtime.run(recorder, 4, 64, [counts.ctypes.data], np.zeros(1, np.int64), [], 8, grain=4)
    assert counts.tolist() == [1] * 4


def test_numbers_and_scratch_reach_the_kernel():
    body = "store double %x, ptr %scratch, align 8\n  %back = load double, ptr %scratch, align 8"
    source = (
        "define void @km(ptr %p, ptr %i, ptr %n, i64 %b, i64 %e, ptr %scratch) {\n"
        f"  %x = load double, ptr %n, align 8\n  {body}\n  %into = load ptr, ptr %p, align 8\n"
        "  store double %back, ptr %into, align 8\n  ret void\n}\n"
    )
    kernel = runtime.load(runtime.compile_ir(source, runtime.host()))
    value = ctypes.c_double(0)
    runtime.run(kernel, 1, 1 << 20, [ctypes.addressof(value)], np.zeros(1, np.int64), [2.5], 1)
    assert value.value == 2.5


def test_threads_compile_at_once():
    sources = [text.emit(gram_plan.plan(gram(reduce), 16, 16)) for reduce in ("sum", "prod", "max", "min")]
    with ThreadPoolExecutor(4) as pool:
        parallel = list(pool.map(lambda source: runtime.compile_ir(source, runtime.host()), sources))
    assert [len(obj) for obj in parallel] == [len(runtime.compile_ir(source, runtime.host())) for source in sources]


def test_a_forked_process_has_its_own_threads(recorder):
    counts = np.zeros(1000, np.int64)
    runtime.run(recorder, 1000, 64, [counts.ctypes.data], np.zeros(1, np.int64), [], 2)
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        runtime.run(recorder, 1000, 64, [counts.ctypes.data], np.zeros(1, np.int64), [], 2)
        os._exit(0 if counts.tolist() == [2] * 1000 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_many_callers_at_once(recorder):
    counts = np.zeros((8, 500), np.int64)
    callers = [
        threading.Thread(
            target=runtime.run, args=(recorder, 500, 64, [row.ctypes.data], np.zeros(1, np.int64), [], 2)
        )
        for row in counts
    ]  # fmt: skip
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert (counts == 1).all()


def test_a_function_that_is_not_there_is_an_error_and_no_call_of_nothing(monkeypatch):
    source = (
        "define void @km(ptr %p) {\n  %x = load fp128, ptr %p\n  %y = fadd fp128 %x, %x\n"
        "  store fp128 %y, ptr %p\n  ret void\n}"
    )
    monkeypatch.setattr(runtime.binding, "address_of_symbol", lambda name: None)
    with pytest.raises(CompileError, match="__addtf3"):
        runtime.compile_ir(source, runtime.host())


def test_the_version_names_the_compiler():
    assert "llvmlite" in runtime.version()
    assert any(character.isdigit() for character in runtime.version())
