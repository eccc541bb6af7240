"""Forward calls of shapes that no constant of a model was fitted to, for ``km.estimate`` to be compared with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
import torch

from kernmantle.ir.functions import FUNCTIONS
from kernmantle.kron import kron_matmul
from kernmantle.kronsparse import kron_sparse_matmul
from kernmantle.pairwise import KERNELS, argkmin, cdist
from kernmantle.pairwise.constructors import make
from kernmantle.torch_ops.contract import Contraction

from . import problems
from .case import Arrays, Case, Exact, Picks, Problem, Suite
from .work import Work

NAME = "unseen"
Score = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def _wide(given: Exact) -> dict[str, torch.Tensor]:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return {name: torch.as_tensor(value).to(device, torch.float64) for name, value in given.items()}


def _case(name: str, problem: Problem, ours: Callable[[Arrays], Any], roundings: int = 0) -> Case:
    def prepare(given: Arrays) -> Callable[[], Any]:
        return lambda: ours(given)

    return Case(name, name, problem, prepare, (), Work(), (), "events", roundings=roundings)


def _pairs(
    name: str, shape: tuple[int, int, int], ours: Callable[[Arrays], Any], score: Score, dtype: str = "f32",
    columns: int = 0, nearest: int = 0, after: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> Case:  # fmt: skip
    """A score of all pairs of rows: stored, times ``columns`` of v, the ``nearest`` least, or ``after`` a reduction."""
    m, n, k = shape

    def inputs(device: str) -> Arrays:
        given = problems.distances(m, n, k, 1.0, dtype).inputs(device)
        return {**given, "v": problems.normal(n, columns, dtype, device, 3)} if columns else given

    def exact(given: Exact, picks: Picks) -> np.ndarray[Any, Any]:
        wide, rows = _wide(given), []
        for row in picks.rows:
            values = score(wide["x"][row], wide["y"])
            if columns:
                values = values @ wide["v"]
            elif nearest:
                values = values.topk(nearest, largest=False).values
            rows.append(after(values).reshape(1) if after else values[picks.columns])
        return torch.stack(rows).cpu().numpy()

    width = columns or nearest or (1 if after else n)
    depth = k if width in (n, nearest) else n
    text = f"{name} {m}x{n}x{k}" + f" C={columns}" * bool(columns) + f" k={nearest}" * bool(nearest)
    problem = Problem(inputs, exact, (m, width), depth, dtype)
    return _case(text if dtype == "f32" else f"{text} {dtype}", problem, ours)


def _distance(name: str, shape: tuple[int, int, int], score: Score, dtype: str = "f32", **options: Any) -> Case:
    return _pairs(f"cdist {name}", shape, lambda given: cdist(given["x"], given["y"], **options), score, dtype)


def _kernel(
    name: str, shape: tuple[int, int, int], score: Score, columns: int = 0, logsumexp: bool = False, **parameters: Any
) -> Case:  # fmt: skip
    kernel = make(KERNELS[name], parameters)
    if columns:
        return _pairs(f"{name}.matmul", shape, lambda g: kernel.matmul(g["x"], g["y"], g["v"]), score, columns=columns)
    if logsumexp:
        return _pairs(
            f"{name}.logsumexp", shape, lambda g: kernel.logsumexp(g["x"], g["y"])[:, None], score,
            after=lambda values: values.logsumexp(0),
        )  # fmt: skip
    return _pairs(name, shape, lambda g: kernel(g["x"], g["y"]), score)


def _contraction(name: str, shape: tuple[int, int, int], body: Any, score: Score, reduce: str = "sum") -> Case:
    own = Contraction("mk,nk->mn", body, reduce=reduce)
    return _pairs(name, shape, lambda given: own(given["x"], given["y"]), score)


def _norm(p: float) -> Score:
    return lambda x, y: torch.linalg.vector_norm(x - y, p, -1)


def _canberra(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return ((x - y).abs() / (x.abs() + y.abs())).sum(-1)


def _braycurtis(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x - y).abs().sum(-1) / (x + y).abs().sum(-1)


def _matern(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    scaled = 5**0.5 * _norm(2)(x, y) / 3.0
    return (1 + scaled + scaled**2 / 3) * torch.exp(-scaled)


def _gaussian(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.exp(-((x - y) ** 2).sum(-1) / 50.0)


def _rational(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return 1 / (1 + ((x - y) ** 2).sum(-1) / 18.0)


def _soft_canberra(a: Any, b: Any) -> Any:
    return abs(a - b) / (abs(a) + abs(b) + 1e-3)


def _structured(
    name: str, rows: int, columns: tuple[int, int], weights: Mapping[str, tuple[int, ...]],
    product: Callable[[torch.Tensor, Sequence[torch.Tensor]], torch.Tensor], dtype: str,
) -> Case:  # fmt: skip
    """Rows times a structured matrix; the oracle multiplies by the entries of the weights one factor at a time."""

    def inputs(device: str) -> Arrays:
        given = {"x": problems.normal(rows, columns[0], dtype, device, 1)}
        for seed, (key, shape) in enumerate(weights.items(), 2):
            given[key] = problems.normal(prod(shape[:-1]), shape[-1], dtype, device, seed).reshape(shape)
        return given

    def exact(given: Exact, picks: Picks) -> np.ndarray[Any, Any]:
        wide = _wide(given)
        x = wide["x"][picks.rows]
        if "w" in wide:
            a, b, c, d = wide["w"].shape
            y = torch.einsum("iacd,abcd->iabd", x.reshape(-1, a, c, d), wide["w"]).reshape(len(x), a * b * d)
        else:
            y = x.reshape(-1, *(len(wide[key]) for key in weights))
            for axis, key in enumerate(weights, 1):
                y = torch.einsum("...i,ij->...j", y.movedim(axis, -1), wide[key]).movedim(-1, axis)
            y = y.reshape(len(x), -1)
        return y[:, picks.columns].cpu().numpy()

    problem = Problem(inputs, exact, (rows, columns[1]), 100, dtype)
    text = name if dtype == "f32" else f"{name} {dtype}"
    roundings = 0 if dtype == "f32" else 2 * len(weights)
    return _case(text, problem, lambda given: product(given["x"], [given[key] for key in weights]), roundings)


def _kron(rows: int, sizes: tuple[int, ...], dtype: str = "f32") -> Case:
    factors = {f"f{index}": (size, size) for index, size in enumerate(sizes)}
    name = f"kron_matmul {rows} {'x'.join(map(str, sizes))}"
    return _structured(
        name, rows, (prod(sizes), prod(sizes)), factors, lambda x, given: kron_matmul(x, list(given)), dtype
    )


def _sparse(rows: int, pattern: tuple[int, int, int, int], dtype: str = "f32") -> Case:
    a, b, c, d = pattern
    name = f"kron_sparse_matmul {rows} {pattern}"
    return _structured(
        name, rows, (a * c * d, a * b * d), {"w": pattern}, lambda x, given: kron_sparse_matmul(x, given[0]), dtype
    )


def suite(part: int = 1) -> Suite:
    """All calls, of a ``part``-th of the rows."""

    def by(m: int, n: int, k: int) -> tuple[int, int, int]:
        return m // part, n // part, k

    tanh = FUNCTIONS["tanh"]
    cases = (
        _distance("p=1", by(7000, 9000, 300), _norm(1), p=1),
        _distance("p=2", by(12000, 15000, 96), _norm(2)),
        _distance("p=1.7", by(5000, 6000, 200), _norm(1.7), p=1.7),
        _distance("p=inf", by(9000, 8000, 150), _norm(np.inf), p=np.inf),
        _distance("canberra", by(6000, 5000, 120), _canberra, metric="canberra"),
        _distance("braycurtis", by(6000, 5000, 120), _braycurtis, metric="braycurtis"),
        _distance("p=1", by(4000, 5000, 64), _norm(1), "f64", p=1),
        _kernel("Matern", by(8000, 9000, 12), _matern, bandwidth=3.0, nu=2.5),
        _kernel("RationalQuadratic", by(8000, 9000, 40), _rational, bandwidth=3.0),
        _kernel("Gaussian", by(60000, 70000, 30), _gaussian, 3, bandwidth=5.0),
        _kernel("Laplace", by(50000, 60000, 6), lambda x, y: torch.exp(-_norm(1)(x, y) / 5), 1, bandwidth=5.0),
        _kernel("Laplace", by(20000, 20000, 200), lambda x, y: torch.exp(-_norm(1)(x, y) / 50), 4, bandwidth=50.0),
        _kernel("Gaussian", by(30000, 30000, 40), _gaussian, 48, bandwidth=5.0),
        _kernel("Gaussian", by(40000, 40000, 24), _gaussian, logsumexp=True, bandwidth=5.0),
        _pairs("argkmin", by(30000, 50000, 24), lambda g: argkmin(g["x"], g["y"], 7, return_values=True)[0],
               _norm(2), nearest=7),
        _pairs("argkmin p=1", by(20000, 30000, 50), lambda g: argkmin(g["x"], g["y"], 7, p=1, return_values=True)[0],
               _norm(1), nearest=7),
        _contraction("max-plus", by(5000, 5000, 300), lambda a, b: a + b, lambda x, y: (x + y).amax(-1), "max"),
        _contraction("tanh", by(4000, 5000, 200), lambda a, b: tanh(a * b), lambda x, y: torch.tanh(x * y).sum(-1)),
        _contraction("soft canberra", by(4000, 5000, 200), _soft_canberra, lambda x, y: _soft_canberra(x, y).sum(-1)),
        _kron(700 // part, (40, 50, 60)),
        _kron(3000 // part, (20, 30, 20), "f16"),
        _sparse(20000 // part, (3, 96, 64, 5)),
        _sparse(9000 // part, (2, 128, 256, 3), "bf16"),
    )  # fmt: skip
    return Suite(NAME, "cuda", cases)
