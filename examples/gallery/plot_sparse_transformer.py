"""
A vision transformer with a third of the weights
================================================

:func:`kernmantle.replace_linears` replaces the linear layers of a model by Kronecker-sparse ones. Here every matrix in
the block of a small vision transformer becomes a product of two Monarch factors. The model classifies digits as well
as the dense one.
"""

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import nn

import kernmantle as km

pixels, labels = load_digits(return_X_y=True)
order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
patches = torch.from_numpy(pixels / 16).float().view(-1, 4, 2, 4, 2).transpose(2, 3).reshape(-1, 16, 4)[order]
y = torch.from_numpy(labels)[order]
train, test = slice(0, 1200), slice(1200, None)
width, heads, epochs = 64, 4, 10

# %%
# The model: patches of 2 x 2 pixels, one transformer block, and the mean over all positions.


class Attention(nn.Module):
    """Self-attention."""

    def __init__(self):
        super().__init__()
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)
        return self.proj(nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(-2))


class Transformer(nn.Module):
    """A classifier of images given as patches."""

    def __init__(self):
        super().__init__()
        self.embed, self.position = nn.Linear(4, width), nn.Parameter(0.02 * torch.randn(16, width))
        self.norm1, self.attn, self.norm2 = nn.LayerNorm(width), Attention(), nn.LayerNorm(width)
        self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 10))

    def forward(self, x):
        x = self.embed(x) + self.position
        x = x + self.attn(self.norm1(x))
        x = x + self.fc2(nn.functional.gelu(self.fc1(self.norm2(x))))
        return self.head(x.mean(1))


# %%
# Replace the layers of one of two such models, with newly initialised weights. The report lists every layer.


def monarch(_, layer):
    """Return two factors of 8 x 8 blocks of rank 2."""
    return km.kronsparse.monarch((layer.out_features, layer.in_features), p=8, q=8, rank=2)


torch.manual_seed(0)
models = {"dense": Transformer(), "Kronecker-sparse": Transformer()}
report = km.replace_linears(models["Kronecker-sparse"], monarch, part="block", project=False)
print(report)

# %%
# Train both models in the same way.

curves = {}
for name, model in models.items():
    torch.manual_seed(1)
    adam, right = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.05), []
    plan = torch.optim.lr_scheduler.OneCycleLR(adam, 4e-3, epochs * 24)
    for _ in range(epochs):
        for batch in torch.randperm(1200).split(50):
            adam.zero_grad()
            nn.functional.cross_entropy(model(patches[train][batch]), y[train][batch]).backward()
            adam.step()
            plan.step()
        with torch.no_grad():
            right.append(100 * float((model(patches[test]).argmax(1) == y[test]).double().mean()))
    curves[name] = right
    count = sum(p.numel() for p in model.parameters())
    print(f"{name:17} {count} parameters, {right[-1]:.1f} % test accuracy")
assert report.after < 0.45 * report.before
assert curves["Kronecker-sparse"][-1] > curves["dense"][-1] - 2

# %%

figure, (left, bars) = plt.subplots(1, 2, figsize=(9, 3), layout="constrained", width_ratios=(2, 1))
colours = ["#8a94a0", "#1b6ca8"]
for (name, right), colour in zip(curves.items(), colours, strict=True):
    left.plot(range(1, epochs + 1), right, color=colour, label=name)
left.set(xlabel="epoch", title="test accuracy (%)", ylim=(40, 100))
left.legend(frameon=False)
weights = [sum(layer.before for layer in report.layers), sum(layer.after for layer in report.layers)]
bars.bar(list(models), weights, color=colours)
bars.set_title("weights in the block")
for axes in (left, bars):
    axes.spines[["top", "right"]].set_visible(False)
plt.show()
