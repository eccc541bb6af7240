"""Kernels that a call needs at once are compiled at once; kernels that are only noted are not compiled."""

from __future__ import annotations

import threading

import pytest

import kernmantle as km
from kernmantle.errors import CompileError
from kernmantle.runtime.cache import Built, Key
from kernmantle.runtime.kernel_store import Job, collected, fetch_all

PATIENCE = 20.0


def job(name: str, function) -> Job:
    return Job(Key("none", "none", name), function, (name,))


@pytest.fixture(autouse=True)
def _own_cache(tmp_path):
    with km.config(cache_dir=str(tmp_path)):
        yield


def test_jobs_are_built_side_by_side_and_come_in_order() -> None:
    together = threading.Barrier(3, timeout=PATIENCE)

    def build(name: str) -> Built:
        together.wait()
        return Built(name.encode())

    names = ["one", "two", "three"]
    assert fetch_all([job(name, build) for name in names]) == [b"one", b"two", b"three"]
    assert fetch_all([job(name, None) for name in reversed(names)]) == [b"three", b"two", b"one"]


def test_an_error_of_one_is_the_error_of_all() -> None:
    def build(name: str) -> Built:
        if name == "bad":
            raise CompileError(name)
        return Built(name.encode())

    with pytest.raises(CompileError, match="bad"):
        fetch_all([job("good", build), job("bad", build)])


def test_noted_jobs_are_not_built() -> None:
    with collected() as jobs:
        assert fetch_all([job("one", None), job("two", None)]) == [None, None]
    assert len(jobs) == 2
    assert fetch_all([]) == []
