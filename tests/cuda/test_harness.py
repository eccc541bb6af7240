"""Every case of the harnesses agrees with float64 on the GPU, and a result that is off is seen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from kernmantle.backends.cuda.squares_plan import PROMISE

from . import log_products, nests, row_nests, squares, vjp_nests

pytestmark = pytest.mark.cuda
CASES: dict[str, Sequence[Any]] = {
    "nest": nests.cases(), "rows": row_nests.cases(), "vjp": vjp_nests.cases(),
    "squares": squares.squares_cases(), "logarithms": log_products.log_cases(),
}  # fmt: skip
SPOILT = {
    "nest": ("l1_f32", "plus_i32", "reduce_argmin", "partial_sum"),
    "rows": ("product_3", "largest_20", "logsumexp_40"), "vjp": ("eight_signs_0",), "squares": ("squares_k1",),
}  # fmt: skip
"""Cases of which an entry is changed."""


def run(kind: str, case: Any) -> list[np.ndarray[Any, Any]]:
    """Return copies of the results of a case."""
    from . import harness, row_harness, vjp_harness

    machine = harness.Machine()
    if kind == "vjp":
        plan = case.plan(harness.limits())
        if plan is None:
            pytest.skip("this GPU does not have the tile")
        return [vjp_harness.run(machine, case, plan).copy()]
    if kind in ("squares", "logarithms"):
        return [harness.run_squares(machine, case).copy()]
    return [found.copy() for found in (machine.run(case) if kind == "nest" else row_harness.run(machine, case))]


def check(kind: str, case: Any, found: list[np.ndarray[Any, Any]]) -> None:
    """Check results of a case."""
    from . import harness, row_harness, vjp_harness

    if kind == "nest":
        assert harness.disagreement(case, found) <= 1
    elif kind == "rows":
        row_harness.check(case, found)
    elif kind == "vjp":
        assert vjp_harness.disagreement(case, case.plan(harness.limits()), found[0]) <= 1
    elif kind == "logarithms":
        assert log_products.log_error(case, found[0]) <= 1
    else:
        assert squares.error(case, found[0]) <= PROMISE
    if case.name in ("symmetric_130", "large_symmetric") or (kind == "squares" and "symmetric" in case.name):
        out = found[0].squeeze()
        assert np.array_equal(out, out.T, equal_nan=True)
        assert not np.nan_to_num(out.diagonal()).any()


@pytest.mark.parametrize(
    ("kind", "case"), [pytest.param(kind, case, id=case.name) for kind, cases in CASES.items() for case in cases]
)
def test_agrees_with_float64(kind: str, case: Any) -> None:
    check(kind, case, run(kind, case))


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in SPOILT.items() for name in names])
def test_a_result_that_is_off_is_seen(kind: str, name: str) -> None:
    case = next(case for case in CASES[kind] if case.name == name)
    found = run(kind, case)
    if kind == "squares":
        found[0].flat[-1] *= 1 + 2 * PROMISE
    else:
        found[-1 if kind == "nest" else 0].flat[0] += 1
    with pytest.raises(AssertionError):
        check(kind, case, found)
