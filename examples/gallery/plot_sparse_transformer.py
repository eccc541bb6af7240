"""
A vision transformer with a third of the weights
================================================

:func:`kernmantle.replace_linears` puts Kronecker-sparse layers in the place of a model's linear ones: here
two Monarch factors for every matrix in the block of a small vision transformer, which learns to read digits as well as
the dense one does.
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
known, held = slice(0, 1200), slice(1200, None)
width, heads, epochs = 64, 4, 14

# %%
# The model: patches of 2 x 2 pixels, one block of attention and two layers, the mean of all places.


class Attention(nn.Module):
    """Every place looks at all places."""

    def __init__(self):
        super().__init__()
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)
        return self.proj(nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(-2))


class Transformer(nn.Module):
    """Patches to classes."""

    def __init__(self):
        super().__init__()
        self.embed, self.place = nn.Linear(4, width), nn.Parameter(0.02 * torch.randn(16, width))
        self.norm1, self.attn, self.norm2 = nn.LayerNorm(width), Attention(), nn.LayerNorm(width)
        self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 10))

    def forward(self, x):
        x = self.embed(x) + self.place
        x = x + self.attn(self.norm1(x))
        x = x + self.fc2(nn.functional.gelu(self.fc1(self.norm2(x))))
        return self.head(x.mean(1))


# %%
# One of two such models gets sparse layers with fresh weights. The report says what became of every layer.


def monarch(_, layer):
    """Two factors of 8 x 8 blocks of rank 2."""
    return km.kronsparse.monarch((layer.out_features, layer.in_features), p=8, q=8, rank=2)


torch.manual_seed(0)
models = {"dense": Transformer(), "Kronecker-sparse": Transformer()}
report = km.replace_linears(models["Kronecker-sparse"], monarch, part="block", project=False)
print(report)

# %%
# Both are trained alike.

curves = {}
for name, model in models.items():
    torch.manual_seed(1)
    adam, right = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.05), []
    plan = torch.optim.lr_scheduler.OneCycleLR(adam, 4e-3, epochs * 24)
    for _ in range(epochs):
        for batch in torch.randperm(1200).split(50):
            adam.zero_grad()
            nn.functional.cross_entropy(model(patches[known][batch]), y[known][batch]).backward()
            adam.step()
            plan.step()
        with torch.no_grad():
            right.append(100 * float((model(patches[held]).argmax(1) == y[held]).double().mean()))
    curves[name] = right
    count = sum(p.numel() for p in model.parameters())
    print(f"{name:17} {count} parameters, {right[-1]:.1f} % of held digits right")
assert report.after < 0.45 * report.before
assert curves["Kronecker-sparse"][-1] > curves["dense"][-1] - 2

# %%

figure, (left, bars) = plt.subplots(1, 2, figsize=(9, 3), layout="constrained", width_ratios=(2, 1))
colours = ["#8a94a0", "#1b6ca8"]
for (name, right), colour in zip(curves.items(), colours, strict=True):
    left.plot(range(1, epochs + 1), right, color=colour, label=name)
left.set(xlabel="epoch", title="per cent of held digits right", ylim=(40, 100))
left.legend(frameon=False)
weights = [sum(layer.before for layer in report.layers), sum(layer.after for layer in report.layers)]
bars.bar(list(models), weights, color=colours)
bars.set_title("weights in the block")
for axes in (left, bars):
    axes.spines[["top", "right"]].set_visible(False)
plt.show()
