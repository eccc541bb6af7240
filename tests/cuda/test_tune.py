"""Tiles are measured where there is a GPU: results stay right, the choice is kept and taken."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import kernmantle as km
from kernmantle.backends.cuda.tiles import TILES
from kernmantle.testing import assert_close
from kernmantle.torch_ops.tune import tune

pytestmark = pytest.mark.cuda


@pytest.mark.parametrize("shape", [(300, 200, 64), (513, 33, 7)])
def test_a_tuned_contraction_is_right_and_takes_the_quickest_tile(shape: tuple[int, int, int], tmp_path: Path) -> None:
    m, n, k = shape
    gram = km.Contraction("mk,nk->mn", lambda a, b: abs(a - b) + 0.125)
    x, y = torch.randn(m, k, device="cuda"), torch.randn(n, k, device="cuda")
    exact = ((x[:, None].double() - y[None].double()).abs() + 0.125).sum(-1)
    with km.config(cache_dir=tmp_path):
        (found,) = tune(gram, [((m, k), (n, k))])
        assert found.default in found.seconds
        assert found.gain >= 1
        assert_close(gram(x, y), exact, depth=k)
        best = next(tile for tile in TILES if tile.name == found.best)
        assert f"tile {best.m}x{best.n}x" in repr(gram)


def test_squares_are_tuned_too(tmp_path: Path) -> None:
    x, y = torch.randn(300, 128, device="cuda"), torch.randn(260, 128, device="cuda")
    with km.config(cache_dir=tmp_path):
        (found,) = tune(km.cdist, [((300, 128), (260, 128))])
        assert {"narrow products", "products"} <= set(found.seconds) or torch.cuda.get_device_capability() != (9, 0)
        exact = (x[:, None].double() - y[None].double()).square().sum(-1).sqrt()
        assert_close(km.cdist(x, y), exact, depth=128)
