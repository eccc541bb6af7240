"""Random contractions (equation, map, reductions, type, strides, batch, epilogue, out=, parameters) by brute force."""

from __future__ import annotations

import pytest
import torch

import kernmantle as km
from tests.random_programs import check, generate

SLICE, WHOLE = 25, 10_000
FOUND = (7, 31, 76, 9471)
"""Seeds of equations whose operands have no axis, and of one result in bfloat16."""


def _failures(seeds):
    failures = []
    for seed in seeds:
        case = generate(seed)
        try:
            check(case)
        except Exception as error:  # noqa: BLE001, all seeds are tried
            failures.append(f"seed {seed}: {type(error).__name__}: {error}\n    {case}")
    return failures


def test_a_slice_of_the_programs():
    failures = _failures([*FOUND, *range(1000, 1000 + SLICE)])
    assert not failures, "\n".join(failures)


@pytest.mark.exhaustive
@pytest.mark.parametrize("first", range(0, WHOLE, 500))
def test_every_program(first):
    failures = _failures(range(first, first + 500))
    assert not failures, "\n".join(failures)


def test_the_reference_runs_the_programs_too():
    with km.config(backend="reference"):
        failures = _failures(range(2000, 2020))
    assert not failures, "\n".join(failures)


def test_the_driver_sees_a_wrong_result(monkeypatch):
    run = km.Contraction.run

    def wrong(self, *arguments, **options):
        result = run(self, *arguments, **options)
        return tuple(value + 1 for value in result) if isinstance(result, tuple) else result + 1

    monkeypatch.setattr(km.Contraction, "run", wrong)
    seeds = [seed for seed in range(20) if generate(seed).operands[0].is_floating_point()]
    assert len(_failures(seeds)) > len(seeds) * 0.8


def test_the_generator_covers_what_it_names():
    cases = [generate(seed) for seed in range(300)]
    assert {kind for case in cases for kind in case.reduce} >= {
        "sum",
        "prod",
        "min",
        "max",
        "logsumexp",
        "argmin",
        "any",
    }
    assert {case.operands[0].dtype for case in cases} >= {torch.float64, torch.float32, torch.bfloat16, torch.uint8}
    assert any(case.tracked for case in cases)
    assert any(case.epilogue for case in cases)
    assert any(not t.is_contiguous() for case in cases for t in case.operands)
    assert any(case.options["out"] for case in cases)
