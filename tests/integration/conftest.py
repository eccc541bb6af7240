"""Every test of a contraction runs on every backend of this machine."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

import kernmantle as km
from kernmantle.backend import REFERENCE, backends
from kernmantle.compat import MODULES

BACKENDS = [
    REFERENCE,
    *(pytest.param(row.name, marks=[pytest.mark.cuda] * (row.device == "cuda")) for row in backends().values()),
]


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    """Name of the backend that is in force during the test."""
    with km.config(backend=request.param):
        yield request.param


@pytest.fixture
def device(backend: str) -> str:
    """Where the tensors of a test belong."""
    return "cpu" if backend == REFERENCE else backends()[backend].device


@pytest.fixture
def reference() -> Iterator[None]:
    """The evaluator that defines what a program means, for tests of programs rather than of kernels."""
    with km.config(backend="reference"):
        yield


@pytest.fixture
def without_stand_ins() -> Iterator[None]:
    """What a test puts in place of other libraries is gone after it."""
    before = dict(sys.modules)
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] in MODULES and name not in before]:
        del sys.modules[name]
