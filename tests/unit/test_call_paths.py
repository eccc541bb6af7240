"""Warm calls pass few Python functions of the library, in few files: no more than they do today."""

from __future__ import annotations

from functools import partial

import pytest
import torch

import kernmantle as km
from benchmarks import host
from benchmarks.calls import passed
from kernmantle.pairwise.kernel import Kernel

CASES = {row.name: row for row in host.suite("cpu").rows}
MOST = {
    "contract 64 x 64 x 16, forward": (13, 8),
    "cdist 16 x 16 x 4, forward": (19, 11),
    "k.matmul 64 x 64 x 8, forward": (19, 11),
    "k.matmul 64 x 64 x 8 of scales, forward": (19, 11),
    "k(x, y) 64 x 64 x 8, forward": (16, 11),
    "k(x, y) 64 x 64 x 8 to out, forward": (16, 12),
    "kron_matmul 16 x 8^3, forward": (16, 8),
    "kron_matmul 16 x 8^3, forward and backward": (41, 12),
    "kron_sparse_matmul 16 x (6,64,64,1), forward": (13, 9),
    "KSLinear 16 x 384 to 1536, forward": (10, 8),
    "KSLinear 16 x 384 to 1536, forward and backward": (17, 9),
    "solve_cholesky 32, forward": (42, 12),
}
"""Functions and files of a warm call on a CPU."""
THROUGH = {
    "kron_matmul": {"first": (21, 10), "second": (12, 5), "warm": (7, 4)},
    "KSLinear.forward": {"first": (18, 8), "second": (10, 5), "warm": (4, 3)},
}
"""Functions to which the argument x is passed, and their files: of the first two calls with a layout, and of a warm
one."""


@pytest.mark.parametrize("name", MOST)
def test_a_warm_call_is_short(name: str) -> None:
    case = CASES[name]
    call = case.ours(case.problem.inputs("cpu"))
    for _ in range(3):
        call()
    found = passed(call)
    assert len(found) <= MOST[name][0], found
    assert len({function.file for function in found}) <= MOST[name][1], found


@pytest.mark.parametrize("name", THROUGH)
def test_x_is_passed_through_few_functions(name: str) -> None:
    layer, factors = km.KSLinear(384, 1536, host.MONARCH), [torch.randn(7, 7) for _ in range(2)]
    x = torch.randn(5, 384 if name == "KSLinear.forward" else 49)
    call = partial(layer, x) if name == "KSLinear.forward" else partial(km.kron_matmul, x, factors)
    with torch.no_grad():
        for when in ("first", "second", "warm"):
            found = passed(call, through=x)
            assert len(found) <= THROUGH[name][when][0], found
            assert len({function.file for function in found}) <= THROUGH[name][when][1], found
            call()


def test_only_what_has_x_is_counted() -> None:
    x, y = torch.randn(4, 3), torch.randn(5, 3)
    km.cdist(x, y)
    every, own = passed(lambda: km.cdist(x, y)), passed(lambda: km.cdist(x, y), through=x)
    assert own[0].name == every[0].name == "cdist"
    assert 1 < len(own) < len(every)
    assert passed(lambda: km.cdist(x, y), through=torch.randn(4, 3)) == []


@pytest.mark.parametrize("call", ["matrix", "matrix to out", "product", "product to out"])
def test_lengthscales_take_no_further_step(call: str) -> None:
    """The functions that a warm call passes are those of a kernel of one length, and what lists the reciprocals."""
    x, y, v, lengths = torch.randn(64, 8), torch.randn(64, 8), torch.randn(64, 4), torch.rand(8) + 0.5
    out = torch.empty(64, 4 if "product" in call else 64) if "out" in call else None

    def functions(kernel: Kernel) -> list[str]:
        run = partial(kernel.matmul, x, y, v, out=out) if "product" in call else partial(kernel, x, y, out=out)
        for _ in range(3):
            run()
        return [found.name for found in passed(run) if not found.name.endswith("listcomp>")]

    assert functions(km.Gaussian(lengthscales=lengths)) == functions(km.Gaussian(1.5))


def test_what_is_passed_is_counted() -> None:
    case = CASES["kron_matmul 16 x 8^3, forward"]
    call = case.ours(case.problem.inputs("cpu"))
    for _ in range(3):
        call()
    found = passed(call)
    assert found[0].file == "structured/kron/matmul.py"
    assert found[0].calls == 1
    assert found == passed(call)
