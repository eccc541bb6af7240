"""
Colours of one picture for another
==================================

The pixels of a picture are points in the space of colours. Optimal transport moves those of one picture onto those of
another at the least total change, and the mean of where a pixel goes is its new colour. The costs between 1024 and 1024
pixels would be a million numbers, and so would the plan; neither is stored.
"""

import matplotlib.pyplot as plt
import torch

import kernmantle as km

# %%
# Two pictures: hills by day, and a sea at sunset.

side = 32
down, across = torch.meshgrid(torch.linspace(0, 1, side), torch.linspace(0, 1, side), indexing="ij")
noise = 0.04 * torch.randn(side, side, 3, generator=torch.Generator().manual_seed(0))
hill = 0.55 + 0.12 * torch.sin(7 * across) + 0.06 * torch.sin(17 * across + 1)
sky = torch.tensor([0.45, 0.7, 0.95]) + (down * 0.35)[..., None] * torch.tensor([1.0, 0.6, 0.1])
grass = torch.tensor([0.2, 0.55, 0.15]) * (1.2 - 0.7 * (down - hill))[..., None]
day = torch.where((down > hill)[..., None], grass, sky).add(noise).clamp(0, 1)
glow = torch.exp(-((down - 0.55) ** 2) / 0.03 - (across - 0.5) ** 2 / 0.2)
evening = torch.tensor([0.3, 0.1, 0.35]) + glow[..., None] * torch.tensor([0.7, 0.45, 0.0])
sea = evening * 0.55 * (1 + 0.3 * torch.sin(60 * down + 8 * across))[..., None]
dusk = torch.where((down > 0.55)[..., None], sea, evening).add(noise.flip(0)).clamp(0, 1)

# %%
# The smaller ``eps``, the sharper the plan. The product of the plan with the colours of the second picture, divided by
# the mass of a pixel, is the new colour.

x, y = day.reshape(-1, 3), dusk.reshape(-1, 3)
found = km.ot.sinkhorn(x, y, eps=0.005)
painted = (found.plan @ y * len(x)).reshape(day.shape)
assert found.converged
print(f"{found.iterations} iterations, mean change of a colour {found.plan.cost().sqrt():.2f}")

# %%
# With an absolute cost instead of a squared one, strong changes count for less. Any lambda will do.

other = km.ot.sinkhorn(x, y, eps=0.01, cost=lambda s, t: abs(s - t))
mixed = (other.plan @ y * len(x)).reshape(day.shape)
for result in (painted, mixed):
    gaps = (result.reshape(-1, 3).mean(0) - y.mean(0)).abs()
    assert gaps.max() < 1e-3

figure, axes = plt.subplots(1, 4, figsize=(9, 2.5), layout="constrained")
titles = "picture", "colours", "squared cost", "absolute cost"
for axis, picture, title in zip(axes, (day, dusk, painted, mixed), titles, strict=True):
    axis.imshow(picture.clamp(0, 1))
    axis.set_title(title, fontsize=10)
    axis.set_axis_off()
plt.show()
