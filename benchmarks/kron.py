"""The suite of Kronecker products: sizes of the literature and of programs, against the shuffle algorithm."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import numpy as np
import torch

from kernmantle.kron import kron_matmul

from .case import DTYPES, PICKED, Arrays, Case, Exact, Peer, Picks, Prepare, Problem, Suite, Target
from .work import Work

H200 = "H200"
SHUFFLE, FORMED, FASTKRON, PRODUCT = "shuffle", "torch.kron", "FastKron", "gradient of x alone"
MOST_FORMED = 1 << 24
COMPARED = 1 << 22
# All gradients take at most so many times as long as a product.
BACKWARD = 2.5
Size = tuple[int, int, int]

# Rows, base and number of square factors: seconds to reach on an H200 in float32 and float64.
TABLE: dict[Size, dict[str, float]] = {
    (1024, 8, 5): {"f32": 98e-6}, (1024, 16, 4): {"f32": 230e-6}, (1024, 32, 3): {"f32": 103e-6},
    (1024, 64, 2): {"f32": 20e-6}, (1024, 64, 3): {"f32": 1170e-6, "f64": 3.2e-3},
    (320, 128, 3): {"f32": 4.2e-3, "f64": 12e-3}, (1024, 8, 6): {"f32": 1.3e-3}, (1024, 32, 4): {"f32": 4.8e-3},
    (16, 8, 8): {"f32": 1.4e-3},
}  # fmt: skip
REAL_WORLD: list[Size] = [
    (20, 2, 7), (20, 2, 9), (50, 2, 9), (20, 2, 10), (1, 2, 11), (10, 64, 2), (50, 64, 2), (4, 2, 9), (8, 2, 9),
    (16, 2, 9), (8, 8, 3), (16, 8, 3), (20, 8, 3), (1024, 4, 7), (1024, 4, 9), (256, 8, 7), (1, 8, 4), (1, 32, 4),
    (1526, 4, 6), (156, 8, 3), (2967, 4, 7), (16, 16, 6), (16, 32, 5), (16, 64, 3),
]  # fmt: skip
ODD: list[Size] = [
    (1024, 5, 6), (1024, 12, 3), (1024, 24, 3), (1024, 31, 2), (1024, 50, 2), (1024, 55, 2), (1024, 62, 2),
    (256, 127, 2), (256, 129, 2), (64, 255, 2), (1024, 505, 1), (1024, 1024, 1),
]  # fmt: skip
# Times as fast as FastKron and as the shuffle algorithm on two cores.
CPU_TABLE: dict[Size, tuple[float, float]] = {(1024, 8, 5): (2.5, 18.0), (256, 32, 3): (1.3, 5.5)}
CPU_MOST = 1 << 22


def _factors(given: Arrays) -> list[torch.Tensor]:
    return [given[f"f{place}"] for place in range(len(given) - ("x" in given) - ("g" in given))]


def shuffle(x: torch.Tensor, factors: Sequence[torch.Tensor]) -> torch.Tensor:
    """One wide matrix product and one transposition for every factor; an x whose columns are dense is not copied."""
    wide, rows = x.mT, x.shape[0]
    for factor in factors:
        p, q = factor.shape
        wide = (factor.mT @ wide.reshape(p, -1)).reshape(q, -1, rows).transpose(0, 1)
    return wide.reshape(-1, rows).mT


def _by_columns(prepare: Prepare) -> Prepare:
    """The same with the columns of x and of g dense, as the shuffle algorithm reads them."""

    def prepared(given: Arrays) -> Callable[[], Any]:
        return prepare({name: _dense_columns(value) if name in ("x", "g") else value for name, value in given.items()})

    return prepared


def _dense_columns(x: torch.Tensor) -> torch.Tensor:
    return x.mT.contiguous().mT


def _ours(given: Arrays) -> Callable[[], Any]:
    x, factors = given["x"], _factors(given)
    out = kron_matmul(x, factors)
    return lambda: kron_matmul(x, factors, out=out)


def _shuffled(given: Arrays) -> Callable[[], Any]:
    x, factors = given["x"], _factors(given)
    return lambda: shuffle(x, factors)


def _formed(given: Arrays) -> Callable[[], Any]:
    x, factors = given["x"], _factors(given)

    def call() -> torch.Tensor:
        whole = factors[0]
        for factor in factors[1:]:
            whole = torch.kron(whole, factor)
        return x @ whole

    return call


def _fastkron(given: Arrays) -> Callable[[], Any]:
    x, factors = given["x"], _factors(given)
    gemkm = import_module("pyfastkron.fastkrontorch").gemkm
    return lambda: gemkm(x, factors)


def _backward(forward: Callable[[torch.Tensor, list[torch.Tensor]], torch.Tensor]) -> Prepare:
    """Gradients of x and of all factors, that of x returned, from a product computed before."""

    def prepare(given: Arrays) -> Callable[[], Any]:
        x, *factors = (own.detach().requires_grad_() for own in (given["x"], *_factors(given)))
        out = forward(x, factors)
        return lambda: torch.autograd.grad(out, (x, *factors), given["g"], retain_graph=True)[0]

    return prepare


def _adjoint(given: Arrays) -> Callable[[], Any]:
    """The gradient of x, which is a product like that whose gradients are wanted."""
    g, factors = given["g"], [factor.mT for factor in _factors(given)]
    out = kron_matmul(g, factors)
    return lambda: kron_matmul(g, factors, out=out)


def _exact(count: int, backward: bool) -> Callable[[Exact, Picks], np.ndarray[Any, Any]]:
    def exact(given: Exact, picks: Picks) -> np.ndarray[Any, Any]:
        factors = [given[f"f{place}"] for place in range(count)]
        if backward:
            factors = [factor.T for factor in factors]
        value = given["g" if backward else "x"]
        return _columns(value, factors, np.asarray(picks.columns))

    return exact


def _columns(x: np.ndarray[Any, Any], factors: Sequence[Any], columns: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Those columns of the product, each digit of their numbers by one column of its factor."""
    if not factors:
        return np.repeat(x, len(columns), axis=1)
    first, *rest = factors
    inner = math.prod(factor.shape[1] for factor in rest)
    digits, found = columns // inner, np.empty((len(x), len(columns)))
    own = np.unique(digits)
    wide = np.matmul(first[:, own].T, x.reshape(len(x), first.shape[0], -1))
    for place, digit in enumerate(own):
        found[:, digits == digit] = _columns(wide[:, place], rest, columns[digits == digit] % inner)
    return found


