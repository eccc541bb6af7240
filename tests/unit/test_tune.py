"""Tiles that were measured are kept and taken, on a target that only plans."""

import itertools
import warnings
from contextlib import nullcontext

import pytest
import torch

import kernmantle as km
from kernmantle.backends.cuda.tiles import TILES, DeviceLimits
from kernmantle.errors import CacheWarning, DeviceError, ShapeError
from kernmantle.runtime.cache import Built, Cache, Key
from kernmantle.runtime.dispatch import PLANS
from kernmantle.runtime.kernel_store import collected, compile_only
from kernmantle.runtime.launcher import Launcher
from kernmantle.torch_ops import cuda, cuda_contract, targets, tuned_tiles
from kernmantle.torch_ops.tune import tune

pytest.importorskip("cuda.core")
H200 = DeviceLimits("sm_90", 132, 227 << 10, 228 << 10, threads_per_sm=2048)
GRAM = km.Contraction("mk,nk->mn", lambda a, b: abs(a - b) + 0.25)


@pytest.fixture
def planner(monkeypatch, tmp_path):
    """The GPU's planner for tensors of the CPU; nothing is compiled or run."""
    made = cuda_contract.CudaTarget()
    monkeypatch.setattr(cuda_contract, "limits", lambda index: H200)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(cuda_contract, "gpu", lambda index: type("Card", (), {"name": "Abacus 9"})())
    monkeypatch.setattr(targets, "_target", lambda kind: made)
    with km.config(cache_dir=tmp_path):
        yield
    PLANS.clear()


@pytest.fixture
def asked(monkeypatch):
    """Plans a call and gives what it was planned as, and what the planner was asked."""
    seen = []
    plain = tuned_tiles.launcher

    def noted(*arguments):
        found = plain(*arguments)
        seen.append((found.description, arguments[:4]))
        return found

    monkeypatch.setattr(tuned_tiles, "launcher", noted)

    def ask(m, n, k):
        with collected():
            GRAM(torch.empty(m, k), torch.empty(n, k))
        return seen[-1]

    return ask


def test_a_kept_tile_is_taken_for_extents_between_the_same_powers_of_two(planner, asked):
    before, (nest, sizes, own, facts) = asked(600, 700, 100)
    default = tuned_tiles.default_name(nest, sizes, own, facts)
    other = next(name for name in tuned_tiles.names(nest, sizes, own, facts) if name == "tiny" != default)
    tuned_tiles.keep(nest, sizes, "Abacus 9", other)
    assert "tile 16x16x16" in asked(600, 700, 100)[0]
    assert "tile 16x16x16" in asked(1024, 513, 128)[0]
    assert asked(600, 700, 129)[0] != asked(600, 700, 128)[0]
    assert before != asked(600, 700, 100)[0]
    tuned_tiles.keep(nest, sizes, "Abacus 9", default)
    assert asked(600, 700, 100)[0] == before
    tuned_tiles.keep(nest, sizes, "Abacus 10", other)
    assert asked(600, 700, 100)[0] == before


def test_a_kept_tile_that_cannot_run_is_passed_over(planner, asked):
    before, (nest, sizes, _, _) = asked(600, 700, 100)
    tuned_tiles.keep(nest, sizes, "Abacus 9", "no such tile")
    assert asked(600, 700, 100)[0] == before


def test_a_kept_tile_is_passed_over_where_the_arrays_lie_otherwise(planner, monkeypatch):
    signs = km.Contraction("mk,nk->mn", lambda a, b: abs(a - b))

    def planned(x):
        PLANS.clear()
        with collected():
            signs(x, x.clone(), precision="half")
        return repr(signs)

    rows = torch.zeros(4096, 66, dtype=torch.float16)
    even, odd = rows[:, :64], rows[:, 1:65]
    before, seen, plain = planned(odd), [], tuned_tiles.launcher
    monkeypatch.setattr(tuned_tiles, "launcher", lambda *given: seen.append(given) or plain(*given))
    assert planned(even) != before
    nest, sizes = seen[0][:2]
    tuned_tiles.keep(nest, sizes, "Abacus 9", "pairs")
    assert planned(odd) == before


def test_while_tuning_all_tiles_are_measured_and_the_quickest_is_kept(planner, asked, monkeypatch):
    _, (nest, sizes, own, facts) = asked(600, 700, 100)
    started = []

    def made(name):
        return Launcher(lambda pointers, numbers: started.append(name), str(name))

    monkeypatch.setattr(tuned_tiles, "_seconds", lambda call, limit: (call(), {"tiny": 1.0}.get(started[-1], 2.0))[1])
    with tuned_tiles.tuning() as found:
        run = tuned_tiles.launcher(nest, sizes, own, facts, "Abacus 9", made).run
        run((), ())
        run((), ())
    assert (len(found), found[0].best, found[0].gain) == (1, "tiny", 2.0)
    assert set(found[0].seconds) == set(tuned_tiles.names(nest, sizes, own, facts))
    assert started[-2:] == ["tiny", "tiny"]
    assert started[0] == found[0].default
    assert tuned_tiles.recorded(nest, sizes, own, facts, "Abacus 9") == "tiny"


def test_tune_keeps_the_quickest_tile_of_every_case(planner, monkeypatch):
    random, clock = torch.randn, itertools.count(20, -1)
    monkeypatch.setattr(cuda_contract, "load", lambda *plans: [None if compile_only() else plan for plan in plans])
    for module in (cuda, cuda_contract):
        monkeypatch.setattr(module, "start", lambda *arguments: None)
    monkeypatch.setattr(cuda, "bind_launch", lambda *arguments: lambda addresses: None)
    monkeypatch.setattr(torch, "randn", lambda shape, device: random(shape, device="cpu"))
    monkeypatch.setattr(torch.cuda, "device", lambda place: nullcontext())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(tuned_tiles, "_seconds", lambda call, limit: (call(), float(next(clock)))[1])
    first, second = tune(GRAM, [((300, 64), (200, 64)), ((5, 8), (33, 8))])
    assert (first.sizes["m"], second.sizes["n"]) == (300, 33)
    assert first.best == list(first.seconds)[-1] != first.default
    GRAM(random(300, 64), random(200, 64))
    best = next(tile for tile in TILES if tile.name == first.best)
    assert f"tile {best.m}x{best.n}x" in repr(GRAM)


def test_what_is_put_replaces_what_was_there(tmp_path):
    key = Key("card", "tile", "text")
    for word in (b"one", b"two"):
        Cache(tmp_path).put(key, Built(word))
        assert Cache(tmp_path).find(key).binary == word
    cache = Cache(tmp_path / "file")
    (tmp_path / "file").write_text("no directory")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CacheWarning)
        cache.put(key, Built(b"three"))
    assert cache.find(key).binary == b"three"


def test_tune_says_what_is_missing(monkeypatch):
    with pytest.raises(DeviceError, match="not on cpu"):
        tune(GRAM, [((3, 2), (4, 2))], device="cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(DeviceError, match="has 2 CUDA devices"):
        tune(GRAM, [((3, 2), (4, 2))], device="cuda:2")
    with pytest.raises(ShapeError, match="one has none"):
        tune(GRAM, [()])
