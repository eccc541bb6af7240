"""Your own kernel with gradients: a rational quadratic kernel of weighted distances, fitted to data.

The map is applied to each pair of entries, the epilogue to their sum. Every parameter is a tensor, and its gradient is
computed by a kernel derived from the same two lambdas.
"""
# ruff: noqa: T201

from __future__ import annotations

import torch

import kernmantle as km

kernel = km.Contraction(
    "mk,nk,weight:k->mn",
    lambda a, b, weight: weight * (a - b) ** 2,
    epilogue=lambda s, shape: (1 + s / (2 * shape)) ** -shape,
)


def data(rows: int = 160) -> tuple[torch.Tensor, torch.Tensor]:
    """Three columns, of which only the first two matter."""
    random = torch.Generator().manual_seed(0)
    x = torch.rand(rows, 3, generator=random, dtype=torch.float64) * 4 - 2
    y = torch.sin(2 * x[:, 0]) + torch.cos(2 * x[:, 1]) + 0.1 * torch.randn(rows, generator=random, dtype=torch.float64)
    return x, y


def loss(x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor, shape: torch.Tensor) -> torch.Tensor:
    """Mean squared error of predicting every row from all the others, in closed form."""
    regular = kernel(x, x, weight=weight, shape=shape) + 0.02 * torch.eye(len(x), dtype=x.dtype)
    inverse = torch.linalg.inv(regular)
    return ((inverse @ y / inverse.diagonal()) ** 2).mean()


def main() -> None:
    """Fit weights and shape by gradient descent, and check the gradient against differences."""
    x, y = data()
    logs = torch.zeros(3, dtype=x.dtype, requires_grad=True)
    shape = torch.zeros((), dtype=x.dtype, requires_grad=True)
    assert torch.autograd.gradcheck(lambda w, s: kernel(x[:9], x[9:16], weight=w.exp(), shape=s.exp()), (logs, shape))
    adam = torch.optim.Adam([logs, shape], lr=0.2)
    first = float(loss(x, y, logs.exp(), shape.exp()).detach())
    for _ in range(40):
        adam.zero_grad()
        loss(x, y, logs.exp(), shape.exp()).backward()
        adam.step()
    last = float(loss(x, y, logs.exp(), shape.exp()).detach())
    weights = logs.detach().exp()
    assert last < first / 2
    assert weights[2] < weights[:2].min() / 3
    print(f"error {first:.4f} with equal weights, {last:.4f} with learned ones")
    print(f"weights {', '.join(f'{weight:.3f}' for weight in weights)}, shape {shape.detach().exp():.2f}")


if __name__ == "__main__":
    main()
