"""Predicted times of Kronecker-sparse products on a GPU that is not present, by the models that choose kernels."""

from __future__ import annotations

import math

import torch

from ...backends.cuda.cards import Card
from ...backends.cuda.kernel_cost import PRODUCTS, START, Launch
from ...torch_ops.card_target import predicted
from ...torch_ops.dtypes import NAMES
from .cost import TRANSPOSED, padded_blocks_seconds, quickest, quickest_gradient, seconds, transposed_seconds
from .cuda import is_transposed, kernel_seconds, problem_of
from .operands import empty
from .tiles import plan

Maybe = torch.Tensor | None
_NAMES = {"stream": "streamed weights", "fma": "FMA instructions"}


@predicted("kron_sparse")
def product(
    card: Card, x: torch.Tensor, weight: torch.Tensor, bias: Maybe, activation: str, batch_last: bool, algorithm: str,
    precision: str,
) -> list[Launch]:  # fmt: skip
    """Return the launches of a product of x (G, N, a c d) with weights (H, a, b, c, d)."""
    a, b, c, d = (int(size) for size in weight.shape[1:])
    pattern = a, b, c, d
    groups, batch, dtype = x.shape[0], x.shape[1], NAMES[x.dtype]
    if not groups * batch * math.prod(pattern):
        return []
    out = empty(x, a * b * d, batch_last)
    problem = problem_of(x, weight, bias, activation, precision, out)
    kernel, transposed, kind = math.inf, math.inf, "tile"
    if problem is not None and (precision != "ieee" or dtype == "f64"):
        made = padded_blocks_seconds(pattern, dtype, is_transposed(weight))
        kind, kernel = kernel_seconds(problem, weight, card.limits, True)
        transposed = transposed_seconds(problem, card.limits) + made
    last = x.stride(2) != 1 and x.shape[2] > 1
    after = bias is not None, activation != ""
    own = None if kernel == math.inf else kernel / groups
    if algorithm == "auto":
        name, taken = quickest(pattern, batch, dtype, "cuda", last, own, False, *after)
        name, taken = (name, taken) if taken <= transposed / groups else (TRANSPOSED, transposed / groups)
    else:
        times = seconds(pattern, batch, dtype, "cuda", last)
        taken = own if algorithm == "kernel" and own is not None else times.get(algorithm, times["dense"])
        name = algorithm
    scratch = 0
    if name in ("kernel", TRANSPOSED) and problem is not None:
        chosen = plan(problem, card.limits) if kind == "tile" else None
        scratch = 0 if chosen is None else chosen.image_bytes(problem)
        scratch += x.nbytes + out.nbytes if name == TRANSPOSED else 0
    elif name == "dense":
        scratch = x.element_size() * a * b * d * a * c * d
    elif d > 1:
        scratch = x.nbytes + out.nbytes
    how = _NAMES.get(kind, name) if name == "kernel" else name
    return [_launch(f"kron_sparse by {how}", x, weight, out, groups * taken, scratch, card)]


@predicted("kron_sparse_weight")
def weight_gradient(
    card: Card, x: torch.Tensor, grad: torch.Tensor, a: int, b: int, c: int, d: int, algorithm: str, precision: str
) -> list[Launch]:
    """Return the launches of the gradient of weights."""
    out = torch.empty(x.shape[0], a, b, c, d, dtype=x.dtype, device="meta")
    last = x.stride(2) != 1 and x.shape[2] > 1
    name, taken = quickest_gradient((a, b, c, d), x.shape[1], NAMES[x.dtype], "cuda", last)
    return [_launch(f"kron_sparse_weight by {name}", x, out, grad, x.shape[0] * taken, 0, card)]


def _launch(
    name: str, x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, taken: float, scratch: int, card: Card
) -> Launch:
    """Return one launch, with the times of its bytes alone and of its multiplications alone."""
    products = float(x.shape[0]) * x.shape[1] * math.prod(weight.shape[1:])
    moved = x.nbytes + weight.nbytes + out.nbytes
    return Launch(name, START, moved / card.memory_rate, products / PRODUCTS[NAMES[x.dtype]], scratch, taken)
