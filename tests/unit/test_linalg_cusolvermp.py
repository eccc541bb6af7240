"""What is said where cuSOLVERMp is missing or does not go with NCCL; what it is asked, by a stand-in."""

from __future__ import annotations

import ctypes
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from kernmantle import linalg
from kernmantle.distributed import alone, dense
from kernmantle.distributed.rows import rows
from kernmantle.errors import BackendError, LaunchError
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


def test_the_library_is_found_wherever_python_finds_packages(monkeypatch, tmp_path):
    """Its place is taken by another library, a copy of one that is here."""
    place = tmp_path / "nvidia" / "cu13" / "lib" / "libcusolverMp.so.0"
    place.parent.mkdir(parents=True)
    shutil.copy(np.random._bounded_integers.__file__, place)
    maps = Path("/proc/self/maps")
    if not maps.exists():
        pytest.skip("what is loaded is read from /proc")
    monkeypatch.setattr(cusolvermp, "import_module", lambda name: SimpleNamespace(load_nvidia_dynamic_lib=str))
    cusolvermp.bindings.cache_clear()
    cusolvermp.bindings()
    assert str(place) not in maps.read_text()
    cusolvermp.bindings.cache_clear()
    monkeypatch.syspath_prepend(tmp_path)
    cusolvermp.bindings()
    cusolvermp.bindings.cache_clear()
    assert str(place) in maps.read_text()


def test_missing_packages(monkeypatch):
    def absent(name):
        raise ImportError(name)

    monkeypatch.setattr(cusolvermp, "import_module", absent)
    cusolvermp.bindings.cache_clear()
    with pytest.raises(BackendError, match="pip install nvmath-python"):
        cusolvermp.bindings()
    cusolvermp.bindings.cache_clear()


