"""The GPU suite of solvers: factorisations in place, a part of a spectrum, batches, a system that is never formed."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, Literal

import numpy as np
import torch

from kernmantle import linalg
from kernmantle.pairwise import CONSTRUCTORS

from .case import DTYPES, Arrays, Case, Exact, Peer, Picks, Prepare, Problem, Suite, Target
from .problems import normal
from .work import Work

H200 = "H200"
DENSE, LARGE, COLUMNS = 20_000, 65_536, 4
SHARE = 20
RIDGE = 20.0


def _near_unity(thin: torch.Tensor) -> torch.Tensor:
    """A symmetric matrix whose condition number is near 2, so that solutions are known to float32."""
    matrix = thin @ thin.mT / thin.shape[0]
    matrix.diagonal().add_(1)
    return matrix


def _system(n: int, columns: int) -> Problem:
    """The matrix is made of few columns, and of them by each contestant."""

    def inputs(device: str) -> Arrays:
        thin, x = normal(n, 64, "f32", device, 1), normal(n, columns, "f32", device, 2)
        wide = thin.double()
        return {"thin": thin, "b": (x + wide @ (wide.mT @ x.double()) / n).float(), "x": x}

    def exact(given: Exact, picks: Picks) -> np.ndarray[Any, Any]:
        return given["x"][picks.rows][:, picks.columns]

    return Problem(inputs, exact, (n, columns), n, "f32")


def _in_place(solve: Callable[..., linalg.Solution]) -> Prepare:
    """The copy that a next call needs is part of it."""

    def prepare(given: Arrays) -> Callable[[], torch.Tensor]:
        a = _near_unity(given["thin"])
        room = torch.empty_like(a)
        return lambda: solve(room.copy_(a), given["b"], overwrite_a=True).x

    return prepare


def _torch_cholesky(given: Arrays) -> Callable[[], torch.Tensor]:
    a = _near_unity(given["thin"])
    return lambda: torch.cholesky_solve(given["b"], torch.linalg.cholesky_ex(a).L)


def _torch_lu(given: Arrays) -> Callable[[], torch.Tensor]:
    a = _near_unity(given["thin"])
    return lambda: torch.linalg.solve_ex(a, given["b"])[0]


def _batch(n: int, count: int) -> Problem:
    """Systems one below the other."""

    def inputs(device: str) -> Arrays:
        thin = normal(count * n, n, "f32", device, 1).reshape(count, n, n)
        a = thin @ thin.mT / n + torch.eye(n, device=device)
        x = normal(count * n, 1, "f32", device, 2).reshape(count, n, 1)
        return {"a": a, "b": (a.double() @ x.double()).float(), "x": x}

    def exact(given: Exact, picks: Picks) -> np.ndarray[Any, Any]:
        return given["x"].reshape(-1, 1)[picks.rows][:, picks.columns]

    return Problem(inputs, exact, (count * n, 1), 100 * n, "f32")


def _flat(solve: Callable[[torch.Tensor, torch.Tensor], Any]) -> Prepare:
    return lambda given: lambda: solve(given["a"], given["b"]).reshape(-1, 1)


def _laplace(points: torch.Tensor) -> torch.Tensor:
    return CONSTRUCTORS["Laplace"](20.0, p=2)(points)


def _spectrum(n: int, dtype: str) -> Problem:
    """Largest eigenvalues of a Laplacian kernel's matrix, known from torch in float64."""
    count = n // SHARE

    def inputs(device: str) -> Arrays:
        points = normal(n, 2, "f64", device, 1)
        w = torch.linalg.eigvalsh(_laplace(points))[-count:, None]
        return {"points": points, "w": w / w[-1]}

    return Problem(inputs, lambda given, picks: given["w"][picks.rows][:, picks.columns], (count, 1), n, dtype)


def _shifted(points: torch.Tensor) -> torch.Tensor:
    """Eigenvalues between 1 and 2, so that all of them are known to the type's own accuracy."""
    matrix = _laplace(points) / points.shape[0]
    matrix.diagonal().add_(1)
    return matrix


def _whole(n: int, dtype: str) -> Problem:
    """All eigenvalues of a matrix, known from torch in float64."""

    def inputs(device: str) -> Arrays:
        points = normal(n, 2, "f64", device, 1)
        return {"points": points, "w": torch.linalg.eigvalsh(_shifted(points))[:, None]}

    return Problem(inputs, lambda given, picks: given["w"][picks.rows][:, picks.columns], (n, 1), n, dtype)


def _pairs(solve: Callable[[torch.Tensor], Any], dtype: str) -> Prepare:
    """All vectors are found as well."""

    def prepare(given: Arrays) -> Callable[[], Any]:
        a = _shifted(given["points"]).to(DTYPES[dtype])
        return lambda: solve(a)[0][:, None]

    return prepare


def _regularised(n: int, columns: int) -> Problem:
    """A kernel's regularised system that is never formed; what is checked is the matrix times the solution."""

    def inputs(device: str) -> Arrays:
        return {"points": normal(n, columns, "f32", device, 1), "y": normal(n, 1, "f32", device, 2)}

    return Problem(inputs, lambda given, picks: given["y"][picks.rows][:, picks.columns], (n, 1), n, "f32")


def _fitted(bandwidth: float, rank: int) -> Prepare:
    kernel = CONSTRUCTORS["Gaussian"](bandwidth)

    def prepare(given: Arrays) -> Callable[[], torch.Tensor]:
        points, y = given["points"], given["y"]

        def call() -> torch.Tensor:
            found = linalg.solve_kernel(kernel, points, y, RIDGE, method="cg", rank=rank, tolerance=1e-5)
            return kernel.matmul(points, None, found.x, diagonal=RIDGE)

        return call

    return prepare


