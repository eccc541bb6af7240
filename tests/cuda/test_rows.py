"""Every row nest on the GPU against numpy in float64."""

import numpy as np
import pytest

from .row_nests import RowCase, cases

pytestmark = pytest.mark.cuda


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_agrees_with_float64(case: RowCase) -> None:
    from .harness import Machine
    from .row_harness import check, run

    check(case, run(Machine(), case))


@pytest.mark.parametrize("name", ["product_3", "largest_20", "logsumexp_40"])
def test_the_comparison_can_fail(name: str) -> None:
    from .harness import Machine
    from .row_harness import check, run

    case = next(case for case in cases() if case.name == name)
    found = run(Machine(), case)
    found[0].flat[0] += 1
    with pytest.raises(AssertionError):
        check(case, found)


def test_runs_give_the_same_bits_again() -> None:
    from .harness import Machine
    from .row_harness import run

    case = next(case for case in cases() if case.name == "few_rows")
    first, second = (run(Machine(), case)[0] for _ in range(2))
    assert np.array_equal(first, second)
