"""Memory of results: as torch lays it out, on a GPU by the function that compiled code takes it with."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernmantle.errors import OutOfMemoryError
from kernmantle.torch_ops import execute

GPU = torch.device("cuda", 0)
LIKE = SimpleNamespace(is_cuda=True, dtype=torch.float64, device=GPU, get_device=lambda: 0)


@pytest.fixture
def gpu(monkeypatch):
    """A GPU that takes plain tuples of plain numbers, as torch's function does, in memory of the CPU."""
    taken = []

    def take(shape, steps, dtype):
        assert type(shape) is type(steps) is tuple
        assert all(type(number) is int for number in (*shape, *steps))
        taken.append(shape)
        return torch.empty_strided(shape, steps, dtype=dtype)

    monkeypatch.setattr(execute, "empty_on_gpu", take)
    monkeypatch.setattr(execute, "takes_memory_directly", lambda index: index == 0)
    return taken


@given(st.lists(st.integers(0, 5), max_size=4).map(tuple))
def test_results_lie_in_one_piece(shape):
    assert execute._in_one_piece(shape) == (shape, torch.empty(shape).stride())


@pytest.mark.parametrize("shape", [(3, 4), torch.Size([3, 4]), [3, 4], (np.int64(3), 4), (), (0, 2)], ids=repr)
def test_shapes_of_every_kind(shape, gpu):
    found = (
        execute.allocate_as(LIKE, shape),
        *execute.allocate_each(LIKE, execute.layouts_in_one_piece([shape])),
        execute.allocate(shape, torch.float64, GPU),
    )
    for tensor in found:
        assert tensor.shape == torch.Size(shape)
        assert tensor.dtype == torch.float64
        assert tensor.is_contiguous()
    assert len(gpu) == 3


def test_memory_that_is_not_there_is_named(gpu, monkeypatch):
    def full(*_):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(execute, "empty_on_gpu", full)
    for call in (
        lambda: execute.allocate_as(LIKE, (1 << 15, 1 << 15)),
        lambda: execute.allocate_each(LIKE, execute.layouts_in_one_piece([(1 << 15, 1 << 15)])),
    ):
        with pytest.raises(OutOfMemoryError, match=r"\(32768, 32768\) \(8.0 GiB\) on cuda:0"):
            call()


def test_other_devices_are_taken_memory_of_by_torch(gpu):
    assert execute.allocate((2, 3), torch.float32, torch.device("cpu")).shape == (2, 3)
    assert execute.allocate_as(torch.ones(2), (2, 3)).dtype == torch.float32
    assert gpu == []