def _system_case(n: int, columns: int, bandwidth: float, rank: int) -> Case:
    return Case(
        f"kernel ridge n={n}", f"(K + ridge I) c = y of {n} x {columns} by conjugate gradients, and its check",
        _regularised(n, columns), _fitted(bandwidth, rank), (), Work(), clock="wall", elements=columns * float(n) ** 2,
    )  # fmt: skip


def _largest(dtype: str, method: Literal["direct", "iterative"]) -> Prepare:
    """Eigenvalues relative to the largest; the vectors are found as well."""

    def prepare(given: Arrays) -> Callable[[], torch.Tensor]:
        a = _laplace(given["points"]).to(DTYPES[dtype])
        n = a.shape[0]

        def call() -> torch.Tensor:
            w, _ = linalg.eigh(a, subset_by_index=(n - n // SHARE, n - 1), method=method)
            return (w / w[-1])[:, None]

        return call

    return prepare


def _torch_largest(dtype: str) -> Prepare:
    def prepare(given: Arrays) -> Callable[[], torch.Tensor]:
        a = _laplace(given["points"]).to(DTYPES[dtype])

        def call() -> torch.Tensor:
            w, _ = torch.linalg.eigh(a)
            return (w[-(w.shape[0] // SHARE) :] / w[-1])[:, None]

        return call

    return prepare


def _factor_case(
    name: str, ours: Prepare, peer: Prepare, operations: float, target: Target, n: int = DENSE
) -> Case:  # fmt: skip
    return Case(
        f"{name} n={n}", f"{name} in place, order {n}, with the copy it overwrites", _system(n, COLUMNS),
        ours, (Peer("torch", peer),), Work(8.0 * n**2, {"fp32": operations / 2}, serial=False), (target,), "events",
        operations,
    )  # fmt: skip


def _scipy_largest(dtype: str) -> Prepare:
    def prepare(given: Arrays) -> Callable[[], Any]:
        a = _laplace(given["points"]).to(DTYPES[dtype]).cpu().numpy()
        part = (a.shape[0] - a.shape[0] // SHARE, a.shape[0] - 1)

        def call() -> Any:
            w, _ = import_module("scipy.linalg").eigh(a, subset_by_index=part)
            return (w / w[-1])[:, None]

        return call

    return prepare


def _spectrum_case(n: int, dtype: str) -> Case:
    peers = [Peer("Xsyevdx", _largest(dtype, "direct"))]
    if n < DENSE:
        peers.append(Peer("torch.linalg.eigh", _torch_largest(dtype)))
    if n < 10_000:
        peers.append(Peer("scipy.linalg.eigh", _scipy_largest(dtype), "scipy"))
    return Case(
        f"eigh top 5 % n={n} {dtype}", f"a twentieth of the spectrum, order {n}, {dtype}", _spectrum(n, dtype),
        _largest(dtype, "iterative"), tuple(peers), Work(),
        (Target("faster", 1 / 0.35, "Xsyevdx", H200),) if n == DENSE else (), "events",
    )  # fmt: skip


def _whole_case(n: int, dtype: str) -> Case:
    peer = Peer("torch.linalg.eigh", _pairs(torch.linalg.eigh, dtype))
    return Case(
        f"eigh n={n} {dtype}", f"all pairs of a symmetric matrix, order {n}, {dtype}", _whole(n, dtype),
        _pairs(linalg.eigh, dtype), (peer,), Work(), (Target("faster", 1.0, "torch.linalg.eigh", H200),),
    )  # fmt: skip


_FACTORS = (
    _factor_case(
        "cholesky", _in_place(linalg.solve_cholesky), _torch_cholesky, DENSE**3 / 3,
        Target("seconds", 92e-3, machine=H200),
    ),
    _factor_case(
        "lu", _in_place(linalg.solve_lu), _torch_lu, 2 * DENSE**3 / 3, Target("seconds", 214e-3, machine=H200)
    ),
    _factor_case(
        "cholesky", _in_place(linalg.solve_cholesky), _torch_cholesky, LARGE**3 / 3,
        Target("bytes", LARGE**2 / 4, machine=H200), LARGE,
    ),
)  # fmt: skip
_BATCHES = tuple(
    Case(
        f"{name} 1000 x {n}", f"{name} of 1000 matrices of order {n}", _batch(n, 1000), _flat(ours),
        (Peer("torch", _flat(peer)),), Work(4.0 * 1000 * (n * n + 2 * n)),
        (Target("faster", 1.0, "torch", H200),), "events",
    )
    for n in (7, 32)
    for name, ours, peer in (
        ("cholesky", lambda a, b: linalg.solve_cholesky(a, b).x,
         lambda a, b: torch.cholesky_solve(b, torch.linalg.cholesky_ex(a).L)),
        ("lu", lambda a, b: linalg.solve_lu(a, b).x, lambda a, b: torch.linalg.solve_ex(a, b)[0]),
    )
)  # fmt: skip
_SPECTRA = tuple(_spectrum_case(n, dtype) for n in (5_000, 10_000, DENSE) for dtype in ("f32", "f64"))

_WHOLE = tuple(_whole_case(n, dtype) for n in (5_000, DENSE) for dtype in ("f32", "f64"))

SUITE = Suite("solvers", "cuda", (*_FACTORS, *_BATCHES, *_SPECTRA, *_WHOLE, _system_case(200_000, 10, 3.0, 894)))
CPU_SUITE = Suite("solvers-cpu", "cpu", (_system_case(50_000, 54, 6.0, 300),))
