"""Kernels compiled ahead: several at once, without computing, and found by the calls that need them."""

from __future__ import annotations

import numpy as np
import torch

import kernmantle as km
from kernmantle.runtime.cache import Cache
from kernmantle.runtime.lru import clear_all


def test_calls_compile_ahead_in_several_processes(tmp_path, capfd):
    x, out = torch.ones(5, 3), torch.full((5, 5), torch.nan)
    fresh = km.Contraction("mk,nk->mn", lambda a, b: km.tanh(a - 2 * b) ** 2)
    calls = [
        lambda: fresh(x, x + 1),
        lambda: km.Kernel(lambda a, b: km.cos(a - 3 * b)).matmul(x, x + 1, torch.ones(5)),
        lambda: km.Contraction("mk,nk->mn", lambda a, b: km.sin(a + b), reduce="max")(x, x + 1, out=out),
    ]
    with km.config(backend="llvm", cache_dir=tmp_path, progress=False):
        assert km.precompile(calls, workers=2) == 3
        assert out.isnan().all()
        assert km.precompile(calls, workers=2) == 0
        capfd.readouterr()
        with km.config(verbose=True):
            found = calls[0]()
    assert "compiled" not in capfd.readouterr().err
    assert torch.allclose(found, 3 * torch.tanh(torch.tensor(-3.0)).square().expand(5, 5))


def test_kernels_on_disk_are_named_by_what_they_compute(tmp_path):
    x = np.random.default_rng(0).normal(size=(9, 3))
    with km.config(cache_dir=tmp_path):
        clear_all()
        km.contract("mk,nk->mn", lambda a, b: abs(a - b) / (1 + abs(a - b)), x, x, epilogue=lambda s: s**3)
        km.Cauchy(2.0).matmul(x, x, x[:, 0])
        names = {entry.name.split(":")[0] for entry in Cache(tmp_path).entries()}
    assert "sum abs(x0 - x1) / (abs(x0 - x1) + 1) -> s0 * (s0 * s0)" in names, names
    assert any(name.startswith("sum (x0 - x1) * (x0 - x1) -> rcp(") for name in names), names
