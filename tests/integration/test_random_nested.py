"""Random contractions of scores against brute force: values on every backend, two orders of derivatives, tangents."""

from __future__ import annotations

import pytest

import kernmantle as km
from tests.random_nested import REDUCTIONS, check, generate, is_tracked

SLICE, CHUNKS, EACH = 20, 10, 52
TRACKED = 200
"""Programs of all chunks whose derivatives are compared, at least."""


def _failures(seeds, derivatives, device="cpu"):
    failures = []
    for seed in seeds:
        case = generate(seed)
        try:
            check(case, derivatives, device)
        except Exception as error:  # noqa: BLE001, all seeds are tried
            failures.append(f"seed {seed}: {type(error).__name__}: {error}\n    {case}")
    return failures


def test_a_slice_of_the_programs():
    failures = _failures(range(SLICE), 0)
    assert not failures, "\n".join(failures)


def test_derivatives_of_a_slice(reference):
    failures = _failures(range(SLICE, SLICE + 20), 2)
    assert not failures, "\n".join(failures)


@pytest.mark.cuda
def test_a_slice_on_the_gpu():
    failures = [*_failures(range(SLICE), 0, "cuda"), *_failures(range(SLICE, SLICE + 20), 2, "cuda")]
    assert not failures, "\n".join(failures)


def _seeds(chunk):
    return range(1000 + chunk * EACH, 1000 + (chunk + 1) * EACH)


@pytest.mark.exhaustive
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_every_program(chunk):
    failures = _failures(_seeds(chunk), 0)
    with km.config(backend="reference"):
        failures += _failures(_seeds(chunk), 2)
    assert not failures, "\n".join(failures)


@pytest.mark.exhaustive
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_derivatives_of_every_program_by_kernels(chunk):
    failures = _failures(_seeds(chunk), 2)
    assert not failures, "\n".join(failures)


@pytest.mark.cuda
@pytest.mark.exhaustive
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_every_program_on_the_gpu(chunk):
    failures = _failures(_seeds(chunk), 2, "cuda")
    assert not failures, "\n".join(failures)


def test_enough_programs_have_derivatives():
    assert sum(is_tracked(generate(seed)) for chunk in range(CHUNKS) for seed in _seeds(chunk)) >= TRACKED


def test_the_generator_covers_every_reduction():
    assert {generate(seed).kind for seed in range(200)} == set(REDUCTIONS)


def test_the_driver_sees_a_wrong_result(monkeypatch):
    contract = km.contract
    monkeypatch.setattr(km, "contract", lambda *args, **options: contract(*args, **options) + 1)
    seeds = [seed for seed in range(40) if generate(seed).kind in ("sum", "softmax", "logsumexp")]
    assert len(_failures(seeds, 0)) == len(seeds) > 3
