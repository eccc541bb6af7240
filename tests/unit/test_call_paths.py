"""Warm calls pass few Python functions of the library, in few files: no more than they do today."""

from __future__ import annotations

import pytest

from benchmarks import host
from benchmarks.calls import passed

CASES = {row.name: row for row in host.suite("cpu").rows}
MOST = {
    "contract 64 x 64 x 16, forward": (15, 10),
    "cdist 16 x 16 x 4, forward": (20, 13),
    "k.matmul 64 x 64 x 8, forward": (27, 15),
    "k.matmul 64 x 64 x 8 of scales, forward": (28, 15),
    "k(x, y) 64 x 64 x 8, forward": (19, 14),
    "k(x, y) 64 x 64 x 8 to out, forward": (21, 14),
    "kron_matmul 16 x 8^3, forward": (19, 11),
    "kron_matmul 16 x 8^3, forward and backward": (42, 13),
    "kron_sparse_matmul 16 x (6,64,64,1), forward": (15, 12),
    "KSLinear 16 x 384 to 1536, forward": (14, 11),
    "KSLinear 16 x 384 to 1536, forward and backward": (20, 11),
    "solve_cholesky 32, forward": (42, 12),
}
"""Functions and files of a warm call on a CPU."""


@pytest.mark.parametrize("name", MOST)
def test_a_warm_call_is_short(name: str) -> None:
    case = CASES[name]
    call = case.ours(case.problem.inputs("cpu"))
    for _ in range(3):
        call()
    found = passed(call)
    assert len(found) <= MOST[name][0], found
    assert len({function.file for function in found}) <= MOST[name][1], found


def test_what_is_passed_is_counted() -> None:
    case = CASES["kron_matmul 16 x 8^3, forward"]
    call = case.ours(case.problem.inputs("cpu"))
    call()
    found = passed(call)
    assert found[0].file == "structured/kron/matmul.py"
    assert found[0].calls == 1
    assert found == passed(call)
