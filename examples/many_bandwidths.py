"""Many hyperparameters in one call: a 1-D hyperparameter is a batch, and the result has a kernel matrix for each entry.

The bandwidth of a ridge regression is chosen among twelve candidates on validation rows. All twelve matrices come from
one launch, and their systems are solved together.
"""
# ruff: noqa: T201

from __future__ import annotations

import torch
from sklearn.datasets import load_diabetes

import kernmantle as km

RIDGE = 0.3


def explained(predicted: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return the share of the variance that predictions explain."""
    return 1 - ((predicted - y) ** 2).sum(-1) / ((y - y.mean()) ** 2).sum()


def main() -> None:
    """Choose the bandwidth on validation rows, and score it on others."""
    x, y = (torch.from_numpy(part) for part in load_diabetes(return_X_y=True))
    x, y = (x - x.mean(0)) / x.std(0), (y - y.mean()) / y.std()
    train, validation, test = slice(0, 260), slice(260, 350), slice(350, None)
    bandwidths = torch.logspace(-1, 3, 12, dtype=x.dtype)
    kernel = km.Laplace(bandwidths, p=1.3)
    matrices = kernel(x[train], diagonal=RIDGE)
    assert matrices.shape == (12, 260, 260)
    one = km.Laplace(float(bandwidths[5]), p=1.3)(x[train], diagonal=RIDGE)
    torch.testing.assert_close(matrices[5], one)
    coefficients = km.linalg.solve_cholesky(matrices, y[train].expand(12, -1)[..., None]).x
    scores = explained(kernel.matmul(x[validation], x[train], coefficients)[..., 0], y[validation])
    best = int(scores.argmax())
    for bandwidth, score in zip(bandwidths.tolist(), scores.tolist(), strict=True):
        print(f"bandwidth {bandwidth:8.2f}: {score:6.3f} of the variance explained")
    chosen = km.Laplace(float(bandwidths[best]), p=1.3)
    score = float(explained(chosen.matmul(x[test], x[train], coefficients[best, :, 0]), y[test]))
    assert score > 0.3
    print(f"best: {bandwidths[best]:.2f}, with which {score:.3f} of the variance of other rows is explained")


if __name__ == "__main__":
    main()
