"""Every nest on the GPU against float64."""

import pytest

from .nests import Case, cases, expected

pytestmark = pytest.mark.cuda


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_agrees_with_float64(case: Case) -> None:
    from .harness import Machine, disagreement

    assert disagreement(case, Machine().run(case)) <= 1


@pytest.mark.parametrize("name", ["l1_f32", "plus_i32", "reduce_argmin", "partial_sum"])
def test_the_comparison_can_fail(name: str) -> None:
    from .harness import Machine, disagreement

    case = next(case for case in cases() if case.name == name)
    found = [array.copy() for array in Machine().run(case)]
    found[-1].flat[0] += 1
    assert disagreement(case, found) > 1
    assert expected(case, case.arrays())


def test_symmetric_is_bitwise_symmetric_with_a_zero_diagonal() -> None:
    from .harness import Machine

    for name in ("symmetric_130", "large_symmetric"):
        case = next(case for case in cases() if case.name == name)
        out = Machine().run(case)[0].squeeze()
        assert (out == out.T).all()
        assert (out.diagonal() == 0).all()
