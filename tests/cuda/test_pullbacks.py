"""Every tile of the pullbacks on the GPU against float64."""

import pytest

from .pull_nests import PullCase, cases

pytestmark = pytest.mark.cuda


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_agrees_with_float64(case: PullCase) -> None:
    from .harness import Machine, limits
    from .pull_harness import disagreement, run

    plan = case.plan(limits())
    if plan is None:
        pytest.skip("this GPU does not have the tile")
    assert disagreement(case, plan, run(Machine(), case, plan)) <= 1


def test_the_comparison_can_fail() -> None:
    from .harness import Machine, limits
    from .pull_harness import disagreement, run

    case = next(case for case in cases() if case.name == "eight_signs_0")
    plan = case.plan(limits())
    assert plan is not None
    found = run(Machine(), case, plan).copy()
    found[0, 0, 0, 0] += 1
    assert disagreement(case, plan, found) > 1
