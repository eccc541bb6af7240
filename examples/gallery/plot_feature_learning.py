"""
Feature learning by gradients
=============================

A recursive feature machine fits a kernel regression and uses the average outer product of its gradients (AGOP) as the
metric of the next fit. This way it learns which directions of the input matter. For images, the metric can be shown as
an image; here it finds the half of the image that determines the label.
"""

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits

import kernmantle as km

# %%
# Each image has four digits, threes and eights, and noise. The label says whether the lower two digits are the same. No
# single pixel is informative.

images, labels = (torch.from_numpy(part) for part in load_digits(return_X_y=True))
images, labels = images[(labels == 3) | (labels == 8)] / 16, labels[(labels == 3) | (labels == 8)]
source, rows = torch.Generator().manual_seed(0), 1400
picked = torch.randint(len(images), (rows, 4), generator=source)
x = images[picked].reshape(rows, 2, 2, 8, 8).transpose(2, 3).reshape(rows, 256)
x = x + 0.15 * torch.randn(x.shape, generator=source, dtype=x.dtype)
y = torch.where(labels[picked[:, 2]] == labels[picked[:, 3]], 1.0, -1.0).double()
train, test = slice(0, 800), slice(800, None)

# %%
# In each round: solve, compute the gradients at all rows, and transform the rows by the root of their average outer
# product. :meth:`kernmantle.Kernel.agop` computes the gradients in bounded blocks.
# :class:`kernmantle.estimators.RecursiveFeatureMachine` is this loop with early stopping.

rounds, root, metrics, wrong = 4, torch.eye(256, dtype=x.dtype), [], []
for _ in range(rounds):
    transformed = x @ root
    kernel = km.Laplace(bandwidth=float(km.median_bandwidth(transformed[train])), p=2)
    coefficients = km.linalg.solve_kernel(kernel, transformed[train], y[train], ridge=0.1).x
    predicted = kernel.matmul(transformed[test], transformed[train], coefficients)
    wrong.append(100 * float((predicted.sign() != y[test]).double().mean()))
    metric = root.T @ kernel.agop(transformed[train], transformed[train], coefficients, average=True) @ root
    metrics.append(metric / metric.diagonal().max())
    values, vectors = torch.linalg.eigh(metrics[-1])
    root = (vectors * values.clamp(min=0).sqrt()) @ vectors.T
assert wrong[-1] < wrong[0] / 2

# %%
# Left: two of the images. Then, for every round, the importance of each pixel (above) and the strongest direction of
# the metric (below). It looks at the left side of the digits, where an eight is closed and a three is open.

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
