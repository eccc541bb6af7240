"""KeOps' own benchmark gallery, its programs unchanged: ``kernmantle.compat.pykeops`` beside ``pykeops``.

The cases follow https://www.kernel-operations.io/keops/_auto_benchmarks: radial convolutions and their gradients,
Gaussian products in high dimension, 3-D convolutions of growing size and in batches, kernel systems, and nearest
neighbours.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import torch

from . import problems
from .case import Arrays, Case, Exact, Peer, Picks, Problem, Suite, Target
from .work import Work

KEOPS = "KeOps"
FACADE = "kernmantle.compat.pykeops.torch"
FASTER = 1.5
Program = Callable[[Any, Arrays], Callable[[], torch.Tensor]]
Formula = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
SIGMA = {"convolution": 2.4, "gradient": 0.4}
ALPHA = 0.01


def _rows(*shapes: tuple[int, ...], positive: tuple[int, ...] = ()) -> Callable[[str], Arrays]:
    """x, y, b, ... of normal numbers, in the unit cube where ``positive`` names their place."""

    def inputs(device: str) -> Arrays:
        found = {}
        for place, (name, shape) in enumerate(zip("xyba", shapes, strict=False)):
            values = problems.normal(int(np.prod(shape[:-1])), shape[-1], "f32", device, place + 1).reshape(shape)
            found[name] = values.abs() if place in positive else values
        return found

    return inputs


def _double(given: Exact, device: str | None = None) -> dict[str, torch.Tensor]:
    where = device or ("cuda" if torch.cuda.is_available() else "cpu")
    return {name: torch.from_numpy(value).to(where) for name, value in given.items()}


def _squares(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Squared distances of one row from all others, (n,)."""
    return (x - y).square().sum(-1)


RADIAL: dict[str, tuple[Callable[[Any], Any], Callable[[torch.Tensor], torch.Tensor]]] = {
    "gaussian": (lambda s: (-s).exp(), lambda s: (-s).exp()),
    "laplacian": (lambda s: (-s.sqrt()).exp(), lambda s: (-s.sqrt()).exp()),
    "cauchy": (lambda s: (1 + s).power(-1), lambda s: 1 / (1 + s)),
    "inverse multiquadric": (lambda s: (1 + s).sqrt().power(-1), lambda s: 1 / (1 + s).sqrt()),
}  # fmt: skip
"""Of scaled squared distances: in KeOps' words, and in torch's."""


