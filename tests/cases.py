"""Which cases of a test run every time, and which only where `-m exhaustive` asks for all."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import pytest


def _left_out(case: Any) -> Any:
    if isinstance(case, type(pytest.param())):
        return pytest.param(*case.values, marks=(*case.marks, pytest.mark.exhaustive), id=case.id)
    return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.exhaustive)


def first(count: int, cases: Iterable[Any]) -> list[Any]:
    """The cases; those after the first ``count`` only run with all."""
    return [case if place < count else _left_out(case) for place, case in enumerate(cases)]


def sampled(step: int, cases: Iterable[Any]) -> list[Any]:
    """The cases; those that are no ``step``-th only run with all."""
    return [case if place % step == 0 else _left_out(case) for place, case in enumerate(cases)]


def _pairs(case: Sequence[Any]) -> set[tuple[tuple[int, str], ...]]:
    named = [(place, repr(value)) for place, value in enumerate(case)]
    return set(itertools.combinations(named, 2))


def pairwise(*choices: Iterable[Any]) -> list[Any]:
    """All combinations of choices; every time run so many that any two choices of different kinds meet.

    Each next one is that with the most pairs that no earlier one has.
    """
    cases = list(itertools.product(*choices))
    unmet, kept = set().union(*map(_pairs, cases)), set[int]()
    while unmet:
        best = max(range(len(cases)), key=lambda place: (len(unmet & _pairs(cases[place])), -place))
        kept.add(best)
        unmet -= _pairs(cases[best])
    return [case if place in kept else _left_out(case) for place, case in enumerate(cases)]


def every_subset(leaves: Sequence[Any]) -> Iterable[list[Any]]:
    """Yield each choice of one tensor and more, which alone then require a gradient."""
    for asked in itertools.product((False, True), repeat=len(leaves)):
        if any(asked):
            for leaf, needs in zip(leaves, asked, strict=True):
                leaf.requires_grad_(needs)
            yield list(itertools.compress(leaves, asked))
