"""Every solver on definite, indefinite, singular, clustered, scaled and spoilt matrices: no claim that is not so.

Whenever a solver says that it succeeded (info 0, converged, nothing raised), its result is within the bound that its
documentation promises, measured in numpy's long double. Where it cannot succeed, it has to say so.
"""

from __future__ import annotations

import itertools
import warnings

import numpy as np
import pytest
import torch

import kernmantle as km

N, COLUMNS = 24, 3
SCALES = {torch.float32: (1e-30, 1e-20, 1.0, 1e20, 1e30), torch.float64: (1e-200, 1e-30, 1.0, 1e30, 1e200)}
SIDES = {torch.float32: (1e-24, 1.0, 1e5), torch.float64: (1e-90, 1.0, 1e90)}
Wide = np.longdouble


def normal(rng, *shape):
    return torch.from_numpy(rng.standard_normal(shape))


def rotated(rng, values):
    q = torch.linalg.qr(normal(rng, N, N)).Q
    return (q * torch.as_tensor(values, dtype=torch.float64)) @ q.mT


def with_duplicates(rng):
    x = normal(rng, N // 2, 2).repeat(2, 1)
    return torch.exp(-torch.cdist(x, x).square() / 2) + 1e-3 * torch.eye(N, dtype=torch.float64)


def with_nan(rng):
    a = rotated(rng, np.linspace(1, 2, N))
    a[3, 5] = a[5, 3] = float("nan")
    return a


MATRICES = {
    "definite": lambda rng: rotated(rng, np.linspace(1, 10, N)),
    "ill-conditioned": lambda rng: rotated(rng, np.logspace(0, -5, N)),
    "very ill-conditioned": lambda rng: rotated(rng, np.logspace(0, -12, N)),
    "indefinite": lambda rng: rotated(rng, np.linspace(-3, 5, N)),
    "negative": lambda rng: -rotated(rng, np.linspace(1, 10, N)),
    "singular": lambda rng: rotated(rng, np.r_[np.zeros(4), np.linspace(1, 2, N - 4)]),
    "exactly singular": lambda rng: torch.diag(torch.arange(N, dtype=torch.float64)),
    "zero": lambda rng: torch.zeros(N, N, dtype=torch.float64),
    "clustered": lambda rng: rotated(rng, np.r_[np.ones(N // 2), np.full(N - N // 2, 2)]),
    "identity": lambda rng: rotated(rng, np.ones(N)),
    "duplicates": with_duplicates,
    "NaN": with_nan,
    "infinite": lambda rng: torch.diag(torch.tensor([float("inf"), *range(1, N)])).double(),
}


def wide(tensor):
    return tensor.detach().double().numpy().astype(Wide)


def norm(columns):
    return np.sqrt((columns * columns).sum(0))


def residuals(a, x, b):
    """Relative to b, and relative to what rounding explains: the backward error."""
    a, x, b = wide(a), wide(x), wide(b)
    gap = norm(b - a @ x)
    size = np.sqrt((a * a).sum())
    return gap / norm(b), gap / (size * norm(x) + norm(b))


def quiet(solve):
    """The result, or None where the solver has raised what it documents."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", km.errors.KernmantleWarning)
        try:
            return solve()
        except km.errors.LinearAlgebraError:
            return None


def in_range(a, b):
    """Whether the solution is of numbers of the type, not infinite nor next to zero, which is to be seen."""
    limits, top = torch.finfo(a.dtype), float(a.abs().max()) or 1.0
    least = max(float(np.linalg.svd((wide(a) / top).astype(np.float64))[1][-1]), limits.eps / N)
    size = np.log10(float(b.abs().max())) - np.log10(top)
    return size - np.log10(least) + 2 < np.log10(limits.max) and size - 2 > np.log10(limits.tiny / limits.eps)


def check_direct(name, solve, a, b, unit):
    found = quiet(solve)
    if found is None or int(found.info) != 0:
        return []
    if a.isnan().any():
        return [] if found.x.isnan().any() else [f"{name}: numbers of a matrix that has none"]
    if a.isinf().any() or not in_range(a, b):
        return []
    _, backward = residuals(a, found.x, b)
    return [] if (backward <= 10 * N * unit).all() else [f"{name}: info 0, backward error {backward.max():.2g}"]


def check_cg(a, b, dtype):
    found = quiet(lambda: km.linalg.cg(a, b, max_iterations=200))
    limit = 1e-5 if dtype == torch.float32 else 1e-8
    wrong = []
    if found.converged.any():
        x, side = found.x[:, found.converged], b[:, found.converged]
        relative, _ = residuals(a, x, side)
        if not (relative <= 1.01 * limit).all():
            wrong.append(f"cg: converged, residual {relative.max():.2g}")
    if not torch.equal(found.info == 0, found.converged):
        wrong.append("cg: info and converged differ")
    for i in range(b.shape[1]):
        if torch.isfinite(found.residual[i]) and torch.isfinite(a).all():
            relative, _ = residuals(a, found.x[:, i : i + 1], b[:, i : i + 1])
            if not abs(float(found.residual[i]) - float(relative[0])) <= 1e-3 * relative[0] + 0.01 * limit:
                wrong.append(f"cg: residual {float(found.residual[i]):.2g}, true {relative[0]:.2g}")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        again = km.linalg.cg(a, b, max_iterations=200)
    if bool(again.converged.all()) == any(issubclass(w.category, km.errors.KernmantleWarning) for w in said):
        wrong.append("cg: a warning where all converged, or none where not")
    return wrong


def check_spectrum(a, dtype, subset, method):
    name = f"eigh {subset} {method}"
    found = quiet(lambda: km.linalg.eigh(a, subset_by_index=subset, method=method))
    if found is None or int(found.info) != 0:
        return [] if not torch.isfinite(a).all() else [f"{name}: not solved"]
    if not torch.isfinite(a).all():
        return [f"{name}: info 0 for a matrix that is not finite"]
    w, v = found
    count = N if subset is None else subset[1] - subset[0] + 1
    if w.shape != (count,) or v.shape != (N, count):
        return [f"{name}: {tuple(w.shape)} values of {count}"]
    top = float(a.abs().max()) or 1.0
    even, values = wide(a) / top, wide(w) / top
    expected = np.linalg.eigvalsh(even.astype(np.float64))
    expected = expected if subset is None else expected[subset[0] : subset[1] + 1]
    unit, size = torch.finfo(dtype).eps, max(1.0, float(np.sqrt((even * even).sum())))
    bound = max(20, N) * 4 * unit * size
    vectors = wide(v)
    wrong = []
    if np.abs(values - expected).max() > bound:
        wrong.append(f"{name}: values off by {np.abs(values - expected).max():.2g}")
    if norm(even @ vectors - vectors * values).max() > bound:
        wrong.append(f"{name}: residual {norm(even @ vectors - vectors * values).max():.2g}")
    if np.abs(vectors.T @ vectors - np.eye(count)).max() > bound:
        wrong.append(f"{name}: vectors not orthonormal")
    return wrong


def check_logarithms(a, kind, dtype):
    """Determinants of definite matrices, from the factor and from recursions."""
    wrong = []
    if not torch.isfinite(a).all():
        return wrong
    top = float(a.abs().max()) or 1.0
    values = np.linalg.eigvalsh((wide(a) / top).astype(np.float64))
    value = quiet(lambda: km.linalg.logdet_spd(a))
    clearly = values[0] < -N * 4 * torch.finfo(dtype).eps
    if clearly and value is not None:
        wrong.append("logdet_spd: a value for an indefinite matrix")
    if values[0] > 100 * N * torch.finfo(dtype).eps:
        exact = np.log(values).sum() + N * np.log(top)
        allowed = N * N * torch.finfo(dtype).eps * (np.abs(np.log(values)).sum() + N * abs(np.log(top)) + 1 / values[0])
        if value is None or abs(float(value) - exact) > allowed:
            wrong.append(f"logdet_spd: {value}, exact {exact}")
        found = km.linalg.logdet(a)
        if not abs(float(found.value) - exact) <= 4 * float(found.error) + allowed:
            wrong.append(f"logdet: {float(found.value)} ± {float(found.error)}, exact {exact}")
    return wrong


def check_all(kind, dtype, scale, side, seed):
    """What was claimed wrongly for one matrix."""
    rng = np.random.default_rng(seed)
    a, b = (MATRICES[kind](rng) * scale).to(dtype), (normal(rng, N, COLUMNS) * side).to(dtype)
    unit = torch.finfo(dtype).eps
    wrong = check_direct("solve_cholesky", lambda: km.linalg.solve_cholesky(a, b), a, b, unit)
    wrong += check_direct("solve_lu", lambda: km.linalg.solve_lu(a, b), a, b, unit)
    wrong += check_direct(
        "cholesky_solve", lambda: km.linalg.cholesky_solve(km.linalg.cholesky_factor(a), b), a, b, unit
    )
    wrong += check_direct("lu_solve", lambda: km.linalg.lu_solve(km.linalg.lu_factor(a), b), a, b, unit)
    if dtype == torch.float64:
        single = torch.finfo(torch.float32).eps
        wrong += check_direct("solve_cholesky refined", lambda: km.linalg.solve_cholesky(a, b, refine=3), a, b, single)
        wrong += check_direct("solve_lu refined", lambda: km.linalg.solve_lu(a, b, refine=3), a, b, single)
    wrong += check_cg(a, b, dtype)
    for subset, method in (
        (None, "auto"), ((0, 3), "direct"), ((N - 5, N - 1), "direct"), ((5, 9), "direct"),
        ((N - 3, N - 1), "iterative"), ((0, 2), "iterative"),
    ):  # fmt: skip
        wrong += check_spectrum(a, dtype, subset, method)
    wrong += check_logarithms(a, kind, dtype)
    return [f"{kind}, {dtype}, scale {scale:g}, side {side:g}, seed {seed}: {what}" for what in wrong]


def check_kernel_systems(dtype, ridge, side, seed):
    """Rows that repeat, ridges from large to below the unit of the type, targets of any size."""
    rng = np.random.default_rng(seed)
    x = normal(rng, N, 2).repeat(2, 1).to(dtype)
    y = (normal(rng, 2 * N, COLUMNS) * side).to(dtype)
    k = km.Gaussian(1.0)
    difference = wide(x)[:, None] - wide(x)[None]
    exact = np.exp(-(difference**2).sum(-1) / 2) + ridge * np.eye(2 * N, dtype=Wide)
    wrong = []
    for method in ("cholesky", "cg"):
        found = quiet(lambda method=method: km.linalg.solve_kernel(k, x, y, ridge, method=method))
        if found is None:
            continue
        gap = norm(wide(y) - exact @ wide(found.x))
        size = np.sqrt((exact * exact).sum())
        backward = gap / (size * norm(wide(found.x)) + norm(wide(y)))
        if method == "cholesky" and not (backward <= 40 * N * torch.finfo(dtype).eps).all():
            wrong.append(f"cholesky: backward error {backward.max():.2g}")
        if method == "cg":
            limit = 1e-4 if dtype == torch.float32 else 1e-6
            done = found.iterations.converged.numpy()
            if not ((gap / norm(wide(y)))[done] <= 1.01 * limit).all():
                wrong.append(f"cg: converged, residual {(gap / norm(wide(y))).max():.2g}")
    return [f"solve_kernel, {dtype}, ridge {ridge:g}, side {side:g}, seed {seed}: {what}" for what in wrong]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_claim_that_is_not_so(dtype):
    """A slice: each kind of matrix at one scale and size of the right-hand sides after the other."""
    scales, sides = itertools.cycle(SCALES[dtype]), itertools.cycle(SIDES[dtype])
    wrong = [w for kind in MATRICES for w in check_all(kind, dtype, next(scales), next(sides), 0)]
    wrong += [w for ridge in (1e-1, 1e-4) for w in check_kernel_systems(dtype, ridge, next(sides), 0)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", MATRICES)
def test_no_claim_that_is_not_so_in_full(kind, dtype):
    cases = itertools.product(SCALES[dtype], SIDES[dtype], range(3))
    wrong = [w for scale, side, seed in cases for w in check_all(kind, dtype, scale, side, seed)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_claim_of_kernel_systems_that_is_not_so_in_full(dtype):
    cases = itertools.product((1.0, 1e-2, 1e-4, 1e-6, 1e-9), SIDES[dtype], range(5))
    wrong = [w for ridge, side, seed in cases for w in check_kernel_systems(dtype, ridge, side, seed)]
    assert not wrong, "\n".join(wrong)


def test_the_driver_sees_false_claims():
    """A solution that is a little off, values that are missing, a claim of convergence."""
    rng = np.random.default_rng(0)
    a, b = MATRICES["definite"](rng), normal(rng, N, COLUMNS)
    unit = torch.finfo(torch.float64).eps
    exact = km.linalg.solve_lu(a, b)

    class Off:
        x, info = exact.x * (1 + 1e-9), exact.info

    assert check_direct("exact", lambda: exact, a, b, unit) == []
    assert check_direct("off", lambda: Off, a, b, unit)
    assert check_spectrum(a, torch.float64, (0, 3), "direct") == []
