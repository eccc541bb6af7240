"""
Neighbours under a fractional power
===================================

A few corrupted pixels dominate the Euclidean distance between two images, because differences are squared. A power
below 1 does the opposite: it depends more on how many pixels differ than on how much. The power is a runtime argument
of the compiled kernel, so trying twelve powers compiles only one kernel per class of powers.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

import kernmantle as km

pixels, labels = load_digits(return_X_y=True)
pixels = (pixels / 16).astype(np.float32)
train, test = slice(0, 1200), slice(1200, None)

# %%
# Set 20 % of the pixels of the test images to black or white at random.

random = np.random.default_rng(0)
corrupted = pixels[test].copy()
hit = random.random(corrupted.shape) < 0.2
corrupted[hit] = random.integers(0, 2, hit.sum())

# %%
# :func:`kernmantle.argkmin` finds the nearest rows without storing the matrix of distances.

powers = [0.25, 0.5, 0.75, 1.0, 1.3, 1.6, 2.0, 2.5, 3.0, 4.0, 6.0, np.inf]
right = {"clean images": [], "corrupted images": []}
for p in powers:
    for name, queries in zip(right, (pixels[test], corrupted), strict=True):
        nearest = km.argkmin(queries, pixels[train], 1, p=p)[:, 0]
        right[name].append(100 * np.mean(labels[train][nearest] == labels[test]))

assert right["corrupted images"][2] > right["corrupted images"][6] + 4

places = range(len(powers))
figure, axes = plt.subplots(figsize=(7, 3.6), layout="constrained")
for (name, values), colour in zip(right.items(), ["#8a94a0", "#1b6ca8"], strict=True):
    axes.plot(places, values, "o-", color=colour, label=name)
axes.set_xticks(places, ["∞" if np.isinf(p) else f"{p:g}" for p in powers])
axes.set(xlabel="power p", ylabel="accuracy (%)")
axes.legend(frameon=False)
axes.spines[["top", "right"]].set_visible(False)

# %%
# Any other distance is a lambda of one entry of each row, which is summed over the entries. Under this one a small
# difference counts for its square, and all large ones count alike.


def saturating(a, b):
    return 1 - km.exp(-((a - b) ** 2) / 0.3)


nearest = km.argkmin(corrupted, pixels[train], 1, metric=saturating)[:, 0]
with_lambda = 100 * np.mean(labels[train][nearest] == labels[test])
print(f"{with_lambda:.1f} % under the lambda, {max(right['corrupted images']):.1f} % under the best power")
assert with_lambda > max(right["corrupted images"])

# %%
# Some corrupted images and their nearest neighbours for two powers.

shown = np.flatnonzero(
    (labels[train][km.argkmin(corrupted, pixels[train], 1, p=2)[:, 0]] != labels[test])
    & (labels[train][km.argkmin(corrupted, pixels[train], 1, p=0.75)[:, 0]] == labels[test])
)[:8]
rows = {"corrupted": corrupted[shown]}
rows |= {f"p = {p:g}": pixels[train][km.argkmin(corrupted[shown], pixels[train], 1, p=p)[:, 0]] for p in (0.75, 2)}
figure, grid = plt.subplots(3, len(shown), figsize=(8, 3.2), layout="constrained")
for line, (name, images) in zip(grid, rows.items(), strict=True):
    for axes, image in zip(line, images, strict=True):
        axes.imshow(image.reshape(8, 8), cmap="gray_r", vmin=0, vmax=1)
        axes.set(xticks=[], yticks=[])
    line[0].set_ylabel(name)
plt.show()
