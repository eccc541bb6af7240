"""
A Gaussian process on a grid
============================

The covariance of all pixels of an image under a product kernel is the Kronecker product of the covariances of rows and
columns. Here it would be a matrix with 6144 x 6144 entries. As a :class:`kernmantle.KroneckerProduct` it is stored as
two small matrices; a solve, the determinant and the gradients of both take milliseconds.
"""

import matplotlib.pyplot as plt
import torch

import kernmantle as km

# %%
# A surface that varies faster in one direction than in the other, with noise larger than the signal.

height, width = 64, 96
rows = torch.linspace(0, 4, height, dtype=torch.float64)[:, None]
columns = torch.linspace(0, 6, width, dtype=torch.float64)[:, None]
truth = torch.sin(3 * rows) * torch.cos(columns.T) + 0.5 * torch.sin(rows + 2 * columns.T)
noise = torch.randn(truth.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
measured = truth + 0.8 * noise

# %%
# The marginal likelihood as a function of two length scales, the signal variance and the noise. Its gradients pass
# through the kernels, the Kronecker product and its determinant.


def covariance(logs):
    """Signal, and signal with noise."""
    across, along, signal, level = logs.exp()
    product = km.KroneckerProduct([km.Gaussian(across)(rows), km.Gaussian(along)(columns)], scale=signal)
    return product, product + level * km.KroneckerProduct([height * width], like=logs)


def loss(logs):
    """Negative logarithm of the likelihood, up to a constant, per pixel."""
    _, total = covariance(logs)
    flat = measured.flatten()
    return (flat @ total.solve(flat) + total.logdet()) / (2 * height * width)


logs = torch.zeros(4, dtype=torch.float64, requires_grad=True)
search = torch.optim.LBFGS([logs], max_iter=15, line_search_fn="strong_wolfe")


def step():
    """Loss and its gradient."""
    search.zero_grad()
    value = loss(logs)
    value.backward()
    return value


search.step(step)
across, along, signal, level = logs.detach().exp().tolist()
print(f"length scales {across:.2f} and {along:.2f}, signal {signal**0.5:.2f}, noise {level**0.5:.2f} (true: 0.80)")
assert abs(level**0.5 - 0.8) < 0.02

# %%
# The posterior mean.

with torch.no_grad():
    product, total = covariance(logs)
    mean = (product @ total.solve(measured.flatten())).reshape(height, width)
error, before = (float((image - truth).square().mean().sqrt()) for image in (mean, measured))
print(f"error {before:.2f} before, {error:.3f} after")
assert error < 0.15

figure, grid = plt.subplots(1, 3, figsize=(10, 2.6), layout="constrained")
for axes, (name, image) in zip(grid, {"measured": measured, "mean": mean, "truth": truth}.items(), strict=True):
    axes.imshow(image, cmap="RdBu_r", vmin=-2, vmax=2)
    axes.set(xticks=[], yticks=[], title=name)
plt.show()
