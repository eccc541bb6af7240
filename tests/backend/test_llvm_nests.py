"""Nests through LLVM against the same nests as loops over Python scalars."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernmantle.compiler.nest import Buffer, Nest
from kernmantle.ir.node import Node, const, var
from kernmantle.ir.reductions import REDUCTIONS, fold, semiring

from .llvm_nests import NUMPY, A, B, Kernel, agree, broadcast, build, loops, outputs, run, shape

TOLERANCE = {"f32": 3e-6, "f64": 1e-13, "i32": 0.0, "i64": 0.0, "bool": 0.0}
C = var("x2")
P = var("p")


def op(name: str, *args: Node) -> Node:
    return Node(name, args)


DISTANCE = op("abs", op("sub", A, B))


def nest(
    roles: str, out: str, *maps: Node, reduce: str = "sum", compute: str = "f32", stored: str | None = None,
    outs: tuple[Node, ...] | None = None, out_dtypes: str | None = None, **flags: bool,
) -> Nest:  # fmt: skip
    """Nest of operands "mk,nk" and maps that all reduce the same way."""
    operands = tuple(Buffer(f"x{i}", part, stored or compute) for i, part in enumerate(roles.split(",")))
    results = outs or tuple(var(f"s{i}") for i in range(len(maps)))
    dtypes = (out_dtypes or ",".join([compute] * len(results))).split(",")
    buffers = tuple(Buffer(f"out{i}", out, dtype) for i, dtype in enumerate(dtypes))
    return Nest(
        operands,
        ("p",),
        buffers,
        maps,
        (REDUCTIONS[reduce],) * len(maps),
        results,
        compute,
        **flags | {"reproducible": REDUCTIONS[reduce].reproducible},
    )


def data(one: Nest, sizes: dict[str, int], seed: int = 0) -> list[np.ndarray]:
    """Arrays with axes in a random order, some reversed, some shared along the batch."""
    rng = np.random.default_rng(seed)
    arrays = []
    for buffer in one.operands:
        lengths = shape(buffer, sizes, shared=bool(rng.integers(3) == 0))
        order = rng.permutation(len(lengths))
        values = rng.normal(size=[lengths[i] for i in order]) * 2
        if buffer.dtype in ("bool", "u8"):
            values = np.abs(values) * (1 if buffer.dtype == "bool" else 20)
        elif buffer.dtype.startswith("i"):
            values *= 20
        if buffer.dtype == "bf16":
            values = values.astype(np.float32).view(np.uint32) >> 16
        array = values.astype(NUMPY[buffer.dtype]).transpose(np.argsort(order))
        if rng.integers(3) == 0 and array.ndim > 3:
            array = array[..., ::-1]
        arrays.append(broadcast(array, buffer, sizes))
    return arrays


def check(one: Nest, *cases: dict[str, int], vector_bytes: int | None = None, tolerance: float | None = None) -> None:
    compare(build(one, vector_bytes), one, *cases, tolerance=tolerance)


def compare(kernel: Kernel, one: Nest, *cases: dict[str, int], tolerance: float | None) -> None:
    """What a kernel writes for random arrays of these sizes is what the loops make of them."""
    limit = TOLERANCE[one.compute] if tolerance is None else tolerance
    for seed, sizes in enumerate(cases):
        arrays, results = data(one, sizes, seed), outputs(one, sizes)
        run(kernel, one, [*arrays, *results], sizes, [1.3], grain=1)
        for got, want in zip(results, loops(one, arrays, sizes, [1.3]), strict=True):
            assert agree(got, want, limit), (str(kernel.plan), sizes)


def around(rows: int, columns: int) -> list[dict[str, int]]:
    """Extents 0, 1 and next to a tile's."""
    extents = itertools.product((0, 1, rows - 1, rows + 1), (0, 1, columns - 1, columns, columns + 1), (0, 1, 3))
    return [{"m": m, "n": n, "k": k} for m, n, k in extents]


def test_extents_around_the_tile():
    one = nest("mk,nk", "mn", DISTANCE)
    plan = build(one).plan
    check(one, *around(plan.rows, plan.columns))


@pytest.mark.parametrize("vector_bytes", [16, 32, 64])
def test_vectors_of_other_machines(vector_bytes):
    check(nest("mk,nk", "mn", DISTANCE), {"m": 5, "n": 37, "k": 9, "b": 2}, vector_bytes=vector_bytes)


