"""Row nests through LLVM against numpy, for vectors of every width, and the emitted text."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from kernmantle.backends.cpu import jit
from kernmantle.backends.cpu.row_reduce_emit import emit_rows
from kernmantle.backends.cpu.row_reduce_plan import CpuRowPlan, plan_rows, row_work
from kernmantle.compiler.nest import ROLES, SIZES, stride_slot
from kernmantle.compiler.row_reduce import PRODUCT, Apply, RowNest, lower_rows
from kernmantle.ir.definition import bind, define
from kernmantle.ir.functions import FUNCTIONS
from kernmantle.ir.ops import evaluate
from kernmantle.testing import assert_close

from .llvm_nests import NUMPY

exp = FUNCTIONS["exp"]
BANDWIDTH = 3.0
LAPLACE = bind(define("mk,nk->mn", lambda a, b: abs(a - b), "sum", lambda s, h: exp(-s / h)), frozenset()).program


@cache
def rows_of(how: str, count: int, stored: str, out: str, compute: str) -> RowNest:
    outs = [out, *(["i64"] if how in ("smallest", "largest") else [])]
    return lower_rows(Apply(LAPLACE, how, count), [stored] * 2, stored, outs, compute).rows


@cache
def built(rows: RowNest, width: int, vector_bytes: int) -> tuple[CpuRowPlan, jit.LoadedKernel]:
    registers = jit.host().vector_registers if vector_bytes == jit.host().vector_bytes else 16
    plan = plan_rows(rows, vector_bytes, registers, {"l": width})
    return plan, jit.load(jit.compile_ir(emit_rows(plan), jit.host()))


def run(rows: RowNest, x, y, v, outs, vector_bytes: int = 0, threads: int = 1) -> None:
    """Write the results; arrays are (rows, columns) of any strides."""
    width = outs[0].shape[1] if outs[0].ndim == 2 else 1
    plan, kernel = built(rows, width, vector_bytes or jit.host().vector_bytes)
    sizes = dict.fromkeys(SIZES, 1) | {"m": len(x), "n": len(y), "k": x.shape[1], "l": width}
    integers = np.zeros(len(SIZES) + len(rows.buffers) * len(ROLES), np.int64)
    integers[: len(SIZES)] = list(sizes.values())
    arrays = [x, y, None, *([v] if v is not None else []), *outs]
    for place, (buffer, array) in enumerate(zip(rows.buffers, arrays, strict=True)):
        steps = (plan.matrix.columns, 1) if array is None else [s // array.itemsize for s in array.strides]
        for role, step in zip("nm" if array is None else buffer.roles, steps, strict=True):
            integers[stride_slot(place, role)] = step
    todo = row_work(plan, sizes)
    numbers = [BANDWIDTH, *map(float, evaluate(rows.folded, {LAPLACE.numbers[0].name: BANDWIDTH}))]
    pointers = [0 if array is None else array.ctypes.data for array in arrays]
    jit.run(kernel, todo.items, todo.scratch_bytes, pointers, integers.tobytes(), numbers, threads)


def data(m, n, k, c, dtype=np.float32):
    random = np.random.default_rng(0)
    x, y, v = (random.normal(size=shape).astype(dtype) for shape in ((m, k), (n, k), (n, c)))
    w = np.exp(-np.abs(x[:, None].astype(float) - y[None].astype(float)).sum(-1) / BANDWIDTH)
    return x, y, v, w


SIZES_AROUND = [
    (1, 1, 1, 1), (7, 3, 0, 2), (31, 255, 5, 1), (32, 256, 1, 3), (33, 257, 20, 9), (129, 4, 3, 64), (5, 1000, 7, 2),
    (1100, 9, 2, 1), (40, 300, 257, 1), (40, 300, 513, 5),
]  # fmt: skip


@pytest.mark.parametrize(("m", "n", "k", "c"), SIZES_AROUND)
def test_products(m, n, k, c):
    x, y, v, w = data(m, n, k, c)
    out = np.full((m, c), np.nan, np.float32)
    run(rows_of(PRODUCT, 0, "f32", "f32", "f32"), x, y, v, [out])
    assert_close(out, w @ v, depth=n + k, magnitude=np.abs(w) @ np.abs(v))


@pytest.mark.parametrize("vector_bytes", [16, 32, 64])
@pytest.mark.parametrize("compute", ["f32", "f64"])
def test_vectors_of_other_machines(vector_bytes, compute):
    x, y, v, w = data(37, 261, 5, 3, NUMPY[compute])
    for how, count in ((PRODUCT, 0), ("logsumexp", 0), ("smallest", 2)):
        rows = rows_of(how, count, compute, compute, compute)
        shape = {PRODUCT: (37, 3), "smallest": (37, 2)}.get(how, (37,))
        outs = [np.full(shape, np.nan, NUMPY[compute])] + [np.full(shape, -1)] * rows.selects
        run(rows, x, y, v if how == PRODUCT else None, outs, vector_bytes)
        places = np.argsort(w, 1)[:, :2]
        wants = {PRODUCT: w @ v, "logsumexp": np.log(np.exp(w).sum(1)), "smallest": np.take_along_axis(w, places, 1)}
        assert_close(outs[0], wants[how], depth=261)
        if rows.selects:
            assert np.array_equal(outs[1], places)


@pytest.mark.parametrize("how", ["sum", "max", "min", "logsumexp"])
@pytest.mark.parametrize(("m", "n"), [(1, 1), (33, 255), (40, 257), (130, 700)])
def test_reductions(how, m, n):
    x, y, _, w = data(m, n, 3, 1)
    out = np.full(m, np.nan, np.float32)
    run(rows_of(how, 0, "f32", "f32", "f32"), x, y, None, [out])
    want = {"sum": w.sum(1), "max": w.max(1), "min": w.min(1), "logsumexp": np.log(np.exp(w).sum(1))}[how]
    assert_close(out, want, depth=n)


@pytest.mark.parametrize("how", ["smallest", "largest"])
@pytest.mark.parametrize(("m", "n", "count"), [(1, 1, 1), (33, 255, 255), (40, 300, 7), (130, 700, 1)])
def test_selections(how, m, n, count):
    x, y, _, w = data(m, n, 3, 1)
    y[n // 2] = y[0]
    values, places = np.full((m, count), np.nan, np.float32), np.full((m, count), -1)
    run(rows_of(how, count, "f32", "f32", "f32"), x, y, None, [values, places])
    w[:, n // 2] = w[:, 0]
    want = np.argsort(w if how == "smallest" else -w, 1, kind="stable")[:, :count]
    assert_close(values, np.take_along_axis(w, want, 1), depth=4)
    assert_close(np.take_along_axis(w, places, 1), np.take_along_axis(w, want, 1), dtype=np.float32, depth=4)
    for row in map(list, places):
        assert len(set(row)) == count
        assert n < 2 or n // 2 not in row or row.index(0) < row.index(n // 2)


def test_equal_entries_keep_their_order_and_nan_comes_last():
    x, y = np.zeros((20, 2), np.float32), np.zeros((9, 2), np.float32)
    y[[2, 5]] = np.nan
    for how in ("smallest", "largest"):
        values, places = np.zeros((20, 9), np.float32), np.zeros((20, 9), np.int64)
        run(rows_of(how, 9, "f32", "f32", "f32"), x, y, None, [values, places])
        assert (places == [0, 1, 3, 4, 6, 7, 8, 2, 5]).all()
        assert np.isnan(values[:, 7:]).all()
        assert (values[:, :7] == 1).all()


@pytest.mark.parametrize("how", ["smallest", "largest"])
def test_one_entry_of_many_panels_is_the_first_of_equals_and_no_nan(how):
    x, y = np.zeros((40, 2), np.float32), np.ones((1500, 2), np.float32)
    x[7] = np.nan
    y[[0, 3, 700]], y[[901, 1400]] = np.nan, 0 if how == "largest" else 3
    values, places = np.full((40, 1), 5, np.float32), np.full((40, 1), -1)
    run(rows_of(how, 1, "f32", "f32", "f32"), x, y, None, [values, places])
    assert (np.delete(places, 7) == 901).all()
    assert_close(np.delete(values, 7), np.full(39, np.exp((0.0 if how == "largest" else -6.0) / BANDWIDTH)), depth=4)
    assert np.isnan(values[7, 0])
    assert places[7, 0] == 0


@pytest.mark.parametrize("stored", ["f16", "bf16", "f64"])
def test_storage_types(stored):
    x, y, v, _ = data(33, 260, 4, 2)
    if stored == "bf16":
        held = [(array.view(np.uint32) >> 16).astype(np.uint16) for array in (x, y, v)]
        x, y, v = ((array.astype(np.uint32) << 16).view(np.float32) for array in held)
    else:
        held = [array.astype(NUMPY[stored]) for array in (x, y, v)]
        x, y, v = (array.astype(np.float64) for array in held)
    compute = "f64" if stored == "f64" else "f32"
    out = np.zeros((33, 2), NUMPY[compute])
    run(rows_of(PRODUCT, 0, stored, compute, compute), *held, [out])
    w = np.exp(-np.abs(x[:, None].astype(float) - y[None].astype(float)).sum(-1) / BANDWIDTH)
    assert_close(out, w @ v.astype(float), depth=260, magnitude=w @ np.abs(v))


def test_any_strides_and_any_partition_over_threads():
    x, y, v, w = data(300, 270, 6, 4)
    plain = np.zeros((300, 4), np.float32)
    rows = rows_of(PRODUCT, 0, "f32", "f32", "f32")
    run(rows, x, y, v, [plain])
    wide = np.zeros((4, 600), np.float32)
    out = wide[:, ::2].T
    strided = np.repeat(y, 2, 0)[::2]
    run(rows, np.asfortranarray(x), strided[::-1], np.asfortranarray(v[::-1]), [out], threads=2)
    assert_close(out, w @ v, depth=276)
    again = np.zeros_like(plain)
    run(rows, x, y, v, [again], threads=2)
    assert np.array_equal(again, plain)
