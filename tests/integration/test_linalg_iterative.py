"""The block Krylov iteration, conjugate gradients, preconditioners and estimates against dense float64."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import scipy.sparse.linalg
import torch
from tqdm import tqdm

import kernmantle as km
from kernmantle.linalg import kernel, krylov
from kernmantle.linalg.orthogonal import orthonormal
from kernmantle.linalg.preconditioners import LowRank
from kernmantle.linalg.stochastic import lanczos
from kernmantle.testing import assert_close, tolerance

from ..arrays import normal, with_spectrum

ROWS = normal(500, 3)
LAPLACE = km.Laplace(3.0, p=2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("count", [1, 7, 40])
def test_upper_end_of_a_kernel_matrix(dtype, count):
    """Dense and never formed: values, residuals and orthogonality of every pair."""
    x = ROWS.to(dtype)
    exact = LAPLACE(x.double())
    expected = torch.linalg.eigvalsh(exact)[-count:]
    allowed = krylov.default_tolerance(500, dtype)
    for a in (LAPLACE(x), LAPLACE.operator(x)):
        w, v = found = km.linalg.eigh(a, subset_by_index=(500 - count, 499), method="iterative")
        assert "Krylov" in found.ran
        assert float(found.residual.max()) <= allowed
        top = expected[-1]
        assert float((w - expected).abs().max()) <= 2 * allowed * top
        assert float((exact @ v.double() - v.double() * w).norm(dim=0).max()) <= 2 * allowed * top
        unit = torch.eye(count, dtype=torch.float64)
        assert_close(v.double().mT @ v.double(), unit, dtype=dtype, depth=500, magnitude=1)


MATRICES = [
    with_spectrum(torch.linspace(-3, 1, 120)),
    with_spectrum(torch.cat([torch.full((7,), -2.0), torch.linspace(-1, 1, 113)])),
    torch.eye(80).double(),
    torch.zeros(80, 80).double(),
    torch.diag(torch.arange(90.0)).double(),
]


@pytest.mark.parametrize("a", MATRICES)
@pytest.mark.parametrize("largest", [True, False])
def test_either_end_of_matrices(a, largest):
    n, count = a.shape[0], 5
    index = (n - count, n - 1) if largest else (0, count - 1)
    expected = torch.linalg.eigvalsh(a)[index[0] : index[1] + 1]
    w, v = km.linalg.eigh(a, subset_by_index=index, method="iterative")
    assert_close(w, expected, depth=n**2, magnitude=3)
    assert_close(a @ v, v * w, depth=n**2, magnitude=3)
    assert_close(v.mT @ v, torch.eye(count), depth=n**2, magnitude=1)


def test_no_copy_of_a_multiple_eigenvalue_is_passed_over():
    """Multiplicity above the size of a block: what is found is right, or the direct method takes over."""
    values = torch.cat([torch.full((60,), 3.0), torch.linspace(0, 2.5, 440)])
    a = with_spectrum(values)
    with pytest.warns(km.errors.KernmantleWarning, match="direct"):
        w = km.linalg.eigh(a, subset_by_index=(460, 499), method="iterative", eigvals_only=True)
    assert_close(w, torch.full((40,), 3.0), dtype=torch.float64, depth=500**2)


def test_only_the_named_triangle_is_read():
    exact = LAPLACE(ROWS)
    spoilt = exact.tril() + torch.full_like(exact, float("nan")).triu(1)
    for lower, a in ((True, spoilt), (False, spoilt.mT)):
        w = km.linalg.eigh(a, subset_by_index=(495, 499), method="iterative", lower=lower, eigvals_only=True)
        assert_close(w, torch.linalg.eigvalsh(exact)[-5:], depth=500**2)


def test_what_does_not_converge_is_solved_directly_with_one_warning():
    a = with_spectrum(torch.linspace(0, 1, 150))
    with pytest.warns(km.errors.KernmantleWarning, match="direct method was taken") as record:
        found = km.linalg.eigh(a, subset_by_index=(140, 149), method="iterative", tolerance=1e-30)
    assert len(record) == 1
    assert found.residual is None
    assert "Krylov" not in found.ran
    assert_close(a @ found.v, found.v * found.w, depth=150**2)
    with pytest.warns(km.errors.KernmantleWarning, match="matrix was formed"):
        found = km.linalg.eigh(LAPLACE.operator(ROWS), subset_by_index=(490, 499), tolerance=1e-30)
    assert_close(found.w, torch.linalg.eigvalsh(LAPLACE(ROWS))[-10:], depth=500**2)
    plain = scipy.sparse.linalg.aslinearoperator(a.numpy())
    with pytest.raises(km.errors.LinearAlgebraError, match="tolerance"):
        km.linalg.eigh(plain, subset_by_index=(140, 149), tolerance=1e-30)


def test_automatic_choice(monkeypatch):
    """Few pairs at the upper end of one large matrix without a gradient."""
    monkeypatch.setitem(sys.modules["kernmantle.linalg.eigh"].FEWEST, "cpu", 400)
    a = LAPLACE(ROWS)

    def ran(a=a, **options):
        return km.linalg.eigh(a, **options).ran

    assert "Krylov" in ran(subset_by_index=(480, 499))
    assert "Krylov" not in ran()
    assert "Krylov" not in ran(subset_by_index=(0, 19))
    assert "Krylov" not in ran(subset_by_index=(480, 498))
    assert "Krylov" not in ran(subset_by_index=(400, 499))
    assert "Krylov" not in ran(subset_by_index=(480, 499), method="direct")
    assert "Krylov" not in ran(a=a[:300, :300], subset_by_index=(290, 299))
    assert "Krylov" not in ran(a=a.clone().requires_grad_(), subset_by_index=(480, 499))


def test_operators_of_numpy_give_numpy():
    x = ROWS.numpy()
    operator = LAPLACE.operator(x)
    w = km.linalg.eigh(operator, subset_by_index=(490, 499), eigvals_only=True)
    assert isinstance(w, np.ndarray)
    assert_close(w, np.linalg.eigvalsh(LAPLACE(x))[-10:], depth=500**2)
    solved = km.linalg.cg(LAPLACE.operator(x, diagonal=1.0), x[:, 0], tolerance=1e-12)
    assert isinstance(solved.x, np.ndarray)
    dense = LAPLACE(x, diagonal=1.0)
    assert_close(dense @ solved.x, x[:, 0], depth=500**2, magnitude=30)
    scipys = km.linalg.cg(scipy.sparse.linalg.aslinearoperator(dense), x[:, 0], tolerance=1e-12)
    assert_close(dense @ scipys.x, x[:, 0], depth=500**2, magnitude=30)


def test_gradients_of_a_part_of_a_spectrum():
    root = normal(20, 20).requires_grad_()

    def largest(r):
        return km.linalg.eigh(r @ r.mT, subset_by_index=(17, 19), method="iterative").w

    assert torch.autograd.gradcheck(largest, (root,))
    bandwidth = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)

    def of_kernel(h):
        return km.linalg.eigh(km.Gaussian(h).operator(ROWS[:40]), subset_by_index=(38, 39)).w

    assert torch.autograd.gradcheck(of_kernel, (bandwidth,))
    found = km.linalg.eigh(root @ root.mT, subset_by_index=(17, 19), method="iterative")
    with pytest.raises(km.errors.GradientError, match="direct"):
        found.v.sum().backward()
    with pytest.raises(km.errors.GradientError, match="first order"):
        torch.autograd.grad(largest(root).sum(), root, create_graph=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_orthonormal_columns_of_anything(dtype):
    generator = torch.Generator().manual_seed(0)
    against = torch.linalg.qr(normal(200, 20)).Q.to(dtype)
    hard = [
        normal(200, 30), normal(200, 30) * torch.logspace(0, -30, 30), torch.zeros(200, 30), torch.ones(200, 30),
        against.double() @ normal(20, 30),
    ]  # fmt: skip
    for w in hard:
        found = orthonormal(w.to(dtype), against, generator)
        assert_close(found.mT @ found, torch.eye(30), dtype=dtype, depth=200, magnitude=1)
        assert_close(against.mT @ found, torch.zeros(20, 30), dtype=dtype, depth=200, magnitude=1)


SPD = with_spectrum(torch.logspace(0, -4, 150))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("columns", [None, 1, 8])
def test_conjugate_gradients(dtype, columns):
    b = normal(150, seed=1) if columns is None else normal(150, columns, seed=1)
    # At a condition of 1e4 rounding the solution to float32 alone leaves residuals above the tolerance.
    a = SPD if dtype == torch.float64 else with_spectrum(torch.logspace(0, -3, 150))
    found = km.linalg.cg(a.to(dtype), b.to(dtype))
    limit = 1e-5 if dtype == torch.float32 else 1e-8
    assert found.x.shape == b.shape
    assert found.converged.all()
    assert found.history.shape[0] == found.iterations + 1
    assert max(float(found.residual.max()), float(found.history[-1].max())) <= limit < float(found.history[0].max())
    true = (b - a @ found.x.double()).norm(dim=0) / b.norm(dim=0)
    assert_close(found.residual, true, dtype=dtype, depth=150, magnitude=found.x.double().norm(dim=0) / b.norm(dim=0))


def test_right_hand_sides_share_their_iterations():
    b = normal(150, 10, seed=1)
    together = km.linalg.cg(SPD, b).iterations
    assert together < 0.7 * km.linalg.cg(SPD, b[:, :1]).iterations


def test_awkward_right_hand_sides():
    b = normal(150, 4, seed=1)
    b[:, 1] = 0
    b[:, 2] = b[:, 0]
    b[:, 3] *= 1e-30
    found = km.linalg.cg(SPD, b, tolerance=1e-11)
    expected = torch.linalg.solve(SPD, b)
    for i in (0, 2, 3):
        assert (found.x[:, i] - expected[:, i]).norm() <= 1e-6 * expected[:, i].norm()
    assert not found.x[:, 1].any()
    assert km.linalg.cg(SPD, 0 * b).iterations == 0
    assert km.linalg.cg(torch.eye(5), torch.ones(5)).iterations == 1


def test_a_start_is_where_it_begins():
    b = normal(150, 2, seed=1)
    expected = torch.linalg.solve(SPD, b)
    assert km.linalg.cg(SPD, b, x0=expected, tolerance=1e-6).iterations <= 1
    near = km.linalg.cg(SPD, b, x0=expected + 1e-6 * normal(150, 2))
    assert (near.x - expected).norm() <= 1e-4 * expected.norm()


def test_what_does_not_converge_is_said():
    b = normal(150, seed=1)
    with pytest.warns(km.errors.KernmantleWarning, match="after 3 of 3 iterations"):
        found = km.linalg.cg(SPD, b, max_iterations=3)
    assert not found.converged
    with pytest.raises(km.errors.LinearAlgebraError, match="preconditioner"):
        km.linalg.cg(SPD, b, max_iterations=3, check_errors=True)
    with pytest.raises(km.errors.LinearAlgebraError, match="NaN"):
        km.linalg.cg(SPD * float("nan"), b, check_errors=True)


def test_progress_is_shown_where_someone_looks(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(
        sys.modules["kernmantle.runtime.progress"], "tqdm", lambda items, **given: tqdm(items, **{**given, "delay": 0})
    )
    km.linalg.cg(SPD, normal(150))
    assert "iteration" in capsys.readouterr().err
    with km.config(progress=False):
        km.linalg.cg(SPD, normal(150))
    assert capsys.readouterr().err == ""


KERNEL = km.Gaussian(1.5)


@pytest.mark.parametrize("make", [km.linalg.nystrom, km.linalg.pivoted_cholesky])
@pytest.mark.parametrize("ridge", [0.01, torch.linspace(0.01, 0.02, 500, dtype=torch.float64)])
@pytest.mark.parametrize("formed", [True, False])
def test_preconditioners(make, ridge, formed):
    matrix = KERNEL(ROWS)
    system = matrix + torch.diag(torch.as_tensor(ridge, dtype=torch.float64).expand(500))
    source = matrix if formed else KERNEL.operator(ROWS)
    approximate = make(source, 120, ridge)
    eye = torch.eye(500, dtype=torch.float64)
    inverse = approximate(eye)
    assert_close(inverse, inverse.mT, depth=500, magnitude=inverse.abs().max())
    assert torch.linalg.eigvalsh(inverse).min() > 0
    assert_close(approximate.root_transposed(approximate.root(eye)), inverse, depth=500, magnitude=inverse.abs().max())
    assert_close(approximate.log_determinant(), -torch.linalg.slogdet(inverse).logabsdet, depth=500**2)
    b = normal(500, 2, seed=1)
    plain, better = km.linalg.cg(system, b), km.linalg.cg(system, b, preconditioner=approximate)
    assert better.iterations < plain.iterations / 3
    assert approximate.__repr__() in better.ran


def test_a_preconditioner_of_full_rank_is_the_inverse():
    matrix = KERNEL(ROWS[:60])
    for make in (km.linalg.nystrom, km.linalg.pivoted_cholesky):
        inverse = make(matrix, 1000, 0.1)(torch.eye(60, dtype=torch.float64))
        assert_close(inverse, torch.linalg.inv(KERNEL(ROWS[:60], diagonal=0.1)), depth=60**2, magnitude=100)
    low = LowRank.of("rank one", torch.ones(4, 1).double(), torch.tensor(2.0).double())
    assert_close(low(torch.eye(4).double()), torch.linalg.inv(1 + 2 * torch.eye(4).double()), depth=16)


def test_estimates():
    a = KERNEL(ROWS, diagonal=0.5)
    exact = torch.linalg.slogdet(a).logabsdet
    plain = km.linalg.logdet(a, probes=64)
    better = km.linalg.logdet(a, probes=64, preconditioner=km.linalg.nystrom(KERNEL.operator(ROWS), 60, 0.5))
    for found in (plain, better):
        assert abs(found.value - exact) < 5 * found.error + 1e-3 * abs(exact)
    assert better.error < plain.error / 2
    trace = km.linalg.trace(LAPLACE.operator(ROWS, diagonal=1.0), probes=200)
    assert abs(trace.value - 1000) < 5 * trace.error
    assert km.linalg.trace(a, probes=500).error == 0
    assert_close(km.linalg.trace(a, probes=500).value, a.trace(), depth=500)


def test_lanczos_ends_with_its_space():
    """A start within an invariant space: exact from there on."""
    a = torch.diag(torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])).double()
    start = torch.zeros(5, 2, dtype=torch.float64)
    start[1, 0] = 1
    start[:, 1] = 5**-0.5
    values, turns = lanczos(lambda v: a @ v, start, 5).pairs()
    moments = (turns[:, 0].square() * values.log()).sum(-1)
    assert_close(moments, torch.stack([torch.tensor(2.0).double().log(), a.diagonal().log().mean()]), depth=25)


def test_gradients_of_iterations():
    x, y = ROWS[:12].clone().requires_grad_(), normal(12, 2, seed=2).requires_grad_()
    h, r = (torch.tensor(value, dtype=torch.float64, requires_grad=True) for value in (1.5, 0.3))

    def by(method):
        return lambda h, x, y, r: (
            km.linalg.solve_kernel(km.Gaussian(h), x, y, r, method=method, tolerance=1e-13, rank=8).x
        )

    for method in ("cholesky", "cg"):
        assert torch.autograd.gradcheck(by(method), (h, x, y, r), atol=1e-4)

    def solved(h, y):
        return km.linalg.cg(km.Gaussian(h).operator(ROWS[:12], diagonal=0.3), y, tolerance=1e-13).x

    assert torch.autograd.gradcheck(solved, (h, y), atol=1e-4)
    with pytest.raises(km.errors.GradientError, match="first order"):
        torch.autograd.grad(solved(h, y).sum(), h, create_graph=True)
    # All probes see every direction, so that the estimate's gradient is that of the determinant.
    probes = km.linalg.logdet(km.Gaussian(h).operator(ROWS[:12], diagonal=0.3), probes=2000, steps=12)
    (found,) = torch.autograd.grad(probes.value, h)
    (wanted,) = torch.autograd.grad(torch.logdet(km.Gaussian(h)(ROWS[:12], diagonal=0.3)), h)
    assert abs(found - wanted) < 0.05 * abs(wanted)


@pytest.mark.parametrize("method", ["cholesky", "cg"])
@pytest.mark.parametrize("vector", [True, False])
@pytest.mark.parametrize("ridge", [0.1, "each"])
def test_kernel_systems(method, vector, ridge):
    y = normal(500, seed=1) if vector else normal(500, 3, seed=1)
    ridge = torch.linspace(0.1, 0.2, 500, dtype=torch.float64) if ridge == "each" else ridge
    system = KERNEL(ROWS) + torch.diag(torch.as_tensor(ridge, dtype=torch.float64).expand(500))
    found = km.linalg.solve_kernel(KERNEL, ROWS, y, ridge, method=method, tolerance=1e-12, check_errors=True)
    assert_close(system @ found.x, y, depth=500**2, magnitude=100)
    if method == "cholesky":
        factor = found.factor.factor
        product = factor @ factor.mT if found.factor.lower else factor.mT @ factor
        assert_close(product, system, depth=500)
    else:
        assert found.iterations.converged.all()
    arrays = km.linalg.solve_kernel(KERNEL, ROWS.numpy(), y.numpy(), ridge, method=method, tolerance=1e-12)
    assert isinstance(arrays.x, np.ndarray)
    assert_close(arrays.x, found.x, depth=500**2, magnitude=100)


def test_a_kernel_matrix_is_built_by_panels(monkeypatch):
    monkeypatch.setattr(kernel, "ROWS", 64)
    for n in (1, 63, 64, 65, 200):
        x = ROWS[:n]
        built = kernel.kernel_matrix(KERNEL, x, 0.5)
        assert_close(built.triu(), KERNEL(x, diagonal=0.5).triu(), depth=3)


def test_an_indefinite_kernel_is_said_or_raised():
    k, x, y = -1 * KERNEL, ROWS[:20], normal(20)
    found = km.linalg.solve_kernel(k, x, y, 1e-3, method="cholesky", check_errors=False)
    assert found.x.isnan().all()
    assert found.factor.info > 0
    with pytest.raises(km.errors.LinearAlgebraError, match="positive definite"):
        km.linalg.solve_kernel(k, x, y, 1e-3, method="cholesky")
    raised = km.linalg.solve_kernel(KERNEL - 0.5, x, y, 1e-9, method="cholesky", jitter=(1e-6, 30.0))
    assert raised.factor.info == 0


BAD = [
    (lambda: km.linalg.cg(SPD[:3], normal(3)), km.errors.ShapeError, "square"),
    (lambda: km.linalg.cg(SPD.expand(2, 150, 150), normal(150)), km.errors.ShapeError, "loop"),
    (lambda: km.linalg.cg(KERNEL, normal(3)), km.errors.ShapeError, "operator"),
    (lambda: km.linalg.cg(SPD, normal(149)), km.errors.ShapeError, "150 rows"),
    (lambda: km.linalg.cg(SPD, normal(150).float()), km.errors.DtypeError, "b is float32"),
    (lambda: km.linalg.cg(SPD, normal(150), x0=normal(150, 1)), km.errors.ShapeError, "x0"),
    (lambda: km.linalg.cg(SPD, normal(150), tolerance=0.0), km.errors.ParameterError, "tolerance"),
    (lambda: km.linalg.cg(SPD, normal(150), max_iterations=2.5), km.errors.ParameterError, "max_iterations"),
    (lambda: km.linalg.nystrom(SPD, 0, 1.0), km.errors.ParameterError, "rank"),
    (lambda: km.linalg.nystrom(SPD, 5, -1.0), km.errors.ParameterError, "positive"),
    (lambda: km.linalg.nystrom(SPD, 5, torch.ones(3)), km.errors.ParameterError, "150 rows"),
    (lambda: km.linalg.pivoted_cholesky(scipy.sparse.linalg.aslinearoperator(SPD.numpy()), 5, 1.0),
     km.errors.ParameterError, "columns"),
    (lambda: km.linalg.logdet(SPD, probes=0), km.errors.ParameterError, "probes"),
    (lambda: km.linalg.logdet(SPD, steps=True), km.errors.ParameterError, "steps"),
    (lambda: km.linalg.eigh(KERNEL.operator(ROWS)), km.errors.ParameterError, "subset_by_index"),
    (lambda: km.linalg.eigh(KERNEL.operator(ROWS), subset_by_index=(3, 9)), km.errors.ParameterError, "one end"),
    (lambda: km.linalg.eigh(SPD, method="iterative"), km.errors.ParameterError, "one end"),
    (lambda: km.linalg.eigh(SPD.expand(2, 150, 150), subset_by_index=(0, 1), method="iterative"),
     km.errors.ShapeError, "loop"),
    (lambda: km.linalg.eigh(SPD, subset_by_index=(0, 1), method="iterative", tolerance=-1), km.errors.ParameterError,
     "tolerance"),
    (lambda: km.linalg.solve_kernel(KERNEL, ROWS, normal(499), 0.1), km.errors.ShapeError, "y must have shape"),
    (lambda: km.linalg.solve_kernel(KERNEL, ROWS, normal(500).cfloat(), 0.1), km.errors.DtypeError, "targets y"),
    (lambda: km.linalg.solve_kernel(KERNEL, ROWS, normal(500), 0.0), km.errors.ParameterError, "ridge"),
    (lambda: km.linalg.solve_kernel(KERNEL, ROWS, normal(500), normal(3)), km.errors.ShapeError, "ridge"),
    (lambda: km.linalg.solve_kernel(KERNEL, ROWS.expand(2, 500, 3), normal(500), 0.1), km.errors.ShapeError, "batch"),
    (lambda: km.linalg.solve_kernel(KERNEL, ROWS, normal(500), 0.1, method="qr"), km.errors.ParameterError, "method"),
    (lambda: km.linalg.solve_kernel(KERNEL, ROWS, normal(500), 0.1, method="cg", preconditioner="ilu"),
     km.errors.ParameterError, "nystrom"),
    (lambda: km.linalg.solve_kernel(KERNEL, ROWS.half(), normal(500).half(), 0.1), km.errors.DtypeError, "float16"),
]  # fmt: skip


@pytest.mark.parametrize("case", range(len(BAD)))
def test_bad_input(case):
    call, kind, words = BAD[case]
    with pytest.raises(kind, match=words):
        call()


def test_the_default_tolerance_is_that_of_direct_methods():
    for dtype in (torch.float32, torch.float64):
        assert krylov.default_tolerance(10_000, dtype) == 100 * torch.finfo(dtype).eps
        assert krylov.default_tolerance(10_000, dtype) < 10_000 * tolerance(dtype)


SHAPES = [(6, 1), (6, 4), (6, 6), (6, 9), (50, 3), (50, 60)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["independent", "twice the same", "zero", "far apart"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_cg_of_columns_that_depend_on_each_other(shape, kind, dtype):
    n, count = shape
    half = normal(n, n, seed=1, dtype=dtype)
    a = half @ half.mT + n * torch.eye(n, dtype=dtype)
    b = normal(n, count, seed=2, dtype=dtype)
    if kind == "twice the same":
        b[:, -1] = b[:, 0]
    elif kind == "zero":
        b[:, -1] = 0
    elif kind == "far apart":
        b[:, -1] *= 1e15
    tolerance = 1e-5 if dtype == torch.float32 else 1e-12
    found = km.linalg.cg(a, b, tolerance=tolerance, max_iterations=60)
    assert found.converged.all()
    gap = torch.linalg.vector_norm(b.double() - a.double() @ found.x.double(), dim=0)
    assert (gap <= 10 * tolerance * torch.linalg.vector_norm(b.double(), dim=0)).all()


@pytest.mark.parametrize("count", [1, 8, 32])
@pytest.mark.parametrize("ridge", [1e-1, 1e-3])
def test_cg_of_a_smooth_kernel_takes_no_more_iterations_for_more_columns(ridge, count):
    x = torch.linspace(0, 1, 300, dtype=torch.float64)[:, None]
    b = normal(300, count, seed=4)
    operator = km.Gaussian(1.0).operator(x, diagonal=ridge)
    found = km.linalg.cg(operator, b)
    assert found.iterations <= 15
    gap = torch.linalg.vector_norm(b - operator.dense() @ found.x, dim=0)
    assert (gap <= 1e-7 * torch.linalg.vector_norm(b, dim=0)).all()


@pytest.mark.parametrize("make", [km.linalg.nystrom, km.linalg.pivoted_cholesky])
def test_cg_of_float32_is_as_near_for_ten_columns_as_for_one(make):
    """A smooth kernel with a ridge of a few units of float32: what is reached is what float32 allows."""
    x = torch.linspace(0, 1, 400)[:, None]
    b = normal(400, 10, seed=5, dtype=torch.float32)
    exact = KERNEL(x.double()) + 1e-4 * torch.eye(400, dtype=torch.float64)
    wanted = torch.linalg.solve(exact, b.double())
    plan = make(KERNEL.operator(x), 50, 1e-4)
    with pytest.warns(km.errors.KernmantleWarning, match="use float64"):
        found = km.linalg.solve_kernel(KERNEL, x, b, 1e-4, method="cg", preconditioner=plan, max_iterations=100).x
    assert torch.linalg.vector_norm(found - wanted) < 0.2 * torch.linalg.vector_norm(wanted)


@pytest.mark.parametrize("columns", [(), (2,)])
def test_callbacks_get_every_iterate(columns):
    a, b = with_spectrum(torch.linspace(1, 50, 40)), 1e3 * normal(40, *columns)
    seen = []
    found = km.linalg.cg(a, b, callback=seen.append)
    assert len(seen) == found.iterations
    assert seen[0].shape == b.shape
    rests = torch.stack([(b - a @ x).norm(dim=0) / b.norm(dim=0) for x in seen])
    assert_close(rests[-1], found.residual, depth=40, magnitude=1)
    assert (rests[0] > 10 * rests[-1]).all()
    again = km.linalg.cg(a, b, x0=seen[-3], tolerance=1.0, max_iterations=0)
    assert_close(again.residual, rests[-3], depth=40, magnitude=1)


def test_callbacks_may_end_the_iteration():
    def stop(x):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        km.linalg.cg(torch.eye(3), torch.ones(3), callback=stop)