@pytest.mark.parametrize("reduce", ["sum", "max", "logsumexp", "argmin"])
def test_many_blocks_of_k(reduce):
    dtypes = "i64" if reduce == "argmin" else None
    one = nest("mk,nk", "mn", DISTANCE, reduce=reduce, out_dtypes=dtypes)
    depth = build(one).plan.depth
    check(one, *({"m": 2, "n": 3, "k": 2 * depth + extra} for extra in (-1, 0, 1)), tolerance=2e-5)


def test_many_blocks_of_the_output():
    one = nest("mk,nk", "mn", DISTANCE)
    kernel = build(one)
    sizes = {"m": kernel.plan.row_block + 3, "n": kernel.plan.column_block + 5, "k": 2}
    arrays, results = data(one, sizes), outputs(one, sizes)
    run(kernel, one, [*arrays, *results], sizes, [1.3])
    x, y = (array[0, 0, 0].astype(np.float64) for array in arrays)
    assert agree(results[0][0, 0, 0], np.abs(x[:, None] - y[None]).sum(-1), 1e-6)


ROLES = [
    "mk,nk,k",
    "mk,nk,mn",
    "mk,nk,m",
    "mk,nk,n",
    "mk,nk,",
    "mnk,mk,nk",
    "mk,nk,l",
    "mkl,nl,k",
    "ml,nkl,mnl",
    "k,l,m",
]


@pytest.mark.parametrize("roles", ROLES)
def test_roles(roles):
    body = op("add", op("mul", op("sub", A, B), C), op("mul", A, A))
    maps = body, op("mul", C, const(2))
    outs = (op("sub", var("s0"), op("mul", P, var("s1"))),)
    cases = ({"m": 5, "n": 35, "k": 4, "l": 3, "b": 2}, {"m": 2, "n": 3, "k": 0}, {"m": 1, "n": 1, "k": 7, "l": 1})
    free = [f"x{i}" for i, part in enumerate(roles.split(",")) if not set(part) & set("kl")]
    extra = tuple(op("add", var("s1"), var(name)) for name in free)
    used = [{role: size for role, size in case.items() if role in roles + "mnabc"} for case in cases]
    check(nest(roles, "mn", *maps, outs=outs + extra, compute="f64"), *used)


@pytest.mark.parametrize(
    ("roles", "out"), [("mk", "m"), ("nk", "n"), ("k", ""), ("mk,m", "m"), ("kl,l", ""), ("m", "m")]
)
def test_fewer_output_roles(roles, out):
    body = op("abs", A) if "," not in roles else op("mul", op("abs", A), B)
    sizes = {role: 41 if role in "mn" else 6 for role in roles if role != ","}
    check(nest(roles, out, body, compute="f64"), sizes, sizes | {"c": 3}, dict.fromkeys(sizes, 1))


def test_elementwise():
    one = nest("mn,m,n,", "mn", op("mul", op("sub", A, B), op("add", C, var("x3"))), op("lt", A, B))
    check(one, {"m": 7, "n": 45, "a": 2}, {"m": 1, "n": 1}, {"m": 0, "n": 4})


@pytest.mark.parametrize("compute", ["f32", "f64"])
@pytest.mark.parametrize("name", sorted(REDUCTIONS))
def test_reductions(name, compute):
    reduction = REDUCTIONS[name]
    stored = {"value": compute, "bool": "bool", "index": "i64"}[reduction.result]
    body = op("lt", A, B) if reduction.result == "bool" else op("sub", A, B)
    check(
        nest("mk,nk", "mn", body, reduce=name, compute=compute, out_dtypes=stored),
        {"m": 5, "n": 35, "k": 6}, {"m": 2, "n": 2, "k": 0}, {"m": 1, "n": 3, "k": 1},
    )  # fmt: skip


@pytest.mark.parametrize("name", ["sum", "prod", "min", "max", "logsumexp", "argmin", "argmax"])
def test_nan_and_infinity(name):
    stored = "i64" if name.startswith("arg") else "f32"
    one = nest("mk,nk", "mn", op("add", A, B), reduce=name, out_dtypes=stored)
    sizes = {"m": 9, "n": 35, "k": 6}
    x, y = (np.array(array) for array in data(one, sizes))
    places = itertools.product((math.nan, math.inf, -math.inf), (0, 3, 5))
    for row, (value, k) in enumerate(places):
        x[..., row, k] = value
    y[..., 4, 2], y[..., 5, 5], y[..., 6, :] = math.nan, -math.inf, -math.inf
    results = outputs(one, sizes)
    run(build(one), one, [x, y, *results], sizes, [1.3])
    assert agree(results[0], loops(one, [x, y], sizes, [1.3])[0], 3e-6)


