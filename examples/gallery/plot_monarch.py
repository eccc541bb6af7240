"""
A layer of Monarch matrices
===========================

A Monarch matrix is a product of two sparse matrices: one with blocks on the diagonal, one with interleaved blocks.
Every input still reaches every output, with a fraction of the weights. :class:`kernmantle.KSLinear` multiplies by such
factors without permuting or storing anything in between, and is trained like ``torch.nn.Linear``.
"""

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import nn

import kernmantle as km

pixels, labels = load_digits(return_X_y=True)
x, y = torch.from_numpy(pixels / 16).float(), torch.from_numpy(labels)
train, test = slice(0, 1200), slice(1200, None)
hidden = 256

# %%
# Two networks that differ in their hidden layer.

patterns = km.kronsparse.monarch((hidden, hidden), p=16, q=16)
for pattern in patterns:
    print(pattern)


def network(middle):
    """A classifier with one exchangeable hidden layer."""
    return nn.Sequential(nn.Linear(64, hidden), nn.ReLU(), middle, nn.ReLU(), nn.Linear(hidden, 10))


torch.manual_seed(0)
networks = {
    "dense": network(nn.Linear(hidden, hidden)),
    "Monarch": network(km.KSLinear(hidden, hidden, patterns)),
}
curves = {}
for name, model in networks.items():
    torch.manual_seed(0)
    adam, right = torch.optim.Adam(model.parameters(), lr=4e-3), []
    for _ in range(8):
        for batch in torch.randperm(1200).split(150):
            adam.zero_grad()
            nn.functional.cross_entropy(model(x[train][batch]), y[train][batch]).backward()
            adam.step()
        with torch.no_grad():
            right.append(100 * float((model(x[test]).argmax(1) == y[test]).double().mean()))
    curves[name] = right
weights = {name: sum(p.numel() for p in model[2].parameters()) for name, model in networks.items()}
for name in networks:
    print(f"{name:8} {weights[name]:6} weights in the hidden layer, {curves[name][-1]:.1f} % test accuracy")
assert curves["Monarch"][-1] > curves["dense"][-1] - 3

# %%
# The non-zero entries of both factors, and of their product, which is dense.

figure, grid = plt.subplots(1, 4, figsize=(11, 2.8), layout="constrained")
product = km.plot.supports(patterns, axes=grid[:3])[-1].images[0].get_array()
assert (product > 0).all()
for (name, right), colour in zip(curves.items(), ["#8a94a0", "#1b6ca8"], strict=True):
    grid[3].plot(range(1, 9), right, color=colour, label=f"{name}, {weights[name]} weights")
grid[3].set(xlabel="epoch", title="test accuracy (%)", ylim=(80, 100))
grid[3].legend(frameon=False, fontsize=8)
plt.show()
