"""The cache of bound calls and the store of loaded kernels: hits, misses, races, and kernels that are collected."""

from __future__ import annotations

import threading

import pytest
import torch

import kernmantle as km
from kernmantle.runtime import dispatch, kernel_store
from kernmantle.runtime.cache import Built, Key
from kernmantle.runtime.lru import clear_all
from kernmantle.torch_ops import call_key

THREADS = 8


class Launch:
    route = "a test"

    def __call__(self, tensors, numbers, outs):
        return tensors, numbers, outs


def key(name, *values):
    return call_key.program_key(("test", name), ("default",), values)


def job(name):
    return kernel_store.Job(Key("none", "none", name), lambda text: Built(text.encode()), (name,))


@pytest.fixture(autouse=True)
def _own_cache(tmp_path):
    with km.config(cache_dir=str(tmp_path)):
        yield


def test_a_call_is_bound_once_for_equal_keys():
    x = torch.zeros(3, 4)
    first = dispatch.bound(key("once", x), Launch)
    assert dispatch.bound(key("once", torch.ones(3, 4)), Launch) is first
    assert dispatch.bound(key("another", x), Launch) is not first
    clear_all()
    assert dispatch.bound(key("once", x), Launch) is not first


@pytest.mark.parametrize(
    "other",
    [
        torch.zeros(4, 3), torch.zeros(4, 3).T, torch.zeros(3, 4, dtype=torch.float64), torch.zeros(13)[1:].view(3, 4),
        torch.zeros(3, 4, device="meta"), None,
    ],
    ids=["shape", "strides", "dtype", "alignment", "device", "absent"],
)  # fmt: skip
def test_tensors_that_plans_tell_apart_have_other_keys(other):
    assert key("tensors", torch.zeros(3, 4)) != key("tensors", other)


def test_settings_that_plans_depend_on_are_part_of_a_key():
    x = torch.zeros(3, 4)
    plain = key("settings", x)
    with km.config(precision="ieee"):
        assert key("settings", x) != plain
    with km.config(backend="reference"):
        assert key("settings", x) != plain
    with km.config(threads=2):
        assert key("settings", x) == plain


def test_threads_that_race_get_the_same_bound_call():
    together, found = threading.Barrier(THREADS, timeout=20), []
    own = key("race", torch.zeros(2))

    def make():
        together.wait()  # all of them missed
        return Launch()

    threads = [threading.Thread(target=lambda: found.append(dispatch.bound(own, make))) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == THREADS
    assert len(set(map(id, found))) == 1


def test_nothing_is_stored_or_taken_while_kernels_are_only_collected():
    own = key("collected", torch.zeros(2))
    before = dispatch.bound(own, Launch)
    with kernel_store.collected() as jobs:
        assert kernel_store.loaded("collected", lambda: [job("a"), job("b")], lambda *_: pytest.fail("loaded")) is None
        assert dispatch.bound(own, Launch) is not before
    assert len(jobs) == 2
    assert "collected" not in kernel_store.KERNELS
    assert dispatch.bound(own, Launch) is before


def test_kernels_are_loaded_once_for_equal_plans():
    loads = []

    def load(*binaries):
        loads.append(binaries)
        return list(binaries)

    first = kernel_store.loaded(("plan", 1), lambda: [job("one"), job("two")], load)
    assert first == [b"one", b"two"]
    assert kernel_store.loaded(("plan", 1), lambda: pytest.fail("compiled again"), load) is first
    assert loads == [(b"one", b"two")]
    clear_all()
    assert kernel_store.loaded(("plan", 1), lambda: [job("one"), job("two")], load) == first
    assert len(loads) == 2


def eager(*values):
    return call_key.call_key("eager", (), values)


def test_calls_that_something_watches_have_no_key():
    x = torch.zeros(3, 4)
    assert eager(x) is not None
    assert eager(x, None) is not None
    assert eager(x, 3.0) is None
    assert eager(x.numpy()) is None
    assert eager(x.to_sparse()) is None
    assert eager(torch._neg_view(x)) is None
    assert eager(torch.zeros(3, 4).as_subclass(type("Own", (torch.Tensor,), {}))) is None
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert eager(x) is None
    with kernel_store.collected():
        assert eager(x) is None
    seen = []
    torch.func.vmap(lambda row: seen.append(eager(row)) or row)(x)
    torch.func.grad(lambda row: seen.append(eager(row)) or row.sum())(x)
    assert seen == [None, None]


def test_recorded_gradients_are_part_of_a_key():
    x = torch.zeros(3, 4)
    tracked = x.clone().requires_grad_()
    assert not call_key.is_recorded(eager(x))
    assert call_key.is_recorded(eager(x, None, tracked))
    assert eager(x, tracked) != eager(tracked, x)
    with torch.no_grad():
        assert eager(tracked) == eager(x)