@pytest.mark.parametrize("stored", ["f16", "bf16", "f32"])
def test_half_storage(stored):
    out = "f32" if stored == "bf16" else stored
    check(nest("mk,nk,mn", "mn", op("mul", DISTANCE, C), stored=stored, out_dtypes=out), {"m": 6, "n": 40, "k": 9},
          tolerance=2e-3)  # fmt: skip


def test_the_negative_of_false_is_plain_zero():
    one = nest("m", "m", op("neg", op("lt", A, const(0))), reduce="prod")
    results = outputs(one, {"m": 2})
    run(build(one), one, [np.array([1.0, -1.0], np.float32).reshape(1, 1, 1, 2), *results], {"m": 2}, [1.3])
    assert results[0].ravel().tolist() == [0, -1]
    assert not np.signbit(results[0].ravel()[0])


def test_bfloat16_is_rounded_to_nearest():
    one = nest("mn", "mn", A, out_dtypes="bf16")
    values = np.array([1.0, 1.00390625, 1.01171875, -3.14159, 1e38, 1e-40, math.inf], np.float32).reshape(
        1, 1, 1, 1, -1
    )
    results = outputs(one, {"n": 7})
    run(build(one), one, [values, *results], {"n": 7}, [1.3])
    want = [0x3F80, 0x3F80, 0x3F82, 0xC049, 0x7E96, 0x0001, 0x7F80]
    assert results[0].ravel().tolist() == want


@pytest.mark.parametrize("name", ["min", "max"])
@pytest.mark.parametrize("vector_bytes", [16, 32, 64])
def test_nan_at_any_place_of_a_tile(name, vector_bytes):
    one = nest("mk,nk", "mn", op("add", A, B), reduce=name)
    kernel = build(one, vector_bytes)
    m, n, k = kernel.plan.rows, kernel.plan.columns, 3
    sizes = {"m": m, "n": n, "k": k}
    for place in range(m + n):
        x, y = np.zeros((1, 1, 1, m, k), np.float32), np.zeros((1, 1, 1, n, k), np.float32)
        (x[0, 0, 0, place] if place < m else y[0, 0, 0, place - m])[place % k] = math.nan
        got = outputs(one, sizes)
        run(kernel, one, [x, y, *got], sizes)
        want = (x[0, 0, 0, :, None] + y[0, 0, 0, None]).sum(-1)
        assert np.array_equal(got[0][0, 0, 0], want, equal_nan=True)


WHOLE = "i8 i32, u8 i32, i16 i32, i32 i32, i64 i64, bool i32, bool f32, u8 f32"


@pytest.mark.parametrize(("stored", "compute"), [pair.split() for pair in WHOLE.split(", ")])
@pytest.mark.parametrize("reduce", ["sum", "min", "argmax"])
def test_integers(stored, compute, reduce):
    body = op("add", op("abs", op("sub", A, B)), op("mul", op("sign", A), op("lt", A, B)))
    out = "i64" if reduce == "argmax" else compute
    check(nest("mk,nk", "mn", body, reduce=reduce, compute=compute, stored=stored, out_dtypes=out),
          {"m": 5, "n": 19, "k": 7}, {"m": 2, "n": 2, "k": 1})  # fmt: skip


def test_empty_integer_minimum_is_the_largest_integer():
    one = nest("mk,nk", "mn", op("add", A, B), reduce="min", compute="i32")
    results = outputs(one, {"m": 1, "n": 1, "k": 0})
    run(build(one), one, [*data(one, {"k": 0}), *results], {"k": 0}, [1.3])
    assert results[0].item() == 2**31 - 1


@pytest.mark.parametrize("name", ["sum", "min", "logsumexp", "argmin", "any"])
@pytest.mark.parametrize("roles", ["mk,nk", "mkl,nl"])
def test_partial_registers(name, roles):
    if name == "argmin" and "l" in roles:
        roles = "mk,nk,k"
    reduction = REDUCTIONS[name]
    dtypes = ",".join({"value": "f64", "bool": "bool", "index": "i64"}[kind] for kind in reduction.kinds)
    outs = tuple(var(f"s{i}") for i in range(len(reduction.kinds)))
    one = nest(roles, "mn", DISTANCE, reduce=name, compute="f64", outs=outs, out_dtypes=dtypes, partial=True)
    one = replace(one, outputs=())
    extents = {"m": 3, "n": 9, "k": 11} | ({"l": 5} if "l" in roles else {})
    check(one, *(extents | {"splits": splits} for splits in (1, 3, 13)))


