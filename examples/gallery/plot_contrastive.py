"""
A contrastive loss without logits
=================================

InfoNCE compares every item of a batch with every other: a cross-entropy over as many classes as items. Its logits, a
matrix of the square of the batch, are only needed for one number a row, their logarithm of the sum of exponentials.
That is a reduction of the rows of a kernel, which stores no matrix, forward or backward: the batch may be as large as
the data.
"""

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits

import kernmantle as km

# %%
# The similarity is an inner product over a temperature. Minus that of an item with its own second view is the rest of
# the loss.

temperature = 0.2
similarity = km.Linear() / temperature


def info_nce(one, other):
    """Mean over the rows of ``one`` of the cross-entropy of finding their partner among the rows of ``other``."""
    return (similarity.logsumexp(one, other) - (one * other).sum(-1) / temperature).mean()


# %%
# Images of digits, a second view of each with noise, and a map to the circle. No label is used.

digits = load_digits()
images = torch.tensor(digits.data, dtype=torch.float32) / 16
source = torch.Generator().manual_seed(0)


def view():
    return images + 0.3 * torch.randn(images.shape, generator=source)


torch.manual_seed(0)
encoder = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 3))


def embedded(rows):
    return torch.nn.functional.normalize(encoder(rows), dim=-1)


# %%
# The same number as with logits.

one, other = embedded(view()), embedded(view())
logits = one @ other.T / temperature
torch.testing.assert_close(info_nce(one, other), torch.nn.functional.cross_entropy(logits, torch.arange(len(one))))

optimizer = torch.optim.Adam(encoder.parameters(), lr=0.01)
losses = []
for _ in range(40):
    loss = info_nce(embedded(view()), embedded(view()))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
assert losses[-1] < losses[0] - 1

# %%
# Neighbours on the sphere are now mostly the same digit.

points = embedded(images).detach()
labels = torch.tensor(digits.target)
nearest = km.argkmin(points, points, 2)[:, 1]
right = (labels[nearest] == labels).double().mean()
print(f"loss {losses[0]:.2f} to {losses[-1]:.2f}; the nearest neighbour is the same digit for {100 * right:.0f} %")
assert right > 0.5

figure, (left, middle) = plt.subplots(1, 2, figsize=(8.5, 3.6), layout="constrained")
left.plot(losses, color="#22313f")
left.set(xlabel="step", ylabel="loss")
left.spines[["top", "right"]].set_visible(False)
angles = torch.stack([torch.atan2(points[:, 1], points[:, 0]), points[:, 2]], 1)
middle.scatter(angles[:, 0], angles[:, 1], c=labels, cmap="tab10", s=6)
middle.set(xlabel="longitude", ylabel="height", title="the sphere, coloured by digit")
plt.show()
