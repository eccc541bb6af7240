"""Long reductions: roundings grow with the block of k and the number of blocks, not with their product."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest

from kernmantle.compiler.nest import Buffer, Nest
from kernmantle.ir.node import Node, var
from kernmantle.ir.reductions import REDUCTIONS, Reduction, fold, semiring
from kernmantle.testing.tolerances import FORMATS, MAP_ROUNDINGS

from .llvm_nests import A, B, Kernel, build, outputs, run

LENGTH = 2_000_000
SUM = Node("add", (A, B))
S, T = var("s0"), var("t")
NORM = semiring(Node("sqrt", (Node("add", (Node("mul", (S, S)), Node("mul", (T, T)))),)), 0)


@cache
def compiled(reduction: Reduction, out: str) -> tuple[Nest, Kernel]:
    buffers = Buffer("x0", "mk", "f32"), Buffer("x1", "nk", "f32")
    one = Nest(buffers, (), (Buffer("out0", "mn", out),), (SUM,), (reduction,), (var("s0"),), "f32")
    return one, build(one)


def result(reduction: Reduction, x: np.ndarray, y: np.ndarray, out: str = "f32") -> tuple[np.ndarray, int]:
    """The reduction of x[m, k] + y[n, k], and the block of k."""
    one, kernel = compiled(reduction, out)
    sizes = {"m": len(x), "n": len(y), "k": x.shape[1]}
    got = outputs(one, sizes)
    run(kernel, one, [x[None, None, None], y[None, None, None], *got], sizes)
    return got[0][0, 0, 0], kernel.plan.depth


def data(first: float, rest: float) -> tuple[np.ndarray, np.ndarray]:
    """Equal terms, whose roundings all go the same way."""
    x, y = np.full((2, LENGTH), rest, np.float32), np.zeros((3, LENGTH), np.float32)
    x[:, 0] = first
    return x, y


def bound(depth: int, each: int = 1) -> float:
    """Largest error of a block's ``depth`` steps and the joining of the blocks, relative to the sum of the terms."""
    steps = depth + math.ceil(LENGTH / depth)
    return FORMATS["float32"].roundoff * (each * steps + MAP_ROUNDINGS)


def test_long_sum():
    x, y = data(0.1, 0.1)
    got, depth = result(REDUCTIONS["sum"], x, y)
    want = x.astype(np.float64).sum(1)[:, None]
    assert np.abs(got / want - 1).max() <= bound(depth)


def test_long_logsumexp():
    x, y = data(1.0, 0.3)
    got, depth = result(REDUCTIONS["logsumexp"], x, y)
    want = 1 + np.log(np.exp(x.astype(np.float64) - 1).sum(1))[:, None]
    weight, stored = bound(depth, each=3), FORMATS["float32"].roundoff * np.abs(want)
    assert np.all(np.abs(got - want) <= weight + 2 * stored)


def test_long_norm_of_a_users_semiring():
    x, y = data(0.1, 0.1)
    got, depth = result(NORM, x, y)
    want = np.sqrt((x.astype(np.float64) ** 2).sum(1))[:, None]
    assert np.abs(got / want - 1).max() <= bound(depth, each=2)


def test_long_product():
    """Of powers of two, exact in any order as long as every factor is met once."""
    rng = np.random.default_rng(0)
    exponents = rng.choice([-1, 1], LENGTH)
    exponents[1::2] = -exponents[::2]
    exponents[: -1 : LENGTH // 7] += 1
    x = np.ldexp(np.float32(1), exponents)[None].astype(np.float32)
    got, _ = result(REDUCTIONS["prod"], x, np.zeros((3, LENGTH), np.float32))
    assert got.tolist() == [[2.0 ** int(exponents.sum())] * 3]


@pytest.mark.parametrize("name", ["argmin", "argmax"])
def test_the_first_of_equals_in_different_blocks(name):
    x, y = np.ones((1, 5000), np.float32), np.zeros((1, 5000), np.float32)
    x[0, [1400, 1401, 3000]] = 0 if name == "argmin" else 2
    assert result(REDUCTIONS[name], x, y, "i64")[0].item() == 1400
    x[0, [2500, 4000]] = math.nan
    assert result(REDUCTIONS[name], x, y, "i64")[0].item() == 2500


@pytest.mark.parametrize("name", ["sum", "prod", "min", "max", "logsumexp"])
@pytest.mark.parametrize("place", [0, 1400, 4999])
def test_nan_in_any_block(name, place):
    x, y = np.ones((1, 5000), np.float32), np.zeros((17, 5000), np.float32)
    x[0, place] = math.nan
    assert np.isnan(result(REDUCTIONS[name], x, y)[0]).all()


def test_a_fold_runs_in_order_over_blocks():
    halved = fold(Node("add", (Node("mul", (S, var("x1"))), A)), 0)
    x, y = np.zeros((1, 3000), np.float32), np.full((1, 3000), 0.5, np.float32)
    x[0, 2990:] = 1
    assert result(halved, x, y)[0].item() == 2 - 2.0**-9
    x[0, 2990:], x[0, 0], y[:] = 0, 1, 1
    assert result(halved, x, y)[0].item() == 1