def test_several_accumulators_and_outputs():
    maps = op("mul", A, B), op("mul", A, A), op("mul", B, B), op("lt", A, B)
    reductions = tuple(REDUCTIONS[name] for name in ("sum", "sum", "sum", "any"))
    s = [var(f"s{i}") for i in range(4)]
    cosine = op("div", s[0], op("sqrt", op("mul", s[1], s[2])))
    one = replace(nest("mk,nk", "mn", *maps, outs=(cosine, s[3], op("where", s[3], s[0], P))), reductions=reductions)
    check(one, {"m": 6, "n": 34, "k": 8, "a": 2})


def test_users_semiring_and_fold():
    plus = semiring(op("sub", op("add", var("s0"), var("t")), op("mul", var("s0"), var("t"))), 0)
    one = replace(nest("mk,nk", "mn", op("sigmoid", op("mul", A, B)), compute="f64"), reductions=(plus,))
    check(one, {"m": 5, "n": 20, "k": 6})
    horner = fold(op("add", op("mul", var("s0"), B), A), 0)
    check(replace(nest("mk,n", "mn", const(0), compute="f64"), reductions=(horner,)), {"m": 5, "n": 20, "k": 6})


@pytest.mark.parametrize("size", [1, 31, 33, 200, 1100])
def test_symmetric_results_are_mirrored_bit_for_bit(size):
    one = nest("mk,nk", "mn", op("pow", DISTANCE, P), symmetric=True)
    kernel = build(one)
    sizes = {"m": size, "n": size, "k": 7, "b": 2}
    x = np.random.default_rng(size).normal(size=(1, 2, 1, size, 7)).astype(np.float32)
    got = [np.full((1, 2, 1, size, size), 7, np.float32) for _ in range(2)]
    run(kernel, one, [x, x, got[0]], sizes, [1.3])
    whole = replace(one, symmetric=False)
    run(build(whole), whole, [x, x, got[1]], sizes, [1.3])
    assert kernel.plan.symmetric
    assert np.array_equal(got[0], got[0].swapaxes(-1, -2))
    assert np.array_equal(got[0], got[1])
    assert not got[0].diagonal(axis1=-2, axis2=-1).any()


@pytest.mark.parametrize("vector_bytes", [16, 32, 64])
@pytest.mark.parametrize("stored", ["f32", "f16"])
def test_symmetric_results_in_strided_outputs(stored, vector_bytes):
    one = nest("mk,nk", "mn", DISTANCE, symmetric=True, out_dtypes=stored)
    kernel = build(one, vector_bytes)
    sizes = {"m": 77, "n": 77, "k": 3}
    x = np.random.default_rng(0).normal(size=(1, 1, 1, 77, 3)).astype(np.float32)
    want = loops(one, [x, x], sizes, [1.3])[0]
    memory = np.zeros((1, 1, 1, 77 * 2, 77 * 3), NUMPY[stored])
    for view in (memory[..., ::2, ::3], memory[..., ::-2, 1::3].swapaxes(-1, -2), memory[..., 1::2, 77:154]):
        memory[:] = 7
        run(kernel, one, [x, x, view], sizes, [1.3], grain=1)
        assert agree(view, want, 1e-3 if stored == "f16" else 1e-6)
        assert np.count_nonzero(memory == 7) >= memory.size - view.size


@pytest.mark.parametrize("reduce", ["sum", "min"])
def test_any_partition_over_threads_gives_the_same_bits(reduce):
    one = nest("mk,nk", "mn", op("pow", DISTANCE, P), reduce=reduce)
    kernel = build(one)
    sizes = {"m": 133, "n": 70, "k": 300, "c": 3}
    arrays = data(one, sizes)
    first = outputs(one, sizes)
    run(kernel, one, [*arrays, *first], sizes, [1.3], threads=1)
    for threads, grain in ((1, 1), (2, 1), (3, 7)):
        again = outputs(one, sizes)
        run(kernel, one, [*arrays, *again], sizes, [1.3], threads, grain)
        assert np.array_equal(first[0], again[0])


def test_strided_outputs():
    one = nest("mk,nk", "mn", DISTANCE)
    kernel = build(one)
    sizes = {"m": 9, "n": 35, "k": 4}
    arrays = data(one, sizes)
    want = loops(one, arrays, sizes, [1.3])[0]
    memory = np.zeros((1, 1, 1, 3 * 35, 2 * 9), np.float32)
    for view in (memory[..., ::3, ::2].swapaxes(-1, -2), memory[..., ::-3, 1::2].swapaxes(-1, -2)):
        run(kernel, one, [*arrays, view], sizes, [1.3])
        assert agree(view, want, 1e-6)


def power_sums(x: np.ndarray, y: np.ndarray, p: float) -> np.ndarray:
    """Sums of powers of the differences of all rows, in float64 from the power that float32 holds."""
    with np.errstate(all="ignore"):
        gap = np.abs(x[:, :, :, :, None] - y[:, :, :, None]).astype(np.float64)
        return np.power(gap, float(np.float32(p))).sum(-1).astype(np.float32)


