"""Log-likelihoods of sequences under a hidden Markov model, without underflow.

The forward algorithm is a chain of matrix products in the semiring (logsumexp, +). After thousands of steps the
probabilities are far below the smallest float, so the computation uses logarithms. Each step is one fused contraction
that stores no intermediate terms.
"""
# ruff: noqa: T201

from __future__ import annotations

import torch

import kernmantle as km

step = km.Contraction("mk,kn->mn", lambda a, b: a + b, reduce="logsumexp")


def log_likelihood(start: torch.Tensor, moves: torch.Tensor, emits: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    """Logarithms of the probabilities of sequences ``seen`` (sequences, time) of symbols.

    ``start`` (states,), ``moves`` (from, to) and ``emits`` (state, symbol) are logarithms.
    """
    belief = start + emits[:, seen[:, 0]].T
    for symbols in seen.T[1:]:
        belief = step(belief, moves) + emits[:, symbols].T
    return belief.logsumexp(1)


def model(states: int, symbols: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A random model."""
    random = torch.Generator().manual_seed(0)
    sizes = ((states,), (states, states), (states, symbols))
    start, moves, emits = (torch.randn(size, generator=random, dtype=torch.float64).log_softmax(-1) for size in sizes)
    return start, moves, emits


def main() -> None:
    """Score sequences, and find by gradient how often each move was probably made."""
    start, moves, emits = model(states=32, symbols=12)
    seen = torch.randint(12, (64, 200), generator=torch.Generator().manual_seed(1))
    moves.requires_grad_()
    scores = log_likelihood(start, moves, emits, seen)
    (counts,) = torch.autograd.grad(scores.sum(), moves)
    expected = 64 * 199
    torch.testing.assert_close(counts.sum(), torch.tensor(float(expected), dtype=torch.float64))
    mean = scores.detach().mean()
    print(f"log-likelihood of a sequence of 200: {mean:.2f} on average, a probability of {mean.exp():.0e}")
    print(f"expected numbers of moves add up to {counts.sum():.3f}, which is {expected}")


if __name__ == "__main__":
    main()
