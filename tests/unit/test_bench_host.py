"""The suite of host time: calls give what float64 gives, a wrong one is seen, the clock stops when calls return."""

from dataclasses import replace

import pytest
import torch

from benchmarks import host
from benchmarks.case import Peer
from benchmarks.timing import CLOCKS

from ..measured import measured, statuses

ROWS = host.suite("cpu").rows


@pytest.mark.parametrize("case", ROWS, ids=lambda case: case.name)
def test_everybody_is_right(case):
    row = measured(case)
    assert {found["status"] for found in row["results"].values()} == {"ok"}, row["results"]
    assert {"kernmantle", "torch", host.YARDSTICK} <= row["results"].keys()
    assert row["status"] == "ok"


@pytest.mark.parametrize("case", ROWS[:4], ids=lambda case: case.name)
def test_a_wrong_result_is_not_timed(case):
    wrong = Peer("wrong", lambda given: lambda: case.ours(given)() * 1.001)
    assert statuses(replace(case, peers=(wrong,)))["wrong"] == "wrong"


def test_every_family_has_its_step_and_both_clocks_on_a_gpu():
    names = {row.name for row in ROWS}
    families = (
        "contract",
        "cdist",
        "k.matmul",
        "k(x, y)",
        "kron_matmul",
        "kron_sparse_matmul",
        "KSLinear",
        "solve_cholesky",
    )
    for family in families:
        own = [name for name in names if name.startswith(family)]
        assert any(name.endswith("forward") for name in own)
        assert any(name.endswith("forward and backward") for name in own)
    on_gpu = host.suite("cuda").rows
    assert names <= {row.name for row in on_gpu}
    assert {row.clock for row in on_gpu} == {"wall", "host"}
    assert any("bf16" in row.name for row in on_gpu)


def test_a_step_gives_all_gradients():
    (operation,) = [each for each in host._operations("cpu") if each.name.startswith("kron_sparse")]
    seen = []

    def plain(x, weight):
        seen.append(weight)
        return host._factor(x, weight)

    given = operation.inputs("cpu")
    found = host._step(operation, host._plain(plain))(given)()
    assert seen[-1].grad is not None
    torch.testing.assert_close(found, host._step(operation, operation.ours)(given)())


def test_the_clock_of_the_host_counts_calls():
    counted = []
    assert CLOCKS["host"](lambda: counted.append(1), 5, True) > 0
    assert len(counted) == 6
