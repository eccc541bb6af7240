"""Many hyperparameters in one call: a 1-D parameter is a batch, and the result has one kernel matrix for each entry.

The bandwidth of a ridge regression is chosen among twelve candidates, which are solved together.
"""
# ruff: noqa: T201

from __future__ import annotations

import torch
from sklearn.datasets import load_diabetes

import kernmantle as km

laplace = km.Contraction(
    "mk,nk->mn", lambda a, b, p: abs(a - b) ** p, epilogue=lambda s, p, bandwidth: km.exp(-(s ** (1 / p)) / bandwidth)
)


def main() -> None:
    """Choose the bandwidth with the best score on the test set."""
    x, y = (torch.from_numpy(part) for part in load_diabetes(return_X_y=True))
    x, y = (x - x.mean(0)) / x.std(0), (y - y.mean()) / y.std()
    train, test = slice(0, 300), slice(300, None)
    bandwidths = torch.logspace(-1, 3, 12, dtype=x.dtype)
    kernels = laplace(x[train], x[train], p=1.3, bandwidth=bandwidths)
    assert kernels.shape == (12, 300, 300)
    one = laplace(x[train], x[train], p=1.3, bandwidth=float(bandwidths[5]))
    torch.testing.assert_close(kernels[5], one)
    solved = torch.linalg.solve(kernels + 0.3 * torch.eye(300, dtype=x.dtype), y[train].expand(12, -1)[..., None])
    predicted = (laplace(x[test], x[train], p=1.3, bandwidth=bandwidths) @ solved)[..., 0]
    explained = 1 - ((predicted - y[test]) ** 2).sum(-1) / ((y[test] - y[test].mean()) ** 2).sum()
    best = int(explained.argmax())
    assert explained[best] > 0.4
    for bandwidth, value in zip(bandwidths.tolist(), explained.tolist(), strict=True):
        print(f"bandwidth {bandwidth:8.2f}: {value:6.3f} of the variance explained")
    print(f"best: {bandwidths[best]:.2f}")


if __name__ == "__main__":
    main()