def _radial(keops: Any, name: str, sigma: float, x: torch.Tensor, y: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    scale = keops.Pm(torch.tensor([1 / sigma**2], device=x.device))
    return RADIAL[name][0](scale * keops.Vi(x).sqdist(keops.Vj(y))) @ b


def convolution(name: str, points: int) -> Case:
    """Radial kernels times three signals, 3-D points."""
    sigma = SIGMA["convolution"]

    def program(keops: Any, given: Arrays) -> Callable[[], torch.Tensor]:
        return lambda: _radial(keops, name, sigma, given["x"], given["y"], given["b"])

    def exact(given: Exact, picks: Picks) -> np.ndarray[Any, Any]:
        g = _double(given)
        rows = [RADIAL[name][1](_squares(g["x"][row], g["y"]) / sigma**2) @ g["b"] for row in picks.rows]
        return torch.stack(rows)[:, picks.columns].cpu().numpy()

    problem = Problem(_rows((points, 3), (points, 3), (points, 3), positive=(2,)), exact, (points, 3), points, "f32")
    return _case(f"{name} convolution", f"{name} kernel times 3 columns, {points} points in 3-D", problem, program)


def gradient(name: str, points: int) -> Case:
    """A convolution and the gradient of its product with a signal, by the rows x."""
    sigma = SIGMA["gradient"]

    def program(keops: Any, given: Arrays) -> Callable[[], torch.Tensor]:
        x = given["x"].clone().requires_grad_()

        def call() -> torch.Tensor:
            total = (given["a"] * _radial(keops, name, sigma, x, given["y"], given["b"])).sum()
            return torch.autograd.grad(total, x)[0]

        return call

    def exact(given: Exact, picks: Picks) -> np.ndarray[Any, Any]:
        g, found = _double(given), []
        for row in picks.rows:
            x = g["x"][row].clone().requires_grad_()
            values = RADIAL[name][1](_squares(x, g["y"]) / sigma**2) @ (g["b"] @ g["a"][row])
            found.append(torch.autograd.grad(values, x)[0])
        return torch.stack(found)[:, picks.columns].cpu().numpy()

    shapes = [(points, 3)] * 4
    problem = Problem(_rows(*shapes, positive=(0, 1, 2, 3)), exact, (points, 3), points, "f32")
    return _case(
        f"{name} gradient", f"{name} convolution and its gradient by x, {points} points in 3-D", problem, program
    )


def dimension(columns: int, points: int) -> Case:
    """A Gaussian product as products of rows, which the gallery writes for high dimensions."""

    def inputs(device: str) -> Arrays:
        given = _rows((points, columns), (points, columns), (points, 1), positive=(2,))(device)
        return given | {name: given[name] / columns**0.5 for name in "xy"}

    def program(keops: Any, given: Arrays) -> Callable[[], torch.Tensor]:
        product = keops.generic_sum(
            "Exp(X|Y) * B", "A = Vi(1)", f"X = Vi({columns})", f"Y = Vj({columns})", "B = Vj(1)"
        )  # fmt: skip
        x, y, b = given["x"], given["y"], given["b"]
        left, right = ((-each.square().sum(-1)).exp()[:, None] for each in (x, y))
        return lambda: left * product(2 * x, y, b * right)

    problem = Problem(inputs, _gaussian, (points, 1), points + columns, "f32")
    return _case(f"dimension {columns}", f"Gaussian product, {points} points of {columns} numbers", problem, program)


def _gaussian(given: Exact, picks: Picks) -> np.ndarray[Any, Any]:
    g = _double(given)
    return torch.stack([(-_squares(g["x"][row], g["y"])).exp() @ g["b"] for row in picks.rows]).cpu().numpy()


def size(points: int, form: str) -> Case:
    """A Gaussian product of 3-D points, as a formula or as a LazyTensor."""

    def program(keops: Any, given: Arrays) -> Callable[[], torch.Tensor]:
        x, y, b = given["x"], given["y"], given["b"]
        if form == "Genred":
            product = keops.generic_sum("Exp(-SqDist(X,Y)) * B", "A = Vi(1)", "X = Vi(3)", "Y = Vj(3)", "B = Vj(1)")
            return lambda: product(x, y, b)
        return lambda: _lazy(keops, x, y, b)

    problem = Problem(
        _rows((points, 3), (points, 3), (points, 1), positive=(2,)), _gaussian, (points, 1), points, "f32"
    )  # fmt: skip
    return _case(f"{points} points, {form}", f"Gaussian product, {points} points in 3-D, {form}", problem, program)


def _lazy(keops: Any, x: torch.Tensor, y: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    gaps = ((keops.LazyTensor(x.unsqueeze(-2)) - keops.LazyTensor(y.unsqueeze(-3))) ** 2).sum(-1)
    return ((-gaps).exp() * keops.LazyTensor(b.unsqueeze(-3))).sum(dim=x.dim() - 1)


def batch(count: int, points: int) -> Case:
    """Gaussian products of several point clouds at once."""
    shapes = [(count, points, 3), (count, points, 3), (count, points, 1)]

    def program(keops: Any, given: Arrays) -> Callable[[], torch.Tensor]:
        return lambda: _lazy(keops, given["x"], given["y"], given["b"]).reshape(-1, 1)

    def exact(given: Exact, picks: Picks) -> np.ndarray[Any, Any]:
        g = _double(given)
        places = [divmod(row, points) for row in picks.rows]
        rows = [(-_squares(g["x"][c, i], g["y"][c])).exp() @ g["b"][c] for c, i in places]
        return torch.stack(rows).cpu().numpy()

    problem = Problem(_rows(*shapes, positive=(2,)), exact, (count * points, 1), points, "f32")
    return _case(
        f"batch of {count}", f"{count} Gaussian products, {points} points in 3-D, LazyTensor", problem, program
    )  # fmt: skip


def system(points: int) -> Case:
    """A regularised Gaussian system by conjugate gradients; what is compared is the matrix times the solution."""
    scale = 1 / 0.1**2

    def product(keops: Any, given: Arrays, values: torch.Tensor) -> torch.Tensor:
        kernel = (-(keops.Vi(given["x"]).sqdist(keops.Vj(given["x"])) * scale)).exp()
        return kernel @ values + ALPHA * values

    def program(keops: Any, given: Arrays) -> Callable[[], torch.Tensor]:
        solve = keops.KernelSolve(
            "Exp(- G * SqDist(X,Y)) * B", ["X = Vi(3)", "Y = Vj(3)", "B = Vj(1)", "G = Pm(1)"], "B", axis=1
        )  # fmt: skip
        g = torch.tensor([scale], device=given["x"].device)
        return lambda: product(keops, given, solve(given["x"], given["x"], given["b"], g, alpha=ALPHA))

    def exact(given: Exact, picks: Picks) -> np.ndarray[Any, Any]:
        return given["b"][picks.rows]

    inputs = _rows((points, 3), (1, 1), (points, 1), positive=(0, 2))
    problem = Problem(inputs, exact, (points, 1), points, "f32")
    title = f"Gaussian system of {points} rows by conjugate gradients, and a product with its solution"
    return _case(f"system of {points}", title, problem, program, accuracy=0.2)


DISTANCES: dict[str, tuple[Callable[[Any, Any], Any], Formula]] = {
    "euclidean": (lambda x, y: ((x - y) ** 2).sum(-1), _squares),
    "manhattan": (lambda x, y: (x - y).abs().sum(-1), lambda x, y: (x - y).abs().sum(-1)),
    "angular": (lambda x, y: -(x | y), lambda x, y: -(x * y).sum(-1)),
    "hyperbolic": (
        lambda x, y: ((x - y) ** 2).sum(-1) / (x[0] * y[0]), lambda x, y: _squares(x, y) / (x[0] * y[..., 0]),
    ),
}  # fmt: skip
"""Between rows: in KeOps' words, and in torch's, of one row from all others."""


def neighbours(metric: str, count: int, rows: int, known: int, columns: int) -> Case:
    """The distances of the nearest rows, nearest first."""
    formula, by_torch = DISTANCES[metric]

    def program(keops: Any, given: Arrays) -> Callable[[], torch.Tensor]:
        symbolic = formula(keops.Vi(0, columns), keops.Vj(1, columns)).Kmin(count, dim=1)
        return lambda: symbolic(given["x"], given["y"]).reshape(rows, count)

    def exact(given: Exact, picks: Picks) -> np.ndarray[Any, Any]:
        g = _double(given)
        found = [by_torch(g["x"][row], g["y"]).topk(count, largest=False).values for row in picks.rows]
        return torch.stack(found)[:, picks.columns].cpu().numpy()

    inputs = _rows((rows, columns), (known, columns), positive=(0, 1) if metric == "hyperbolic" else ())
    problem = Problem(inputs, exact, (rows, count), columns, "f32")
    return _case(
        f"{count} nearest, {metric}, {columns}", f"{count} nearest of {known}, {rows} rows of {columns}, {metric}",
        problem, program, accuracy=1e-3,
    )  # fmt: skip


def _case(name: str, title: str, problem: Problem, program: Program, accuracy: float = 1e-3) -> Case:
    def prepare(module: str) -> Callable[[Arrays], Callable[[], torch.Tensor]]:
        return lambda given: program(import_module(module), given)

    peer, target = Peer(KEOPS, prepare("pykeops.torch"), "pykeops", compiles=True), Target("faster", FASTER, KEOPS)
    return Case(name, title, problem, prepare(FACADE), (peer,), Work(), (target,), accuracy=accuracy)


def suite(points: int = 10_000) -> Suite:
    """All cases, of so many points where the gallery has ten thousand."""
    many = 10 * points
    return Suite(
        "keops-gallery",
        "cuda",
        (
            *(convolution(name, points) for name in RADIAL),
            *(gradient(name, points) for name in RADIAL),
            *(dimension(columns, points) for columns in (1, 3, 10, 30, 100, 300, 1000, 3000)),
            *(size(count, form) for form in ("Genred", "LazyTensor") for count in (points // 10, points, many)),
            size(10 * many, "Genred"),
            batch(10, points),
            batch(100, points // 10),
            *(system(count) for count in (points // 10, points)),
            *(neighbours("euclidean", count, points, many, 10) for count in (1, 10, 50, 100)),
            *(neighbours(metric, 10, points, many, 100) for metric in DISTANCES),
        ),
    )
