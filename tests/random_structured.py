"""Random Kronecker and Kronecker-sparse products with gradients, and what they must give: torch in float64."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

import kernmantle as km
from kernmantle.testing import assert_close
from kernmantle.testing.tolerances import FORMATS

EXTENTS = (1, 2, 3, 4, 5, 7, 8, 12, 15, 16, 17, 24, 31, 32, 33, 48, 63, 64, 65, 96, 127, 128, 129)
ROWS = (0, 1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 100, 127, 128, 129, 255, 257, 500)
DTYPES = (torch.float32, torch.float32, torch.bfloat16, torch.float16, torch.float64)
LAYOUTS = ("dense", "dense", "turned round", "every other", "off by one", "broadcast")
ACTIVATIONS: dict[str | None, Callable[[Any], Any]] = {
    None: lambda value: value,
    "gelu": torch.nn.functional.gelu,
    "silu": torch.nn.functional.silu,
}
WIDEST = 1 << 13
LARGEST = 1 << 19
"""Numbers in the largest row and the largest array of a case."""


def _pad(tensor: torch.Tensor, layout: str) -> torch.Tensor:
    """Return the numbers of a matrix in memory of a layout."""
    if layout == "turned round":
        return tensor.mT.contiguous().mT
    if layout == "every other":
        return torch.stack((tensor, tensor), -1).flatten(-2)[..., ::2]
    if layout == "off by one":
        return torch.nn.functional.pad(tensor, (1, 0))[..., 1:]
    if layout == "broadcast":
        return tensor[:1].expand_as(tensor)
    return tensor


@dataclass
class Structured:
    """A product: its exact form and the library's, of leaves x and weights; how often a result is rounded."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, int]
    wide: int
    weights: list[tuple[int, ...]]
    exact: Callable[[torch.Tensor, Sequence[torch.Tensor], bool], torch.Tensor]
    call: Callable[[torch.Tensor, Sequence[torch.Tensor]], torch.Tensor]
    layout: str = "dense"
    slope: str = "dense"
    wanted: list[bool] = field(default_factory=lambda: [True])


