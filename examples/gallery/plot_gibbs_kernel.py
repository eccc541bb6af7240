r"""
A kernel from an equation in a paper
====================================

M. Gibbs (*Bayesian Gaussian Processes for Regression and Classification*, 1997) defines a kernel whose length scale
varies with the position:

.. math::

   k(x, y) = \prod_k \sqrt{\frac{2\, \ell_k(x)\, \ell_k(y)}{\ell_k(x)^2 + \ell_k(y)^2}}\;
   \exp\left(-\sum_k \frac{(x_k - y_k)^2}{\ell_k(x)^2 + \ell_k(y)^2}\right)

The equation becomes a lambda, and the product over :math:`k` becomes the reduction. The result is one compiled kernel,
with gradients with respect to all four operands, so the length scales can be learned.
"""

import matplotlib.pyplot as plt
import torch

import kernmantle as km


def factor(a, b, u, v):
    """Return the factor of one column, from entries of x and y and their length scales."""
    squares = u * u + v * v
    return km.sqrt(2 * u * v / squares) * km.exp(-((a - b) ** 2) / squares)


gibbs = km.Contraction("mk,nk,mk,nk->mn", factor, reduce="prod")

# %%
# Measurements of a function that varies slowly on the left and quickly on the right.

source = torch.Generator().manual_seed(1)
x = torch.rand(80, 1, generator=source, dtype=torch.float64).sort(0).values * 4
y = torch.sin(x[:, 0] ** 3 / 3) + 0.1 * torch.randn(80, generator=source, dtype=torch.float64)
grid = torch.linspace(0, 4, 400, dtype=torch.float64)[:, None]


def length(places, parameters):
    """Return a length scale that is an exponential function of the position, with two parameters."""
    return torch.exp(parameters[0] + parameters[1] * places)


def loss(parameters):
    """Negative logarithm of the marginal likelihood."""
    own = length(x, parameters)
    matrix = parameters[2].exp() * gibbs(x, x, own, own) + 0.01 * torch.eye(len(x), dtype=x.dtype)
    factored = torch.linalg.cholesky(matrix)
    solved = torch.cholesky_solve(y[:, None], factored)[:, 0]
    return 0.5 * y @ solved + factored.diagonal().log().sum()


def fit(changing):
    """Learn by gradients; without a slope it is the Gaussian kernel."""
    parameters = torch.tensor([-0.5, 0.0, 0.0], dtype=x.dtype, requires_grad=True)
    mask = torch.tensor([1.0, float(changing), 1.0], dtype=x.dtype)
    adam = torch.optim.Adam([parameters], lr=0.1)
    for _ in range(60):
        adam.zero_grad()
        loss(parameters * mask).backward()
        adam.step()
    return (parameters * mask).detach()


figure, panels = plt.subplots(1, 2, figsize=(9.5, 3.4), layout="constrained", sharey=True)
losses = []
for axes, changing, name in zip(panels, (False, True), ("one length scale", "Gibbs"), strict=True):
    found = fit(changing)
    losses.append(float(loss(found)))
    own = length(x, found)
    matrix = found[2].exp() * gibbs(x, x, own, own) + 0.01 * torch.eye(len(x), dtype=x.dtype)
    cross = found[2].exp() * gibbs(grid, x, length(grid, found), own)
    mean = cross @ torch.linalg.solve(matrix, y)
    spread = (found[2].exp() - (cross * torch.linalg.solve(matrix, cross.T).T).sum(1)).clamp(min=0).sqrt()
    axes.fill_between(grid[:, 0], mean - 2 * spread, mean + 2 * spread, color="#8fbbdc", alpha=0.5, linewidth=0)
    axes.plot(grid[:, 0], torch.sin(grid[:, 0] ** 3 / 3), color="#22313f", linewidth=1, linestyle=":")
    axes.plot(grid[:, 0], mean, color="#1b6ca8")
    axes.plot(x[:, 0], y, ".", color="#e07a2f", markersize=4)
    ends = length(torch.tensor([0.0, 4.0]), found).tolist()
    axes.set_title(f"{name}: from {ends[0]:.2f} to {ends[1]:.2f}, loss {losses[-1]:.0f}", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
assert losses[1] < losses[0]
plt.show()
