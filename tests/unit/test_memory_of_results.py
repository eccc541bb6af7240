"""Memory of results: as torch lays it out, on a GPU by the function that compiled code takes it with."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernmantle.errors import OutOfMemoryError
from kernmantle.torch_ops import cuda, execute

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
    monkeypatch.setattr(execute, "current_gpu", lambda: 0)
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


NO_MEMORY = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 8.00 GiB"),
    RuntimeError("CUDA error: out of memory"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory"),
    RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes"),
    RuntimeError("Storage size calculation overflowed with sizes=[4611686018427387904]"),
]
OTHERS = [
    torch.AcceleratorError("CUDA error: an illegal memory access was encountered"),
    torch.AcceleratorError("CUDA error: operation not permitted when stream is capturing"),
    RuntimeError("Trying to create tensor with negative dimension -1: [-1]"),
]


def takers():
    """Every function that takes memory, with what it says where there is none."""
    layouts = execute.layouts_in_one_piece([(2, 3)])
    return [
        (lambda: execute.allocate_as(LIKE, (2, 3)), r"\(2, 3\)"),
        (lambda: execute.allocate_each(LIKE, layouts), r"\(2, 3\)"),
        (lambda: execute.allocate((2, 3), torch.float64, GPU), r"\(2, 3\)"),
        (lambda: cuda.scratch(24, GPU, "this needs", "that"), "this needs 0.0 GiB on cuda:0 in addition"),
    ]


@pytest.mark.parametrize("error", [*NO_MEMORY, *OTHERS], ids=lambda error: str(error)[:40])
def test_only_memory_that_ran_out_is_called_so(error, gpu, monkeypatch):
    def failing(*_, **__):
        raise error

    monkeypatch.setattr(execute, "empty_on_gpu", failing)
    for call, said in takers():
        with monkeypatch.context() as during:
            during.setattr(torch, "empty", failing)
            with pytest.raises((RuntimeError, OutOfMemoryError)) as found:
                call()
        if error in OTHERS:
            assert found.value is error
        else:
            assert isinstance(found.value, OutOfMemoryError)
            assert found.match(said)
            assert found.value.__cause__ is error


def test_other_devices_are_taken_memory_of_by_torch(gpu):
    assert execute.allocate((2, 3), torch.float32, torch.device("cpu")).shape == (2, 3)
    assert execute.allocate_as(torch.ones(2), (2, 3)).dtype == torch.float32
    assert gpu == []
