"""The workspace of a Kronecker product, asked for beforehand, against what is allocated."""

from types import SimpleNamespace

import pytest
import torch

import kernmantle as km
from kernmantle.errors import DeviceError, ParameterError, ShapeError
from kernmantle.structured.kron import cpu
from kernmantle.structured.kron.matmul import multiply
from kernmantle.torch_ops.info import RunInfo

LARGE = [(96, 96)] * 3
CASES = {
    "fused": ((64, 512), [(8, 8)] * 3, {}),
    "one by one": ((64, 512), [(8, 8)] * 3, {"fuse": False}),
    "growing": ((5, 30), [(2, 7), (3, 11), (5, 13)], {"fuse": False}),
    "left": ((64, 9), [(8, 4), (4, 2), (2, 8)], {"side": "left", "fuse": False}),
    "large": ((2, 96**3), LARGE, {}),
    "double": ((2, 96**3), LARGE, {"dtype": torch.float64}),
    "batch": ((3, 1, 7, 60), [(2, 4, 5), 3, (5, 4)], {"fuse": False}),
    "vector": ((60,), [(4, 5), 3, (5, 4)], {"fuse": False}),
    "half": ((4, 512), [(8, 8)] * 3, {"dtype": torch.bfloat16, "fuse": False}),
}


def arrays(x, factors, dtype, device):
    return torch.ones(x, dtype=dtype, device=device), [
        factor if isinstance(factor, int) else torch.ones(factor, dtype=dtype, device=device) for factor in factors
    ]


def most_at_once(call):
    """Bytes that torch's allocator of the CPU holds at most during a call, beyond what it held before."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        call()
    held = most = 0
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most


@pytest.mark.parametrize("name", CASES)
def test_what_is_allocated(name):
    shape, factors, given = CASES[name]
    dtype = given.get("dtype", torch.float32)
    options = {key: value for key, value in given.items() if key != "dtype"}
    asked = km.kron_workspace(shape, factors, **given)
    x, matrices = arrays(shape, factors, dtype, "cpu")
    result = km.kron_matmul(x, matrices, **options)
    assert asked.shape == tuple(result.shape)
    info = RunInfo()
    multiply(x, matrices, info=info, **options)
    assert asked.route == info.route
    del result
    found = most_at_once(lambda: km.kron_matmul(x, matrices, **options))
    assert asked.bytes == found - torch.Size(asked.shape).numel() * dtype.itemsize
    assert asked.bytes or name == "fused"


def test_cards_that_are_not_there():
    fused = km.kron_workspace((1024, 32**3), [(32, 32)] * 3, card="sm_90")
    assert km.kron_workspace((1024, 32**3), [(32, 32)] * 3, card="h200") == fused
    single = km.kron_workspace((1024, 32**3), [(32, 32)] * 3, card="sm_90", fuse=False)
    size = 4 * 1024 * 32**3
    assert (fused.bytes, single.bytes, fused.bytes_per_thread) == (size * (fused.route.count("then") > 0), 2 * size, 0)
    assert single.route.startswith("cuda: ")
    half = km.kron_workspace((1024, 32**3), [(32, 32)] * 3, card="sm_90", fuse=False, dtype=torch.float16)
    assert half.bytes == size
    dense = km.kron_workspace((2, 300**2), [(300, 300)] * 2, card="sm_80", dtype=torch.float16)
    assert dense.bytes == 2 * 2 * 300**2


@pytest.mark.cuda
@pytest.mark.parametrize("name", CASES)
def test_what_is_allocated_on_a_gpu(name):
    shape, factors, given = CASES[name]
    dtype = given.get("dtype", torch.float32)
    options = {key: value for key, value in given.items() if key != "dtype"}
    asked = km.kron_workspace(shape, factors, device="cuda", **given)
    x, matrices = arrays(shape, factors, dtype, "cuda")
    km.kron_matmul(x, matrices, **options)
    before = torch.cuda.memory_stats()["requested_bytes.all.current"]
    torch.cuda.reset_peak_memory_stats()
    result = km.kron_matmul(x, matrices, **options)
    peak = torch.cuda.memory_stats()["requested_bytes.all.peak"]
    assert asked.bytes == peak - before - result.numel() * result.element_size()


def test_threads_are_given_what_is_told(monkeypatch):
    taken, scratch = [], cpu.SCRATCH
    monkeypatch.setattr(cpu, "SCRATCH", SimpleNamespace(take=lambda size: taken.append(size) or scratch.take(size)))
    x, factors = arrays((3, 24), [(2, 3), (3, 4), (4, 5)], torch.float64, "cpu")
    km.kron_matmul(x, factors, fuse=False)
    asked = km.kron_workspace((3, 24), [(2, 3), (3, 4), (4, 5)], dtype=torch.float64, fuse=False)
    assert asked.bytes_per_thread == max(taken)


def test_products_of_torch_are_not_told():
    asked = km.kron_workspace((3, 6), [(2, 5), (3, 7)], dtype=torch.int64)
    assert (asked.shape, asked.bytes, asked.bytes_per_thread, asked.route) == ((3, 35), None, None, "torch")


def test_products_along_an_axis_take_their_factor_in_panels():
    few, many = (km.kron_workspace((rows, 400), [(400, 400)], dtype=torch.bfloat16) for rows in (1, 1000))
    assert few.bytes == 0
    assert 2 * 400 * 400 <= many.bytes < 5 * 400 * 400  # in words of one number or two
    assert "along 400x400" in few.route
    assert many.bytes_per_thread > 0


def test_errors(monkeypatch):
    with pytest.raises(ShapeError, match="x of shape"):
        km.kron_workspace((3, 5), [(2, 2), (3, 3)])
    with pytest.raises(ParameterError, match="card must be one of 'h100'"):
        km.kron_workspace((3, 4), [(2, 2), (2, 2)], card="sm_12")
    with pytest.raises(ParameterError, match="device must be 'cpu' or 'cuda', not 'sm_90'; a GPU elsewhere is card="):
        km.kron_workspace((3, 4), [(2, 2), (2, 2)], device="sm_90")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(DeviceError, match="there is no GPU here"):
        km.kron_workspace((3, 4), [(2, 2), (2, 2)], device="cuda")
