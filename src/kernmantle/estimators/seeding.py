"""First centres of clusters: greedy k-means++ over whatever gives squared distances to chosen rows."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch

Squares = Callable[[torch.Tensor], torch.Tensor]


def plus_plus(count: int, weights: torch.Tensor, squares: Squares, random: np.random.RandomState) -> torch.Tensor:
    """Return the indices of rows that are far from each other, (count,).

    The first row is drawn by its weight, each further one as the best of ``2 + log(count)`` that are drawn with
    probability proportional to weight times squared distance from the rows chosen before. ``squares`` gives the
    squared distances of all n rows to rows of some indices, (indices, n). The draws are those of scikit-learn.
    """
    rows, trials = weights.shape[0], 2 + int(math.log(count))
    chosen = [draw(1, weights, random)]
    closest = squares(chosen[0])[0]
    for _ in range(count - 1):
        reach = (weights * closest).to(torch.float64).cumsum(0)
        aims = torch.as_tensor(random.uniform(size=trials), device=reach.device) * reach[-1]
        candidates = torch.searchsorted(reach, aims).clamp_(max=rows - 1)
        reached = torch.minimum(closest, squares(candidates))
        best = (reached @ weights).argmin()
        closest = reached[best]
        chosen.append(candidates[best : best + 1])
    return torch.cat(chosen)


def draw(count: int, weights: torch.Tensor, random: np.random.RandomState) -> torch.Tensor:
    """Return the indices of different rows, drawn by their weights."""
    shares = weights.double().cpu().numpy()
    drawn = random.choice(len(shares), size=count, replace=False, p=shares / shares.sum())
    return torch.as_tensor(drawn, device=weights.device)