@pytest.mark.parametrize("n", [0, 1, 255, 256, 257, 2000])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_columns_are_dealt_out_in_blocks(n, size):
    parts = [cusolvermp.columns_of(n, rank, size, 256).tolist() for rank in range(size)]
    assert sorted(column for part in parts for column in part) == list(range(n))
    for rank, part in enumerate(parts):
        assert part == sorted(part)
        assert {column // 256 % size for column in part} <= {rank}


@pytest.mark.parametrize(("low", "high"), [(0, 0), (0, 1000), (255, 257), (300, 500), (511, 1500), (700, 700)])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_stretches_are_the_columns_between_two_places(low, high, size):
    for rank in range(size):
        expected = [column for column in range(low, high) if column // 256 % size == rank]
        blocks = cusolvermp.stretches(low, high, rank, size, 256)
        assert [column for a, b in blocks for column in range(a, b)] == expected
        assert all(a < b and a // 256 == (b - 1) // 256 for a, b in blocks)


def test_one_gpu_takes_what_it_does_quicker_and_holds(monkeypatch):
    def told(n, rank, free, routine="getrf", cuda=True):
        monkeypatch.setattr(alone, "available", lambda _: free)
        monkeypatch.setattr(alone, "largest", lambda value, *_: value)
        local = SimpleNamespace(is_cuda=cuda, device=None, element_size=lambda: 4)
        return alone.by_all(SimpleNamespace(local=local, total=n, rank=rank, group=None), routine)

    edge = alone.QUICKER["getrf"]
    room = 4 * 4 * edge**2
    assert not told(edge, 0, room)
    assert not told(edge, 1, 0)
    assert told(edge, 0, room - 1)
    assert told(edge + 1, 0, 10 * room)
    assert told(1, 0, room, "potrf")
    assert not told(edge + 1, 0, 0, cuda=False)


@pytest.mark.parametrize("routine", cusolvermp.BLOCKS)
def test_blocks_are_as_wide_as_leaves_every_process_several(routine):
    assert cusolvermp.block_of(routine, 10**6, 2) == cusolvermp.BLOCKS[routine]
    for size in (1, 2, 4, 8):
        for n in (0, 1, 2000, 20_000):
            block = cusolvermp.block_of(routine, n, size)
            assert block == 256 or n >= 4 * size * block
            assert block & (block - 1) == 0


ASKED = [
    ("eigh", 20_000, 5.24e9), ("eigh", 60_000, 31.46e9), ("eigh", 100_000, 104.86e9), ("eigh", 130_000, 136.31e9),
    ("eigh", 195_000, 408.9e9), ("cholesky", 20_000, 84 * 2**20), ("lu", 20_000, 95 * 2**20),
    ("lu", 40_000, 187 * 2**20),
]  # fmt: skip


@pytest.mark.parametrize(("routine", "n", "size"), ASKED)
def test_workspaces_are_those_that_two_gpus_ask_for(routine, n, size):
    """As cuSOLVERMp 0.8 answered for float32."""
    found = linalg.workspace(routine, n, devices=2)
    assert size <= found.device <= 1.4 * size
    assert 1.9 * size <= linalg.workspace(routine, n, devices=2, dtype=torch.float64).device
    assert not found.exact


class Bindings:
    """Records what is called; a factorisation leaves ``info``, and raises if it is to fail."""

    def __init__(self, info=0, fails=False):
        self.info, self.fails, self.calls = info, fails, []

    def __getattr__(self, name):
        def call(*arguments):
            self.calls.append(name)
            if name.endswith("_buffer_size"):
                return 8, 8
            if name in ("potrf", "getrf"):
                ctypes.c_int32.from_address(arguments[-1]).value = self.info
                if self.fails:
                    raise RuntimeError("INTERNAL_ERROR (7)")
            return 1

        return call


@pytest.fixture
def on_host(monkeypatch):
    """A grid on host memory."""
    stream = SimpleNamespace(cuda_stream=0, synchronize=lambda: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: stream)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)

    def make(found):
        monkeypatch.setattr(cusolvermp, "bindings", lambda: found)
        return cusolvermp.Grid(0, 0, 2, torch.device("cpu", 0))

    return make


SOLVES = {"solve_cholesky": ("potrf", "potrs"), "solve_lu": ("getrf", "getrs")}


@pytest.mark.parametrize("name", SOLVES)
def test_a_failed_factor_is_an_info_and_nothing_is_solved(on_host, name):
    a, b = torch.eye(4), torch.ones(1, 4)
    for info, fails, agree, found in (
        (0, False, int, 0),
        (3, False, int, 3),
        (3, True, int, 3),
        (0, False, lambda _: 2, 2),
    ):
        bindings = Bindings(info, fails)
        assert getattr(on_host(bindings), name)(a, 4, b, 1, agree) == found
        factor, solve = SOLVES[name]
        assert factor in bindings.calls
        assert (solve in bindings.calls) == (found == 0)
        assert bindings.calls.count("destroy_matrix_desc") == bindings.calls.count("create_matrix_desc") == 2
    with pytest.raises(LaunchError, match=r"on 2 GPUs: INTERNAL_ERROR \(7\) \(info 0\)"):
        getattr(on_host(Bindings(0, fails=True)), name)(a, 4, b, 1)


def test_a_process_group_keeps_its_grid_until_something_fails(on_host, monkeypatch, tmp_path):
    bindings = Bindings()
    on_host(bindings)
    bindings.calls.clear()
    monkeypatch.setattr(dense, "communicator", lambda device: 0)
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        given = rows(torch.zeros(2, 2), "a")
        for _ in range(2):
            with dense._grid(given):
                pass
        assert bindings.calls.count("create_device_grid") == 1
        with pytest.raises(LaunchError, match="broken"), dense._grid(given):
            raise LaunchError("broken")
        with dense._grid(given):
            pass
        assert bindings.calls.count("create_device_grid") == 2
        monkeypatch.setattr(torch.cuda, "current_stream", lambda _: SimpleNamespace(cuda_stream=7))
        with dense._grid(given):
            pass
        assert bindings.calls.count("create_device_grid") == 3
    finally:
        torch.distributed.destroy_process_group()
