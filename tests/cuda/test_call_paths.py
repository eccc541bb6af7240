"""Warm calls on CUDA tensors pass few Python functions of the library, in few files."""

from __future__ import annotations

import pytest

from benchmarks import host
from benchmarks.calls import passed

pytestmark = pytest.mark.cuda
CASES = {row.name: row for row in host.suite("cpu").rows}
MOST = {"kron_matmul 16 x 8^3, forward": (25, 8), "KSLinear 16 x 384 to 1536, forward": (16, 12)}


@pytest.mark.parametrize("name", MOST)
def test_a_warm_call_is_short(name: str) -> None:
    case = CASES[name]
    call = case.ours(case.problem.inputs("cuda"))
    for _ in range(3):
        call()
    found = passed(call)
    assert len(found) <= MOST[name][0], found
    assert len({function.file for function in found}) <= MOST[name][1], found
