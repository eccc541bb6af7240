"""Score tiles times many columns and gradients of attention in float32 on small cases, for compute-sanitizer.

``compute-sanitizer --kernel-name kernel_substring=kernmantle python -m tests.cuda.columns [word ...]`` runs the cases
whose name contains one of the words; how far results are off is said for each.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence

import torch

import kernmantle as km
from kernmantle.backends.cuda import columns_plan, softmax_plan
from kernmantle.backends.cuda.tiles import CARDS
from kernmantle.compiler.row_reduce import PRODUCT
from kernmantle.pairwise import attend
from kernmantle.runtime.dispatch import PLANS

from .row_nests import SQUARES, RowCase

SHAPES = [(20, 16), (64, 64), (128, 64), (64, 128), (32, 32), (200, 16), (300, 64)]


def products(k: int, width: int, words: Sequence[str]) -> float:
    """Largest error of a Gaussian's product in each of the tiles that are possible, as a share of absolute products."""
    case, worst = RowCase("products", SQUARES, PRODUCT, 1 << 15, 1 << 15, k, width), 0.0
    generator = torch.Generator().manual_seed(k + width)
    x, y, v = (torch.randn(*shape, generator=generator) for shape in ((300, k), (1100, k), (1100, width)))
    y[7] = x[3] + 1e-4
    entries = (-(torch.cdist(x.double(), y.double(), compute_mode="donot_use_mm_for_euclid_dist") ** 2) / (2 * k)).exp()
    wanted, size = entries @ v.double(), entries @ v.double().abs()
    for tile, columns in columns_plan.columns_tiles(case.rows, case.sizes(), CARDS["sm_90"]):
        name = f"columns {k} {width} {tile.name} {columns}"
        if words and not any(word in name for word in words):
            continue
        PLANS.clear()
        columns_plan.columns_tile = lambda *_, tile=tile, columns=columns: (tile, columns)
        found = km.Gaussian(math.sqrt(k)).matmul(x.cuda(), y.cuda(), v.cuda()).cpu()
        error = float(((found - wanted).abs() / size).max())
        worst = error if math.isnan(error) else max(worst, error)
        sys.stdout.write(f"{name}: {error:.2g}\n")
    return worst


def attention(columns: int) -> float:
    """Largest error of the gradients of attention in float32, as a share of each one's size."""
    generator = torch.Generator().manual_seed(columns)
    q, k, v, w = (torch.randn(1, 2, rows, columns, generator=generator) for rows in (300, 700, 700, 300))
    own = [t.cuda().requires_grad_() for t in (q, k, v)]
    exact = tuple(t.double().requires_grad_() for t in (q, k, v))
    (km.attention(*own) * w.cuda()).sum().backward()
    scores = exact[0] @ exact[1].mT / math.sqrt(columns)
    (scores.softmax(-1) @ exact[2] * w.double()).sum().backward()
    return max(
        float((mine.grad.cpu() - wanted.grad).norm() / wanted.grad.norm())
        for mine, wanted in zip(own, exact, strict=True)
        if mine.grad is not None and wanted.grad is not None
    )


def main(words: Sequence[str]) -> int:
    """Run and report; 1 where a result is wrong."""
    columns_plan._LEAST_ENTRIES = columns_plan._LEAST_ROWS = softmax_plan._LEAST_ENTRIES = attend._VENDORS = 1
    worst = max(products(k, width, words) for k, width in SHAPES)
    if not words or any(word in "attention" for word in words):
        for columns in (64, 40):
            error = attention(columns)
            worst = max(worst, error)
            sys.stdout.write(f"attention {columns}: {error:.2g}\n")
    return int(not worst < 3e-6)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
