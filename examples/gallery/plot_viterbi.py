"""
Viterbi decoding and the forward algorithm
==========================================

This example infers the states of a hidden Markov model from noisy measurements. With logarithms of the transition
probabilities, a chain of matrix products in the semiring (logsumexp, +) is the forward algorithm, and in the semiring
(max, +) it is Viterbi's algorithm. Both use the same lambda with different reductions. The gradient of the
log-likelihood with respect to the evidence is the probability of every state at every time; the gradient of the best
score is the best path.
"""

import matplotlib.pyplot as plt
import torch

import kernmantle as km

# %%
# Three states that change rarely. Each has its own level; the noise is about as large as the distance between levels.

time, levels, noise = 300, torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64), 0.7
moves = torch.tensor([[0.97, 0.03, 0.0], [0.02, 0.96, 0.02], [0.0, 0.03, 0.97]], dtype=torch.float64)
source = torch.Generator().manual_seed(3)
truth = [1]
while len(truth) < time:
    truth.append(int(torch.multinomial(moves[truth[-1]], 1, generator=source)))
truth = torch.tensor(truth)
measured = levels[truth] + noise * torch.randn(time, generator=source, dtype=torch.float64)
evidence = (-((measured[:, None] - levels) ** 2) / (2 * noise**2)).requires_grad_()

# %%
# The equation is ``"mk,kn->mn"``, and the product is a sum of logarithms. A forbidden transition has log-probability
# minus infinity.


def score(reduce):
    """Return the log-probability of all sequences of states together, or of the best one."""
    step = km.Contraction("mk,kn->mn", lambda a, b: a + b, reduce=reduce)
    belief = evidence[:1] - torch.log(torch.tensor(3.0))
    for t in range(1, time):
        belief = step(belief, moves.log()) + evidence[t]
    return step(belief, torch.zeros(3, 1, dtype=torch.float64)).squeeze()


(posterior,) = torch.autograd.grad(score("logsumexp"), evidence)
(path,) = torch.autograd.grad(score("max"), evidence)
assert torch.allclose(posterior.sum(1), torch.ones(time, dtype=torch.float64))
assert torch.equal(path.sum(1), torch.ones(time, dtype=torch.float64))
assert set(path.unique().tolist()) == {0.0, 1.0}
best = path.argmax(1)
right, naive = ((guess == truth).double().mean() for guess in (best, evidence.detach().argmax(1)))
print(f"accuracy {100 * right:.0f} %; without the transition probabilities {100 * naive:.0f} %")

figure, (above, below) = plt.subplots(2, 1, figsize=(8.5, 4.6), layout="constrained", sharex=True)
above.plot(measured, ".", color="#9aa5b1", markersize=4, label="measured")
above.plot(levels[truth], color="#22313f", linewidth=4, alpha=0.35, label="truth")
above.plot(levels[best], color="#e07a2f", linewidth=1.5, label="most probable sequence")
above.legend(frameon=False, ncols=3, loc="upper left", bbox_to_anchor=(0, 1.2))
below.stackplot(range(time), posterior.T, colors=["#8fbbdc", "#eeeeee", "#f3c19c"], labels=["low", "middle", "high"])
below.set(xlabel="time", ylabel="probability of each state", xlim=(0, time - 1), ylim=(0, 1))
below.legend(frameon=True, ncols=3, loc="lower left")
for axes in (above, below):
    axes.spines[["top", "right"]].set_visible(False)
plt.show()
