"""What is said where cuSOLVERMp is missing, not found, or does not go with NCCL."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from kernmantle.errors import BackendError
from kernmantle.linalg import cusolvermp


class DynamicLibNotFoundError(RuntimeError):
    """As of cuda-pathfinder."""


def grid(monkeypatch, error):
    """A grid whose library answers its first call so."""

    def create(*_):
        raise error

    monkeypatch.setattr(cusolvermp, "bindings", lambda: SimpleNamespace(create=create))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: SimpleNamespace(cuda_stream=0))
    monkeypatch.setattr(cusolvermp.nccl, "version", lambda: (2, 21, 5))
    return lambda: cusolvermp.Grid(0, 0, 2, torch.device("cuda", 0))


def test_a_library_that_is_not_found(monkeypatch):
    with pytest.raises(BackendError, match="LD_LIBRARY_PATH") as found:
        grid(monkeypatch, DynamicLibNotFoundError("a listing\nof many\nfiles"))()
    assert "listing" not in str(found.value)
    assert "NCCL" not in str(found.value)


def test_a_library_that_does_not_go_with_nccl(monkeypatch):
    with pytest.raises(BackendError, match=r"2 GPUs: internal error\..* NCCL 2\.29; here 2\.21\.5"):
        grid(monkeypatch, RuntimeError("internal error"))()


def test_missing_packages(monkeypatch):
    def absent(name):
        raise ImportError(name)

    monkeypatch.setattr(cusolvermp, "import_module", absent)
    cusolvermp.bindings.cache_clear()
    with pytest.raises(BackendError, match=r"kernmantle\[distributed\]"):
        cusolvermp.bindings()
    cusolvermp.bindings.cache_clear()


@pytest.mark.parametrize("n", [0, 1, 255, 256, 257, 2000])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_columns_are_dealt_out_in_blocks(n, size):
    parts = [cusolvermp.columns_of(n, rank, size).tolist() for rank in range(size)]
    assert sorted(column for part in parts for column in part) == list(range(n))
    for rank, part in enumerate(parts):
        assert part == sorted(part)
        assert {column // 256 % size for column in part} <= {rank}
