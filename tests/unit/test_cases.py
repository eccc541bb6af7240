"""Of the combinations of choices enough are run every time, and none is lost."""

import itertools

from ..cases import first, pairwise, sampled

CHOICES = ("values", "gradients", "tangents"), ("f32", "bf16"), (32, 80, 128, 1)


def run_every_time(cases):
    return [case for case in cases if not hasattr(case, "marks")]


def test_any_two_choices_meet():
    cases = pairwise(*CHOICES)
    assert [getattr(case, "values", case) for case in cases] == list(itertools.product(*CHOICES))
    kept = run_every_time(cases)
    assert len(kept) == 12 < len(cases) == 24
    for one, other in itertools.combinations(range(3), 2):
        met = {(case[one], case[other]) for case in kept}
        assert met == set(itertools.product(CHOICES[one], CHOICES[other]))
    assert all(mark.name == "exhaustive" for case in cases if hasattr(case, "marks") for mark in case.marks)


def test_every_third_case_is_run_every_time():
    cases = sampled(3, [(place,) for place in range(8)])
    assert run_every_time(cases) == [(0,), (3,), (6,)]
    assert [getattr(case, "values", case) for case in cases] == [(place,) for place in range(8)]


def test_the_first_cases_are_run_every_time():
    cases = first(2, "abcd")
    assert run_every_time(cases) == ["a", "b"]
    assert [case.values for case in cases[2:]] == [("c",), ("d",)]
