"""
The spectrum of a kernel that is never formed
=============================================

The largest eigenvalues of a kernel matrix and their eigenvectors are computed from products with the matrix. The
matrix of 4000 x 4000 entries is not stored: each product is one fused pass over the rows.
"""

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import make_moons

import kernmantle as km

points, _ = make_moons(4000, noise=0.06, random_state=0)
x = torch.from_numpy(points)
count = 12

# %%
# The decay of the eigenvalues shows how many directions of the feature space the data occupies, for each bandwidth.

figure, axes = plt.subplots(figsize=(7, 3.4), layout="constrained")
for bandwidth, colour in ((0.1, "#8fbbdc"), (0.3, "#1b6ca8"), (1.0, "#22313f")):
    operator = km.Gaussian(bandwidth).operator(x)
    spectrum = km.linalg.eigh(operator, subset_by_index=(len(x) - count, len(x) - 1))
    residual = (operator @ spectrum.v - spectrum.v * spectrum.w).norm(dim=0) / spectrum.w[-1]
    assert residual.max() < 1e-6
    km.plot.spectrum(spectrum, label=f"bandwidth {bandwidth:g}", axes=axes).lines[-1].set_color(colour)
    if bandwidth == 0.3:
        shown = spectrum.v.flip(1)
        print(spectrum)
axes.legend(frameon=False)
axes.spines[["top", "right"]].set_visible(False)

# %%
# The points, coloured by the first eigenvectors: the first follows the density, the next ones separate the moons.

figure, grid = plt.subplots(2, 3, figsize=(9, 4.6), layout="constrained")
for number, axes in enumerate(grid.flat):
    vector = shown[:, number]
    top = float(vector.abs().max())
    axes.scatter(*x.T, c=vector, s=1.5, cmap="RdBu_r", vmin=-top, vmax=top)
    axes.set(xticks=[], yticks=[], title=f"vector {number + 1}")
plt.show()
