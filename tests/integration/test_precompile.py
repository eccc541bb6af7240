"""Kernels compiled ahead: several at once, without computing, and found by the calls that need them."""

from __future__ import annotations

import torch

import kernmantle as km


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