@pytest.mark.parametrize("p", [1.3, 0.4, -0.6, 0.0, 7.5, 40.0, math.nan, math.inf])
def test_quick_powers_at_their_edges(p):
    one = nest("mk,nk", "mn", op("pow", DISTANCE, P))
    sizes = {"m": 6, "n": 35, "k": 5}
    x, y = (np.array(array) for array in data(one, sizes))
    y[..., 3, 2] = x[0, 0, 0, 1, 2]
    y[..., 4, 0], x[..., 4, 0] = 1e-42, 0
    y[..., 7, 1], y[..., 8, 1], y[..., 9, 1] = math.nan, math.inf, 3e38
    y[..., 11, :], x[..., 5, :] = 1e-25, -1e-25
    results = outputs(one, sizes)
    run(build(one), one, [x, y, *results], sizes, [p])
    want = power_sums(x, y, p).astype(np.float64)
    got = results[0].astype(np.float64)
    special = ~np.isfinite(want) | (want == 0)
    assert np.array_equal(got[special], want[special], equal_nan=True)
    assert np.all(np.abs(got[~special] - want[~special]) <= 2e-6 * np.abs(want[~special]) + 1e-44)


UNARY = ("neg", "abs", "sign", "sqrt", "floor", "exp", "tanh", "sin", "sigmoid", "erf", "not")
BINARY = ("add", "sub", "mul", "min", "max", "lt", "le", "eq", "ne", "and", "or", "div")


@st.composite
def expressions(draw: st.DrawFn, names: tuple[str, ...], depth: int) -> Node:
    if depth == 0 or draw(st.integers(0, 5)) == 0:
        return draw(st.sampled_from([*map(var, names), const(2), const(0.5)]))
    kind = draw(st.integers(0, 9))
    inner = expressions(names, depth - 1)
    if kind < 3:
        name, arg = draw(st.sampled_from(UNARY)), draw(inner)
        return op(name, op("abs", arg) if name == "sqrt" else op("neg", op("abs", arg)) if name == "exp" else arg)
    if kind < 9:
        name, left, right = draw(st.sampled_from(BINARY)), draw(inner), draw(inner)
        return op(name, left, op("add", op("abs", right), const(1)) if name == "div" else right)
    return op("where", draw(inner), draw(inner), draw(inner))


@st.composite
def nests(draw: st.DrawFn) -> Nest:
    out = draw(st.sampled_from(["mn", "mn", "m", "n", ""]))
    roles = [
        r for r in ("mk", "nk", "k", "l", "m", "n", "mn", "", "mnk", "mkl", "nl") if set(r) & set("mn") <= set(out)
    ]
    buffers = tuple(Buffer(f"x{i}", draw(st.sampled_from(roles)), "f64") for i in range(draw(st.integers(1, 3))))
    names = (*(buffer.name for buffer in buffers), "p")
    kinds = st.sampled_from(["sum", "min", "max", "logsumexp", "any", "all"])
    reductions = tuple(REDUCTIONS[draw(kinds)] for _ in range(draw(st.integers(1, 2))))
    maps = tuple(draw(expressions(names, 3)) for _ in reductions)
    fixed = (*(buffer.name for buffer in buffers if not set(buffer.roles) & set("kl")), "p", "s0")
    results = draw(expressions(fixed, 2)), var("s0")
    outs = tuple(Buffer(f"out{i}", out, "f64") for i in range(2))
    return Nest(buffers, ("p",), outs, maps, reductions, results, "f64")


@settings(max_examples=40)
@given(nests(), st.sampled_from([16, 32, 64]), st.data())
def test_random_nests(one, vector_bytes, choice):
    extents = {"m": [1, 4, 5], "n": [1, 7, 17], "k": [1, 2, 5], "l": [1, 2], "b": [1, 2], "c": [1, 2]}
    used = {role for buffer in one.buffers for role in buffer.roles} | {"b", "c"}
    sizes = {role: choice.draw(st.sampled_from(values)) for role, values in extents.items() if role in used}
    check(one, sizes, vector_bytes=vector_bytes, tolerance=1e-11)


def test_the_comparison_rejects_wrong_results():
    want = np.array([1.0, math.nan, math.inf])
    assert agree(want, want, 0.0)
    for wrong in ([1.1, math.nan, math.inf], [1.0, 0.0, math.inf], [1.0, math.nan, -math.inf], [math.nan] * 3):
        assert not agree(np.array(wrong), want, 1e-6)
