"""
Clusters that are not round
===========================

K-means cuts the plane into cells around means. Clusters that wind around each other, or lie inside each other, need
another idea of what is near: which rows are connected, or which feature they share. Both are a choice of a kernel here,
and no matrix of the kernel is stored.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import make_circles, make_moons
from sklearn.metrics import adjusted_rand_score

import kernmantle as km
from kernmantle.estimators import KernelKMeans, KMeans, SpectralClustering

moons, of_moons = make_moons(800, noise=0.07, random_state=0)
rings, of_rings = make_circles(800, factor=0.45, noise=0.07, random_state=0)

# %%
# :class:`kernmantle.estimators.SpectralClustering` follows connected rows: its kernel is wide enough to reach the next
# ones, and too narrow to reach across a gap.
#
# :class:`kernmantle.estimators.KernelKMeans` finds means of features. Here the feature is the squared distance from the
# middle, and its kernel, the product of the features of two rows, is written down as it is: a map of the entries of
# two rows, summed over the columns, and what is made of the sums.

squared_length = km.Kernel(lambda x, y: (x * x, y * y), lambda a, b: a * b)
methods = {
    "k-means": KMeans(2, random_state=0),
    "spectral, Gaussian of width 0.1": SpectralClustering(2, affinity=km.Gaussian(0.1), random_state=0),
    "kernel k-means of |x|²": KernelKMeans(2, kernel=squared_length, random_state=0),
}
found = {
    (name, i): method.fit_predict(x) for name, method in methods.items() for i, x in enumerate((moons, rings))
}  # fmt: skip

# %%
# How well the clusters are those that the rows were drawn from: 1 where they are the same, 0 for chance.

scores = {key: adjusted_rand_score((of_moons, of_rings)[key[1]], labels) for key, labels in found.items()}
assert scores["k-means", 0] < 0.4
assert scores["k-means", 1] < 0.1
assert min(scores["spectral, Gaussian of width 0.1", i] for i in range(2)) > 0.95
assert scores["kernel k-means of |x|²", 1] > 0.95

figure, grid = plt.subplots(2, 3, figsize=(8.4, 5.2), layout="constrained")
colours = np.array(["#1b6ca8", "#e0803a"])
for (name, i), labels in found.items():
    axes, x = grid[i, list(methods).index(name)], (moons, rings)[i]
    labels = labels if labels[0] == (of_moons, of_rings)[i][0] else 1 - labels
    axes.scatter(*x.T, s=3, color=colours[labels])
    axes.set(xticks=[], yticks=[], aspect="equal", title=name if i == 0 else "")
    axes.set_xlabel(f"agreement {scores[name, i]:.2f}")
    axes.spines[:].set_visible(False)
plt.show()
