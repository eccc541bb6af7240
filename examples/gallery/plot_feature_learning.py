"""
Feature learning by gradients
=============================

A recursive feature machine fits a kernel regression, takes the average outer product of its gradients (AGOP) as the
metric of the next one, and so learns which directions of the inputs matter. On images the metric is a picture, and
here it finds the half of the image that has the answer.
"""

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits

import kernmantle as km

# %%
# Four digits in one image, each a three or an eight, and noise. The question is whether the lower two are the same: no
# pixel says anything about it alone.

images, labels = (torch.from_numpy(part) for part in load_digits(return_X_y=True))
images, labels = images[(labels == 3) | (labels == 8)] / 16, labels[(labels == 3) | (labels == 8)]
source, rows = torch.Generator().manual_seed(0), 1400
picked = torch.randint(len(images), (rows, 4), generator=source)
x = images[picked].reshape(rows, 2, 2, 8, 8).transpose(2, 3).reshape(rows, 256)
x = x + 0.15 * torch.randn(x.shape, generator=source, dtype=x.dtype)
y = torch.where(labels[picked[:, 2]] == labels[picked[:, 3]], 1.0, -1.0).double()
known, held = slice(0, 800), slice(800, None)

# %%
# Each round: solve, take gradients at all rows, and stretch the rows by the root of their outer product.
# :meth:`kernmantle.Kernel.agop` keeps the gradients in bounded pieces;
# :class:`kernmantle.estimators.RecursiveFeatureMachine` is this loop with early stopping.

rounds, root, metrics, wrong = 4, torch.eye(256, dtype=x.dtype), [], []
for _ in range(rounds):
    turned = x @ root
    kernel = km.Laplace(bandwidth=float(km.median_bandwidth(turned[known])), p=2)
    coefficients = km.linalg.solve_kernel(kernel, turned[known], y[known], ridge=0.1).x
    predicted = kernel.matmul(turned[held], turned[known], coefficients)
    wrong.append(100 * float((predicted.sign() != y[held]).double().mean()))
    metric = root.T @ kernel.agop(turned[known], turned[known], coefficients, average=True) @ root
    metrics.append(metric / metric.diagonal().max())
    values, vectors = torch.linalg.eigh(metrics[-1])
    root = (vectors * values.clamp(min=0).sqrt()) @ vectors.T
assert wrong[-1] < wrong[0] / 2

# %%
# On the left two of the images; then, above, how much each pixel matters after every round, and below the strongest
# direction of the metric: an eight is closed on the left, a three is open.

figure, grid = plt.subplots(2, rounds + 1, figsize=(10, 4.2), layout="constrained")
for axes, row in zip(grid[:, 0], (int(y.argmax()), int(y.argmin())), strict=True):
    axes.imshow(x[row].reshape(16, 16), cmap="gray_r")
    axes.set_title("same" if y[row] > 0 else "different", fontsize=10)
for number, (above, below, metric) in enumerate(zip(grid[0, 1:], grid[1, 1:], metrics, strict=True)):
    above.imshow(metric.diagonal().sqrt().reshape(16, 16), cmap="Blues", vmin=0, vmax=1)
    above.set_title(f"round {number + 1}: {wrong[number]:.0f} % wrong", fontsize=10)
    direction = torch.linalg.eigh(metric).eigenvectors[:, -1]
    direction = direction * direction[direction.abs().argmax()].sign()
    below.imshow(direction.reshape(16, 16), cmap="RdBu_r", vmin=-direction.max(), vmax=direction.max())
for axes in grid.flat:
    axes.set(xticks=[], yticks=[])
plt.show()