def _kron(pick: random.Random, rows: int) -> Structured:
    count = pick.choice((1, 2, 2, 3, 3, 4, 5))
    sizes: list[tuple[int, int]] = []
    while len(sizes) < count:
        p = pick.choice(EXTENTS)
        sizes.append((p, p if pick.random() < 0.6 else pick.choice(EXTENTS)))
        if max(math.prod(max(s) for s in sizes), 1) > WIDEST:
            sizes.pop()
            count -= 1
    sizes = sizes or [(3, 5)]
    shared = len(set(sizes)) == 1 and pick.random() < 0.5
    alpha = pick.choice((1, 1, 1, -0.75))
    left = pick.random() < 0.2
    places = [0 if shared else place for place in range(len(sizes))]
    into, out = (math.prod(s[side] for s in sizes) for side in (0, 1))
    rows = min(rows, LARGEST // max(into, out))

    def exact(x: torch.Tensor, weights: Sequence[torch.Tensor], size: bool) -> torch.Tensor:
        matrices = [weights[place].mT if left else weights[place] for place in places]
        value = x.mT if left else x
        for place, matrix in enumerate(matrices):
            left_of = math.prod(m.shape[1] for m in matrices[:place])
            right_of = math.prod(m.shape[0] for m in matrices[place + 1 :])
            value = value.reshape(value.shape[0], left_of, matrix.shape[0], right_of)
            value = torch.einsum("nakl,kj->najl", value, matrix).flatten(1)
        return (abs(alpha) if size else alpha) * (value.mT if left else value)

    def call(x: torch.Tensor, weights: Sequence[torch.Tensor]) -> torch.Tensor:
        return km.kron_matmul(x, [weights[place] for place in places], alpha=alpha, side="left" if left else "right")

    shapes = [(q, p) if left else (p, q) for p, q in (sizes[:1] if shared else sizes)]
    name = f"kron {sizes} shared {shared} left {left} alpha {alpha}"
    return Structured(name, torch.float32, (into, rows) if left else (rows, into), len(sizes), shapes, exact, call)


def _sparse(pick: random.Random, rows: int) -> Structured:
    while True:
        a, b, c, d = (pick.choice(EXTENTS) for _ in range(4))
        if a * d * max(b, c) <= WIDEST and a * b * c * d <= LARGEST:
            break
    patterns = [(a, b, c, d)]
    wide = a * b * d
    follow = [(e, f) for e in range(1, 17) for f in range(1, 17) if wide % (e * f) == 0 and wide // (e * f) <= 256]
    if follow and pick.random() < 0.3:
        e, f = pick.choice(follow)
        patterns.append((e, pick.choice((1, 2, 3, 5, 8, 16, 17)), wide // (e * f), f))
    last, activation = pick.random() < 0.3, pick.choice((None, None, None, "gelu", "silu"))
    biased = pick.random() < 0.4
    into, out = a * c * d, patterns[-1][0] * patterns[-1][1] * patterns[-1][3]
    rows = min(rows, LARGEST // max(into, out, wide))

    def exact(x: torch.Tensor, weights: Sequence[torch.Tensor], size: bool) -> torch.Tensor:
        value = x.mT if last else x
        for (i, j, k, m), weight in zip(patterns, weights, strict=False):
            value = torch.einsum("nikl,ijkl->nijl", value.reshape(value.shape[0], i, k, m), weight).reshape(
                value.shape[0], i * j * m
            )
        value = value + weights[-1] if biased else value
        value = value if size else ACTIVATIONS[activation](value)
        return value.mT if last else value

    def call(x: torch.Tensor, weights: Sequence[torch.Tensor]) -> torch.Tensor:
        own = list(weights[: len(patterns)])
        bias = weights[-1] if biased else None
        return km.kron_sparse_matmul(x, own, bias=bias, activation=activation, batch_last=last)

    shapes: list[tuple[int, ...]] = [*patterns, *([(out,)] if biased else [])]
    name = f"sparse {patterns} last {last} bias {biased} {activation}"
    rounds = len(patterns) + 3 * (activation is not None)
    return Structured(name, torch.float32, (into, rows) if last else (rows, into), rounds, shapes, exact, call)


def generate(structure: int, variant: int) -> Structured:
    """Return the case of a structure with rows, layouts and wanted gradients of a variant."""
    rows = random.Random(f"{structure} {variant}")
    pick = random.Random(structure)
    dtype = pick.choice(DTYPES)
    case = pick.choice((_kron, _sparse))(pick, rows.choice(ROWS))
    case.dtype = dtype
    case.layout, case.slope = rows.choice(LAYOUTS), rows.choice(LAYOUTS)
    case.wanted = [rows.random() < 0.8 for _ in range(1 + len(case.weights))]
    case.name += f" {str(dtype)[6:]} {case.shape} {case.layout} {case.slope} {case.wanted}"
    return case


def _near(found: torch.Tensor, wanted: torch.Tensor, terms: torch.Tensor, case: Structured, depth: int) -> None:
    """Assert that each entry and all of them together are right."""
    rounds = case.wide + 2
    assert_close(found, wanted, dtype=case.dtype, depth=depth, magnitude=rounds * terms)
    if case.dtype in (torch.bfloat16, torch.float16):
        allowed = rounds * FORMATS[str(case.dtype)[6:]].roundoff
    else:
        allowed = rounds * FORMATS[str(case.dtype)[6:]].roundoff * (4 + math.sqrt(depth) / 2)
    error = float((found.detach().double() - wanted).norm())
    assert error <= allowed * float(wanted.norm() + 0.05 * terms.norm()) + 1e-6 * (case.dtype == torch.float16), error


def check(structure: int, variant: int, device: str, odd: bool = False) -> None:
    """Assert that a case's value and gradients are right on a device.

    If ``odd``, arrays begin between vectors, and gradients are asked for one by one before all of them are.
    """
    case = generate(structure, variant)
    seed = torch.Generator().manual_seed(1000 * structure + variant)

    def normal(shape: Sequence[int], fan: float = 1.0) -> torch.Tensor:
        drawn = torch.randn(tuple(shape), generator=seed, dtype=torch.float64) / math.sqrt(fan)
        drawn = drawn.to(case.dtype).to(device)
        return torch.nn.functional.pad(drawn.flatten(), (1, 0))[1:].view(drawn.shape) if odd else drawn

    x = _pad(normal(case.shape), case.layout).detach()
    fans = [shape[2] if len(shape) == 4 else shape[0] if len(shape) == 2 else 1 for shape in case.weights]
    weights = [normal(shape, fan) for shape, fan in zip(case.weights, fans, strict=True)]
    leaves = [x, *weights]
    for leaf, wanted in zip(leaves, case.wanted, strict=True):
        leaf.requires_grad_(wanted)
    found = case.call(leaves[0], leaves[1:])
    cotangent = _pad(normal(found.shape), case.slope)
    exact = [leaf.detach().double().requires_grad_(wanted) for leaf, wanted in zip(leaves, case.wanted, strict=True)]
    sizes = [leaf.detach().abs().requires_grad_() for leaf in exact]
    right, terms = case.exact(exact[0], exact[1:], False), case.exact(sizes[0], sizes[1:], True)
    depth = max(math.prod(shape) for shape in case.weights)
    _near(found, right.detach(), terms.detach(), case, depth)
    asked = [place for place, wanted in enumerate(case.wanted) if wanted]
    if not asked:
        return
    wanted = torch.autograd.grad(right, [exact[place] for place in asked], cotangent.double())
    limits = torch.autograd.grad(terms, [sizes[place] for place in asked], cotangent.double().abs())
    for places in (*([place] for place in asked if odd), asked):
        slopes = torch.autograd.grad(found, [leaves[place] for place in places], cotangent, retain_graph=odd)
        for place, own in zip(places, slopes, strict=True):
            number = asked.index(place)
            _near(own, wanted[number], limits[number], case, depth + found.numel())