def _read(given: Arrays, picks: Picks) -> Arrays:
    """Of the inputs the rows that are compared."""
    return {name: value[picks.rows] if name in ("x", "g") else value for name, value in given.items()}


def _inputs(size: Size, dtype: str, backward: bool) -> Callable[[str], Arrays]:
    rows, base, count = size

    def inputs(device: str) -> Arrays:
        source = torch.Generator(device).manual_seed(1)

        def drawn(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=source, device=device, dtype=torch.float32)

        found = {f"f{place}": (drawn(base, base) / math.sqrt(base)).to(DTYPES[dtype]) for place in range(count)}
        found["x"] = drawn(rows, base**count).to(DTYPES[dtype])
        if backward:
            found["g"] = drawn(rows, base**count).to(DTYPES[dtype])
        return found

    return inputs


def case(size: Size, dtype: str, device: str, backward: bool = False) -> Case:
    """One size and type, or its backward pass."""
    rows, base, count = size
    width = base**count
    moved, products = rows * width, float(rows * width * base * count)
    bytes_each = DTYPES[dtype].itemsize
    kind = {"f32": ("fp16", 3.0), "f64": ("", 0.0)}.get(dtype, ("fp16", 1.0)) if device == "cuda" else ("fma.f32", 1.0)
    work = Work(
        2.0 * moved * bytes_each, {kind[0]: kind[1] * products} if kind[0] and dtype != "f64" else {}, serial=False
    )
    half = dtype in ("f16", "bf16")
    problem = Problem(
        _inputs(size, dtype, backward),
        _exact(count, backward),
        (rows, width),
        base * count,
        dtype,
        _read,
        max(1, min(PICKED, COMPARED // width)),
    )
    if backward:
        ours = _backward(kron_matmul)
        peers = [Peer(PRODUCT, _adjoint), Peer(SHUFFLE, _by_columns(_backward(shuffle)))]
    else:
        ours, peers = _ours, [Peer(SHUFFLE, _by_columns(_shuffled)), Peer(FASTKRON, _fastkron, "pyfastkron")]
        if count > 1 and width**2 <= MOST_FORMED:
            peers.append(Peer(FORMED, _formed))
    if dtype not in ("f32", "f64"):
        peers = [peer for peer in peers if peer.name != FASTKRON]
    return Case(
        f"{rows} {base}^{count} {dtype}{' backward' if backward else ''}",
        f"{rows} rows, {count} factors {base} x {base}, {dtype}{', all gradients' if backward else ''}",
        problem, ours, tuple(peers), work, _targets(size, dtype, device, backward),
        "events" if device == "cuda" else "wall", products,
        roundings=2 * count if half else 0,
    )  # fmt: skip


def _targets(size: Size, dtype: str, device: str, backward: bool) -> tuple[Target, ...]:
    if backward:
        return (Target("faster", 1 / BACKWARD, PRODUCT, H200),)
    if device == "cpu":
        if dtype != "f32" or size not in CPU_TABLE:
            return ()
        fast, plain = CPU_TABLE[size]
        return Target("faster", fast, FASTKRON), Target("faster", plain, SHUFFLE)
    known = TABLE.get(size, {})
    seconds = known.get(dtype, known["f32"] / 2 if dtype in ("f16", "bf16") and known else 0.0)
    return (Target("seconds", seconds, machine=H200),) if seconds else ()


def suite(device: str = "", full: bool = False) -> Suite:
    """The table of sizes and those of programs, on the GPU where there is one; ``full``: odd sizes and all types."""
    kind = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if kind == "cuda":
        rows = [case(size, dtype, kind) for size in TABLE for dtype in ("f32", "f64", "f16", "bf16")]
        rows += [case(size, dtype, kind, backward=True) for size in list(TABLE)[:5] for dtype in ("f32", "f16")]
    else:
        rows = [case(size, dtype, kind) for size in CPU_TABLE for dtype in ("f32", "f64")]
    sizes = [*REAL_WORLD, *(ODD if full else [])]
    for size in sizes:
        if kind == "cuda" or size[0] * size[1] ** size[2] <= CPU_MOST:
            rows += [case(size, dtype, kind) for dtype in (("f32", "f64") if full else ("f32",))]
    return Suite("kron", kind, tuple(rows))
