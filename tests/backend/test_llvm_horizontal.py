"""Tiny outputs, whose vectors run along k, against loops over Python scalars."""

from __future__ import annotations

import math
import platform
from dataclasses import replace

import numpy as np
import pytest

from kernmantle.backends.cpu import gram_plan
from kernmantle.backends.cpu import jit as runtime
from kernmantle.backends.cpu.emit import emit
from kernmantle.compiler.nest import Nest
from kernmantle.ir.node import const, var
from kernmantle.ir.reductions import REDUCTIONS

from .llvm_nests import A, B, Kernel, agree, build, outputs, run
from .test_llvm_nests import DISTANCE, P, compare, data, nest, op, power_sums


def compiled(one: Nest, vector_bytes: int | None = None) -> Kernel:
    kernel = build(one, vector_bytes, {"m": 1, "n": 1, "k": 10_000})
    assert kernel.plan.across
    return kernel


def check(one: Nest, *cases: dict[str, int], vector_bytes: int | None = None, tolerance: float | None = None) -> None:
    compare(compiled(one, vector_bytes), one, *cases, tolerance=tolerance)


def around(plan) -> list[dict[str, int]]:
    """Extents of k next to a vector, a step and a block."""
    span = plan.lanes * plan.vectors
    return [
        {"m": 2, "n": 3, "k": k}
        for k in (0, 1, plan.lanes - 1, plan.lanes + 1, span - 1, span, span + 1, plan.depth, plan.depth + 3)
    ]


@pytest.mark.parametrize("compute", ["f32", "f64"])
@pytest.mark.parametrize("name", ["sum", "prod", "min", "max", "logsumexp", "any", "all"])
def test_reductions(name, compute):
    reduction = REDUCTIONS[name]
    stored = {"value": compute, "bool": "bool"}[reduction.result]
    body = op("lt", A, op("add", B, const(9))) if reduction.result == "bool" else op("sub", A, B)
    if name == "prod":
        body = op("exp2", op("mul", const(0.01), body))
    one = nest("mk,nk", "mn", body, reduce=name, compute=compute, out_dtypes=stored)
    check(one, *around(compiled(one).plan), tolerance=1e-4 if compute == "f32" else 1e-12)


@pytest.mark.parametrize("vector_bytes", [16, 32, 64])
@pytest.mark.parametrize(
    ("roles", "out"), [("k", ""), ("k,k", ""), ("mk,k", "m"), ("nk,mkl,l", "mn"), ("k,m,mn,", "mn")]
)
def test_roles(roles, out, vector_bytes):
    names = [var(f"x{i}") for i in range(roles.count(",") + 1)]
    body = P
    for name in names:
        body = op("add", op("abs", name), op("mul", body, const(0.5)))
    sizes = {role: {"m": 3, "n": 2, "k": 77, "l": 3}[role] for role in set(roles) - {","}}
    check(nest(roles, out, body, compute="f64"), sizes, sizes | {"b": 2}, vector_bytes=vector_bytes)


@pytest.mark.parametrize("stored", ["f16", "bf16", "u8", "i32"])
def test_storage(stored):
    one = nest("nk,k", "n", DISTANCE, stored=stored, out_dtypes="f32")
    check(one, {"n": 2, "k": 300}, {"n": 1, "k": 5})


@pytest.mark.parametrize("name", ["sum", "min", "logsumexp"])
def test_partial_registers(name):
    reduction = REDUCTIONS[name]
    outs = tuple(var(f"s{i}") for i in range(len(reduction.kinds)))
    one = nest("k,k", "", DISTANCE, reduce=name, compute="f64", outs=outs, out_dtypes=",".join(["f64"] * len(outs)),
               partial=True)  # fmt: skip
    one = replace(one, outputs=())
    check(one, {"k": 1000, "splits": 7}, {"k": 5, "splits": 7}, tolerance=1e-12)


def test_several_accumulators_and_outputs():
    maps = op("mul", A, B), op("mul", A, A), op("mul", B, B), op("lt", A, B)
    reductions = tuple(REDUCTIONS[name] for name in ("sum", "sum", "max", "any"))
    s = [var(f"s{i}") for i in range(4)]
    first = op("div", s[0], op("sqrt", op("mul", s[1], s[2])))
    one = replace(nest("mk,nk", "mn", *maps, outs=(first, s[3], op("where", s[3], s[0], P))), reductions=reductions)
    check(one, {"m": 3, "n": 2, "k": 200, "a": 2}, tolerance=2e-5)


@pytest.mark.parametrize("p", [1.3, 0.4, 0.0, -0.6, math.inf])
def test_quick_powers(p):
    one = nest("mk,nk", "mn", op("pow", DISTANCE, P))
    sizes = {"m": 2, "n": 3, "k": 131}
    x, y = (np.array(array) for array in data(one, sizes))
    y[..., 1, 2] = x[0, 0, 0, 1, 2]
    y[..., 2, 130] = 3e38
    results = outputs(one, sizes)
    run(compiled(one), one, [x, y, *results], sizes, [p])
    want = power_sums(x, y, p)
    assert np.array_equal(np.isfinite(results[0]), np.isfinite(want))
    finite = np.isfinite(want)
    assert np.all(np.abs(results[0][finite] - want[finite]) <= 3e-6 * np.abs(want[finite]))


@pytest.mark.parametrize("name", ["sum", "prod", "min", "max", "logsumexp"])
@pytest.mark.parametrize("place", [0, 63, 64, 130])
def test_nan_anywhere(name, place):
    one = nest("k", "", op("mul", A, A), reduce=name)
    x = np.full((1, 1, 1, 131), 0.5, np.float32)
    x[..., place] = math.nan
    results = outputs(one, {"k": 131})
    run(compiled(one), one, [x, *results], {"k": 131}, [1.3])
    assert np.isnan(results[0]).all()


@pytest.mark.parametrize("name", ["argmin", "argmax"])
def test_positions_keep_their_order(name):
    plan = build(nest("k", "", A, reduce=name, out_dtypes="i64"), None, {"m": 1, "n": 1, "k": 10_000}).plan
    assert not plan.across


def test_symmetric_results():
    one = nest("mk,nk", "mn", DISTANCE, symmetric=True)
    x = np.random.default_rng(0).normal(size=(1, 1, 1, 3, 500)).astype(np.float32)
    got = outputs(one, {"m": 3, "n": 3})
    run(compiled(one), one, [x, x, *got], {"m": 3, "n": 3, "k": 500}, [1.3])
    want = np.abs(x[..., :, None, :].astype(np.float64) - x[..., None, :, :]).sum(-1)
    assert agree(got[0], want, 1e-5)
    assert np.array_equal(got[0], got[0].swapaxes(-1, -2))


@pytest.mark.parametrize("stored", ["f16", "bf16"])
@pytest.mark.parametrize("name", ["sum", "min", "max"])
def test_one_result_of_a_half_type_on_machines_without_instructions_for_it(name, stored):
    """LLVM may call no function for it, which no kernel is linked with."""
    one = nest("k", "", op("tanh", op("add", A, P)), reduce=name, out_dtypes=stored)
    plain = runtime.host()
    if platform.machine() in ("x86_64", "AMD64"):
        plain = replace(plain, cpu="haswell", features="")
    runtime.compile_ir(emit(gram_plan.plan(one, 32, 16, {"m": 1, "n": 1, "k": 10_000})), plain)
