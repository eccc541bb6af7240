"""
Kernel ridge regression on digits
=================================

:class:`kernmantle.estimators.KernelClassifier` fits one ridge regression per class in the feature space of a kernel,
and calibrates probabilities on rows that are left out. The kernel is a name or an expression: sums and products of
kernels form one fused kernel.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import kernmantle as km
from kernmantle.estimators import KernelClassifier

pixels, labels = load_digits(return_X_y=True)
x_train, x_test, y_train, y_test = train_test_split(pixels / 16, labels, test_size=0.6, random_state=0)

# %%
# All kernels use the same bandwidths, in units of the median distance between rows.

scale = float(km.median_bandwidth(x_train))
relative = np.geomspace(0.15, 6, 4)
bandwidths = (scale * relative).tolist()
kernels = {
    "Gaussian": km.Gaussian,
    "Laplace, p = 1": lambda h: km.Laplace(8 * h, p=1),
    "product, p = 0.7": lambda h: km.ProductLaplace(20 * h, p=0.7),
    "Matern + linear": lambda h: km.Matern(h) + 0.1 * km.Linear(),
}
found = {
    name: [KernelClassifier(1e-3, kernel=make(h)).fit(x_train, y_train).score(x_test, y_test) for h in bandwidths]
    for name, make in kernels.items()
}
for name, scores in found.items():
    print(f"{name:18} {100 * max(scores):.2f} % of {len(y_test)} test images correct")
assert max(map(max, found.values())) > 0.98

figure, axes = plt.subplots(figsize=(7, 3.6), layout="constrained")
for (name, scores), colour in zip(found.items(), ["#22313f", "#1b6ca8", "#8fbbdc", "#e07a2f"], strict=True):
    axes.semilogx(relative, 100 * np.array(scores), "o-", color=colour, label=name)
axes.set(xlabel="bandwidth / median distance", ylabel="accuracy (%)", ylim=(94, 100))
axes.set_xticks(relative, [f"{h:.2g}" for h in relative])
axes.minorticks_off()
axes.legend(frameon=False)
axes.spines[["top", "right"]].set_visible(False)

# %%
# Some of these kernels as functions of the distance between two rows.

km.plot.kernel({name: kernels[name](1.0) for name in ("Gaussian", "product, p = 0.7")} | {"Laplace": km.Laplace(1.0)})

# %%
# The digits with the least certain predictions, with the two most probable classes.

model = KernelClassifier(1e-3, kernel=km.Gaussian(scale / 2)).fit(x_train, y_train)
probabilities = model.predict_proba(x_test)
doubtful = np.argsort(probabilities.max(1))[:10]
figure, grid = plt.subplots(2, 5, figsize=(8, 3.8), layout="constrained")
for axes, place in zip(grid.flat, doubtful, strict=True):
    second, first = np.argsort(probabilities[place])[-2:]
    axes.imshow(x_test[place].reshape(8, 8), cmap="gray_r")
    guess = f"{first}: {probabilities[place, first]:.0%}, {second}: {probabilities[place, second]:.0%}"
    axes.set_title(guess, fontsize=9, color="#22313f" if first == y_test[place] else "#c0392b")
    axes.set(xticks=[], yticks=[])
plt.show()
