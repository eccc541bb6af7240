"""
Neighbours under a fractional power
===================================

A few broken pixels dominate the Euclidean distance between two images, since their differences are squared. A power
below 1 does the opposite: it counts how many pixels differ more than by how much. The power is a number that the
compiled kernel is given, so trying twelve of them compiles nothing after the first of each class.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

import kernmantle as km

pixels, labels = load_digits(return_X_y=True)
pixels = (pixels / 16).astype(np.float32)
known, held = slice(0, 1200), slice(1200, None)

# %%
# A fifth of the pixels of the held digits become black or white at random.

random = np.random.default_rng(0)
broken = pixels[held].copy()
hit = random.random(broken.shape) < 0.2
broken[hit] = random.integers(0, 2, hit.sum())

# %%
# :func:`kernmantle.argkmin` finds the nearest rows without storing the matrix of distances.

powers = [0.25, 0.5, 0.75, 1.0, 1.3, 1.6, 2.0, 2.5, 3.0, 4.0, 6.0, np.inf]
right = {"whole digits": [], "broken digits": []}
for p in powers:
    for name, queries in zip(right, (pixels[held], broken), strict=True):
        nearest = km.argkmin(queries, pixels[known], 1, p=p)[:, 0]
        right[name].append(100 * np.mean(labels[known][nearest] == labels[held]))

assert right["broken digits"][2] > right["broken digits"][6] + 4

places = range(len(powers))
figure, axes = plt.subplots(figsize=(7, 3.6), layout="constrained")
for (name, values), colour in zip(right.items(), ["#8a94a0", "#1b6ca8"], strict=True):
    axes.plot(places, values, "o-", color=colour, label=name)
axes.set_xticks(places, ["∞" if np.isinf(p) else f"{p:g}" for p in powers])
axes.set(xlabel="power p", ylabel="per cent read right")
axes.legend(frameon=False)
axes.spines[["top", "right"]].set_visible(False)

# %%
# Some broken digits, and what is nearest to them.

shown = np.flatnonzero(
    (labels[known][km.argkmin(broken, pixels[known], 1, p=2)[:, 0]] != labels[held])
    & (labels[known][km.argkmin(broken, pixels[known], 1, p=0.75)[:, 0]] == labels[held])
)[:8]
rows = {"broken": broken[shown]}
rows |= {f"p = {p:g}": pixels[known][km.argkmin(broken[shown], pixels[known], 1, p=p)[:, 0]] for p in (0.75, 2)}
figure, grid = plt.subplots(3, len(shown), figsize=(8, 3.2), layout="constrained")
for line, (name, images) in zip(grid, rows.items(), strict=True):
    for axes, image in zip(line, images, strict=True):
        axes.imshow(image.reshape(8, 8), cmap="gray_r", vmin=0, vmax=1)
        axes.set(xticks=[], yticks=[])
    line[0].set_ylabel(name)
plt.show()
