"""
Attention that forgives outliers
================================

Every place of a noisy signal is replaced by a mean over the whole signal, weighted by how alike the surroundings are:
attention whose queries and keys are patches. Some readings are wrong altogether. With squared differences a single one
makes a patch unlike all others; with absolute differences it counts for what it is. ``km.attention`` takes either as
the score, and its scale is learned by gradients.
"""

import matplotlib.pyplot as plt
import torch

import kernmantle as km

# %%
# A signal of repeating steps; one reading in ten is replaced by a random one.

source = torch.Generator().manual_seed(1)
length, reach = 1200, 6


def measured():
    """A clean signal and its readings."""
    levels = torch.tensor([0.0, 1.0, -0.5, 0.6])[torch.arange(length) // 25 % 4]
    readings = levels + 0.15 * torch.randn(length, generator=source)
    wrong = torch.rand(length, generator=source) < 0.1
    return levels, torch.where(wrong, 6 * torch.rand(length, generator=source) - 3, readings)


def patches(readings):
    """The readings around each place."""
    padded = torch.nn.functional.pad(readings[None], (reach, reach), mode="reflect")[0]
    return padded.unfold(0, 2 * reach + 1, 1)


SCORES = {"squared": lambda a, b: -((a - b) ** 2), "absolute": lambda a, b: -abs(a - b)}


def denoised(readings, score, scale):
    around = patches(readings)
    return km.attention(around, around, readings[:, None], score=score, scale=scale)[:, 0]


# %%
# The scale of each is fitted to one signal, and tried on another.

clean, readings = measured()
wanted, fresh = measured()
errors, results = {"readings": (fresh - wanted).abs().mean().item()}, {}
for name, score in SCORES.items():
    log_scale = torch.zeros((), requires_grad=True)
    optimizer = torch.optim.Adam([log_scale], lr=0.2)
    for _ in range(15):
        loss = (denoised(readings, score, log_scale.exp()) - clean).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    results[name] = denoised(fresh, score, log_scale.exp()).detach()
    errors[name] = (results[name] - wanted).abs().mean().item()
print(", ".join(f"{name} {error:.3f}" for name, error in errors.items()))
assert errors["absolute"] < errors["squared"] < errors["readings"]

figure, axis = plt.subplots(figsize=(8.5, 3.2), layout="constrained")
axis.plot(fresh, ".", color="#9aa5b1", markersize=3, label="readings")
axis.plot(wanted, color="#22313f", linewidth=3, alpha=0.3, label="truth")
axis.plot(results["squared"], color="#8fbbdc", linewidth=1, label=f"squared score, error {errors['squared']:.3f}")
axis.plot(results["absolute"], color="#e07a2f", linewidth=1.2, label=f"absolute score, error {errors['absolute']:.3f}")
axis.set(xlim=(0, 400), ylim=(-3.2, 4.5), xlabel="time")
axis.legend(frameon=False, ncols=2, loc="upper left")
axis.spines[["top", "right"]].set_visible(False)
plt.show()
