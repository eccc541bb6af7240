"""Solvers on CUDA tensors against float64 on the CPU: values, nothing that waits, CUDA graphs, memory."""

from __future__ import annotations

import math

import pytest
import torch

import kernmantle as km
from kernmantle.linalg import cusolver
from kernmantle.testing import assert_close, tolerance

from ..arrays import nothing_waits

pytestmark = pytest.mark.cuda
needs_cusolver = pytest.mark.skipif(
    isinstance(cusolver.load(), str), reason=f"torch's own factorisations cannot be captured, and {cusolver.load()}"
)


def normal(*shape, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to("cuda", dtype)


def spd(*shape, dtype=torch.float64, seed=0):
    root = normal(*shape, seed=seed)
    return (root @ root.mT / shape[-1] + torch.eye(shape[-1], device="cuda", dtype=torch.float64)).to(dtype)


def test_cusolver_is_here():
    pytest.importorskip("nvmath")
    assert isinstance(cusolver.load(), cusolver.Library), cusolver.load()


SHAPES = [
    (1, 1), (7, 7), (33, 33), (300, 300), (1000, 7, 7), (9, 4, 4), (5, 17, 17), (70, 32, 32), (20, 300, 300),
    (2, 3, 65, 65),
]  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("lower", [True, False])
def test_solutions(dtype, shape, lower):
    exact, b = spd(*shape), normal(*shape[:-1], 3, seed=1)
    expected = exact.cpu(), b.cpu()
    side = b.to(dtype)
    for a in (exact.to(dtype), exact.to(dtype).mT.contiguous().mT):
        for overwrite in (False, True):
            with nothing_waits():
                cholesky = km.linalg.solve_cholesky(a.clone(), side, lower=lower, overwrite_a=overwrite)
                lu = km.linalg.solve_lu(a.clone(), side, overwrite_a=overwrite)
            for found in (cholesky, lu):
                assert not found.info.any()
                assert_close(found.x, torch.linalg.solve(*expected), dtype=dtype, depth=10 * shape[-1] ** 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(1, 1), (7, 7), (300, 300), (100, 7, 7), (3, 200, 200), (2, 1100, 1100)])
def test_spectra(dtype, shape):
    exact = spd(*shape, seed=2)
    w, v = km.linalg.eigh(exact.to(dtype))
    expected = torch.linalg.eigvalsh(exact.cpu())
    depth = shape[-1] ** 2
    assert_close(w, expected, dtype=dtype, depth=depth)
    assert_close(exact @ v.double(), (v * w[..., None, :]).double(), dtype=dtype, depth=depth, magnitude=1)
    assert_close(v.mT @ v, torch.eye(shape[-1]).expand(shape), dtype=dtype, depth=depth, magnitude=1)
    n = shape[-1]
    if n > 7:
        some = km.linalg.eigh(exact.to(dtype), subset_by_index=(n - 5, n - 2))
        assert_close(some.w, expected[..., n - 5 : n - 1], dtype=dtype, depth=depth)
        assert some.v.untyped_storage().nbytes() == some.v.nbytes
    if len(shape) == 2:
        low, high = float(expected[0]) - 1, float(expected.mean())
        by_value = km.linalg.eigh(exact.to(dtype), subset_by_value=(low, high), eigvals_only=True)
        assert by_value.shape[0] == int((expected <= high).sum())


@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("n", [600, 4200])
def test_without_nvmath_by_torch(n, lower, monkeypatch):
    """Triangles are turned over for torch as for cuSOLVER, and solved with as they lie."""
    monkeypatch.setattr(cusolver, "load", lambda: "nvmath-python is not installed")
    exact, b = spd(n, n), normal(n, 3, seed=1)
    for a in (exact, exact.mT.contiguous().mT):
        for overwrite in (False, True):
            found = km.linalg.solve_cholesky(a.clone(), b, lower=lower, overwrite_a=overwrite)
            assert found.ran.startswith("torch.linalg.cholesky_ex")
            assert_close(exact @ found.x, b, depth=n)
        factor = km.linalg.cholesky_factor(a, lower=lower)
        other = factor.factor.triu(1) if lower else factor.factor.tril(-1)
        assert not other.any()
        assert_close(km.linalg.cholesky_solve(factor, b).x, found.x, depth=n)


def test_failures_do_not_wait():
    bad, side = torch.stack([spd(300, 300), -spd(300, 300)]), normal(2, 300, 1)
    with nothing_waits():
        found = km.linalg.solve_cholesky(bad, side)
        raised = km.linalg.solve_cholesky(bad.clone(), side, jitter=(1e-3, 3.0), overwrite_a=True)
        singular = km.linalg.solve_lu(torch.ones(300, 300, device="cuda"), torch.ones(300, device="cuda"))
    assert found.info.tolist() == [0, 1]
    assert found.x.isnan().flatten(1).all(1).tolist() == [False, True]
    assert raised.info.tolist() == [0, 0]
    assert raised.jitter[0] == 0
    assert raised.jitter[1] > 1
    assert singular.info > 0
    with pytest.raises(km.errors.LinearAlgebraError, match="item 1"):
        km.linalg.solve_cholesky(bad, normal(2, 300, 1), check_errors=True)


def graded(n, condition, seed=3):
    """Symmetric matrix with eigenvalues from 1 down to 1 / condition."""
    basis = torch.linalg.qr(normal(n, n, seed=seed)).Q
    found = (basis * torch.logspace(0, -math.log10(condition), n, dtype=torch.float64, device="cuda")) @ basis.mT
    return (found + found.mT) / 2


@pytest.mark.parametrize("n", [1, 31, 32, 33, 500, 2000])
@pytest.mark.parametrize("condition", [1e1, 1e12])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_errors_are_those_of_rounding(n, condition, dtype):
    exact = graded(n, condition)
    a = (exact + (1e-5 if dtype == torch.float32 else 0) * torch.eye(n, device="cuda")).to(dtype)
    b = normal(n, 3, seed=1).to(dtype)
    for lower in (True, False):
        solutions = [km.linalg.solve_cholesky(a, b, lower=lower).x, km.linalg.solve_lu(a.mT if lower else a, b).x]
        for x in solutions:
            gap = (a.double() @ x.double() - b.double()).norm(dim=0)
            scale = a.double().norm() * x.double().norm(dim=0) + b.double().norm(dim=0)
            assert float((gap / scale).max()) <= tolerance(dtype, n)
        w, v = (part.double() for part in km.linalg.eigh(a, lower=lower))
        unit = torch.finfo(dtype).eps * n
        assert float((a.double() @ v - v * w).norm()) <= 10 * unit
        assert float((v.mT @ v - torch.eye(n, device="cuda")).norm()) <= 10 * unit * n**0.5
        assert float((w - torch.linalg.eigvalsh(a.double())).abs().max()) <= 10 * unit


def layouts(a):
    """The same batch of matrices behind all kinds of strides."""
    wide = torch.full([n * k for n, k in zip(a.shape, (2, 2, 3), strict=True)], float("nan")).to(a)
    wide[::2, 1::2, 2::3] = a
    return [a, a.mT.contiguous().mT, a.permute(2, 0, 1).contiguous().permute(1, 2, 0), wide[::2, 1::2, 2::3]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n", [1, 7, 65, 600])
@pytest.mark.parametrize("condition", [1e1, 1e12])
def test_batches_of_any_strides_are_backward_stable(dtype, n, condition):
    shift = (1e-5 if dtype == torch.float32 else 0) * torch.eye(n, device="cuda")
    a = torch.stack([graded(n, condition, seed) + shift for seed in range(3)]).to(dtype)
    b, exact, unit = normal(3, n, 2, dtype=dtype, seed=1), a.double(), torch.finfo(dtype).eps * n
    for view, side in zip(layouts(a), layouts(b), strict=True):
        solutions = [km.linalg.solve_cholesky(view, side, lower=lower).x for lower in (True, False)]
        solutions += [km.linalg.solve_lu(view, side).x, km.linalg.solve_lu(view.mT, side).x]
        for x in (x.double() for x in solutions):
            scale = exact.norm(dim=(1, 2))[:, None] * x.norm(dim=1) + b.double().norm(dim=1)
            assert float(((exact @ x - b.double()).norm(dim=1) / scale).max()) <= tolerance(dtype, n)
        for lower in (True, False):
            w, v = (part.double() for part in km.linalg.eigh(view, lower=lower))
            assert float((exact @ v - v * w[:, None]).norm(dim=(1, 2)).max()) <= 10 * unit
            assert float((v.mT @ v - torch.eye(n, device="cuda")).norm(dim=(1, 2)).max()) <= 10 * unit * n**0.5


@pytest.mark.parametrize("n", [1, 3, 4, 5, 8, 16, 31, 32])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_small_systems(n, dtype):
    """Factors and their uses, views of all kinds, one right-hand side for many matrices and many for one."""
    exact, general, b = spd(5, 3, n, n), normal(5, 3, n, n, seed=4), normal(5, 3, n, 2, seed=5)
    a, matrix, side = exact.to(dtype), general.to(dtype), b.to(dtype)
    depth = 100 * n**2
    for lower in (True, False):
        factor = km.linalg.cholesky_factor(a, lower=lower)
        assert factor.ran == "one kernel for small systems"
        triangle = factor.factor.double()
        assert_close(triangle @ triangle.mT if lower else triangle.mT @ triangle, exact, dtype=dtype, depth=depth)
        assert not (triangle.triu(1) if lower else triangle.tril(-1)).any()
        assert_close(km.linalg.cholesky_solve(factor, side).x, torch.linalg.solve(exact, b), dtype=dtype, depth=depth)
        spoilt = torch.where(torch.ones_like(a).triu(1).bool(), float("nan"), a)
        spoilt = spoilt if lower else spoilt.mT
        found = km.linalg.solve_cholesky(spoilt, side, lower=lower).x
        assert_close(found, torch.linalg.solve(exact, b), dtype=dtype, depth=depth)
    found, expected = km.linalg.lu_factor(matrix), torch.linalg.lu_factor(matrix)
    assert torch.equal(found.pivots, expected.pivots)
    assert_close(found.factors, expected.LU.double(), dtype=dtype, depth=depth)
    size = torch.linalg.inv(general).abs().amax()
    for transpose in (False, True):
        given = general.mT if transpose else general
        for r in (b, b[:1, :1], normal(4, 1, 1, n, 3)):
            x = km.linalg.lu_solve(found, r.to(dtype), transpose=transpose).x
            assert_close(x, torch.linalg.solve(given, r), dtype=dtype, depth=depth, magnitude=size**2)
    for view in (matrix.mT, matrix.permute(1, 0, 2, 3), matrix[::2], matrix[:, 1], matrix[0, 0].expand(4, n, n)):
        r = normal(*view.shape[:-1], 2, seed=6)
        target = r.to(dtype, copy=True).mT.contiguous().mT
        x = km.linalg.solve_lu(view, target, overwrite_b=True).x
        assert x.data_ptr() == target.data_ptr()
        assert_close(target, torch.linalg.solve(view.double(), r), dtype=dtype, depth=depth, magnitude=size**2)


def test_small_failures():
    a = torch.stack([spd(5, 5), -spd(5, 5), spd(5, 5), torch.ones(5, 5).double().cuda()])
    a[2, 3, 1] = float("nan")
    b = normal(4, 5, 2)
    with nothing_waits():
        cholesky, lu = km.linalg.solve_cholesky(a, b), km.linalg.solve_lu(a, b)
    assert cholesky.info.tolist() == [0, 1, 4, 2]
    assert cholesky.x.isnan().flatten(1).all(1).tolist() == [False, True, True, True]
    assert lu.info.tolist() == [0, 0, 0, 2]
    assert lu.x.isnan().flatten(1).any(1).tolist() == [False, False, True, True]
    with pytest.raises(km.errors.LinearAlgebraError, match="item 1"):
        km.linalg.solve_cholesky(a, b, check_errors=True)


def jittered(a, b):
    return km.linalg.solve_cholesky(a, b, jitter=(1e-6, 1e-4)).x


def factored(a, b):
    return km.linalg.cholesky_solve(km.linalg.cholesky_factor(a), b).x


def lu_factored(a, b):
    return km.linalg.lu_solve(km.linalg.lu_factor(a), b, transpose=True).x


def in_place(solve):
    return lambda a, b: solve(a.clone(), b.mT.contiguous().mT, overwrite_a=True, overwrite_b=True).x


def slopes(a, b):
    """Of the sum of the solution by the sides, which is the solution for ones."""
    side = torch.ones_like(b, requires_grad=True)
    return torch.autograd.grad(km.linalg.solve_cholesky(a, side).x, side, b)[0]


SOLVES = {
    "cholesky": lambda a, b: km.linalg.solve_cholesky(a, b).x,
    "upper": lambda a, b: km.linalg.solve_cholesky(a, b, lower=False).x,
    "lu": lambda a, b: km.linalg.solve_lu(a, b).x,
    "cholesky factor": factored,
    "lu factor": lu_factored,
    "jitter": jittered,
    "refined cholesky": lambda a, b: km.linalg.solve_cholesky(a, b, refine=3).x,
    "refined lu": lambda a, b: km.linalg.solve_lu(a, b, refine=3).x,
    "inverse": lambda a, b: km.linalg.inverse_spd(a).x @ b,
    "determinant": lambda a, b: b * km.linalg.logdet_spd(a)[..., None, None],
    "cholesky in place": in_place(km.linalg.solve_cholesky),
    "lu in place": in_place(km.linalg.solve_lu),
    "one side for all": lambda a, b: km.linalg.solve_lu(a, b[(0,) * (b.dim() - 2)]).x.expand_as(b),
    "gradient": slopes,
}


def expected_of(name, a, b):
    """By LAPACK on the CPU."""
    a, b = a.cpu(), b.cpu()
    if name == "determinant":
        return b * torch.linalg.slogdet(a).logabsdet[..., None, None]
    if name == "one side for all":
        b = b[(0,) * (b.dim() - 2)].expand_as(b)
    return torch.linalg.solve(a, b)


@needs_cusolver
@pytest.mark.parametrize("shape", [(300, 300), (9, 300, 300), (50, 7, 7), (3, 40, 40)])
@pytest.mark.parametrize("name", SOLVES)
def test_nothing_waits_and_graphs_replay(name, shape):
    solve = SOLVES[name]
    a, b = spd(*shape), normal(*shape[:-1], 2, seed=1)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        solve(a, b)
        with nothing_waits():
            solve(a, b)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        found = solve(a, b)
    a.copy_(spd(*shape, seed=9))
    graph.replay()
    torch.cuda.synchronize()
    assert_close(found, expected_of(name, a, b), depth=10 * shape[-1] ** 2)


SPECTRA = {
    "values": lambda a: km.linalg.eigh(a, eigvals_only=True)[..., -5:],
    "pairs": lambda a: km.linalg.eigh(a).w[..., -5:],
    "part": lambda a: km.linalg.eigh(a, subset_by_index=(a.shape[-1] - 5, a.shape[-1] - 1), method="direct").w,
}


@needs_cusolver
@pytest.mark.parametrize("shape", [(300, 300), (50, 7, 7)])
@pytest.mark.parametrize("name", SPECTRA)
def test_spectra_do_not_wait(name, shape):
    a = spd(*shape)
    SPECTRA[name](a)
    with nothing_waits():
        found = SPECTRA[name](a)
    assert_close(found, torch.linalg.eigvalsh(a.cpu())[..., -5:], depth=shape[-1] ** 2)


@needs_cusolver
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(7, 7), (300, 300), (5, 7, 7), (3, 300, 300)])
@pytest.mark.parametrize("name", SPECTRA)
def test_spectra_in_graphs(name, shape, dtype):
    a, call = spd(*shape).to(dtype), SPECTRA[name]
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    call(a)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream):
        found = call(a)
    a.copy_(spd(*shape, seed=9).to(dtype))
    graph.replay()
    torch.cuda.synchronize()
    expected = torch.linalg.eigvalsh(a.double().cpu())[..., -5:]
    assert_close(found, expected, dtype=dtype, depth=shape[-1] ** 2, magnitude=expected[..., -1:])


@needs_cusolver
def test_what_waits_is_not_captured():
    large, x = spd(301, 301), normal(5000, 2)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in (
            lambda: km.linalg.eigh(large),
            lambda: km.linalg.eigh(large, subset_by_value=(0.0, 2.0)),
            lambda: km.linalg.eigh(km.Gaussian(1.0).operator(x), subset_by_index=(4990, 4999)),
        ):
            with pytest.raises(km.errors.BackendError, match="waits for the device"):
                call()
        found = large + 1
    graph.replay()
    assert torch.equal(found, large + 1)


@needs_cusolver
def test_estimates_do_not_wait():
    x, y = normal(2000, 3), normal(2000, 2, seed=1)
    k = km.Gaussian(1.0)
    operator, raised = k.operator(x), k.operator(x, diagonal=0.1)
    makers = (km.linalg.nystrom, km.linalg.pivoted_cholesky)

    def found():
        plans = [make(operator, 100, 0.1) for make in makers]
        sums = [km.linalg.trace(raised).value, *(km.linalg.logdet(raised, preconditioner=plan).value for plan in plans)]
        whole = [km.linalg.solve_kernel(k, x, y, 0.1, method="cg", preconditioner=plan).x for plan in plans]
        return sums, [km.linalg.solve_kernel(k, x, y, 0.1, method="cg", tolerance=1e-10).x, *whole]

    found()
    with nothing_waits():
        sums, solutions = found()
    matrix = k(x, diagonal=0.1).cpu()
    for value, exact in zip(sums, (matrix.trace(), *[torch.linalg.slogdet(matrix).logabsdet] * 2), strict=True):
        assert abs(float(value) - float(exact)) < 0.05 * abs(float(exact))
    for solution in solutions:
        assert (matrix @ solution.cpu() - y.cpu()).norm() < 1e-5 * y.norm()


@needs_cusolver
def test_kernel_systems_do_not_wait_and_replay():
    x, y = normal(700, 3), normal(700, 2, seed=1)
    k = km.Gaussian(1.0)
    km.linalg.solve_kernel(k, x, y, 0.1, method="cholesky")
    km.linalg.cg(k.operator(x, diagonal=0.1), y, max_iterations=200)
    with nothing_waits():
        km.linalg.solve_kernel(k, x, y, 0.1, method="cholesky")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = km.linalg.solve_kernel(k, x, y, 0.1, method="cholesky")
        iterated = km.linalg.cg(k.operator(x, diagonal=0.1), y, max_iterations=200)
    x.copy_(normal(700, 3, seed=7))
    graph.replay()
    expected = torch.linalg.solve(k(x, diagonal=0.1).cpu(), y.cpu())
    assert_close(found.x, expected, depth=700, magnitude=1e6)
    assert_close(iterated.x, expected, depth=700, magnitude=1e6)


def test_in_place_takes_the_matrix_and_its_workspace_alone():
    n = 4000
    a, b = spd(n, n, dtype=torch.float32), normal(n, 1, dtype=torch.float32)
    for solve, routine in ((km.linalg.solve_cholesky, "cholesky"), (km.linalg.solve_lu, "lu")):
        work = a.clone()
        solve(spd(300, 300, dtype=torch.float32), b[:300])
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        solve(work, b, overwrite_a=True)
        taken, space = torch.cuda.max_memory_allocated() - before, km.linalg.workspace(routine, n)
        copy = space.matrix if isinstance(cusolver.load(), str) else 0  # which torch's own routines make
        assert taken <= space.device + copy + 40 * n + 2**21


def test_jitter_in_place():
    n = 5000
    x = normal(n, 2, dtype=torch.float32)
    a = km.Gaussian(5.0)(x)
    found = km.linalg.solve_cholesky(a, torch.ones(n, device="cuda"), jitter=(1e-4, 1e-2), overwrite_a=True)
    assert found.info == 0
    assert found.jitter > 0


def test_iteration():
    x = normal(3000, 3, dtype=torch.float32)
    k = km.Laplace(2.0, p=2)
    matrix = k(x)
    expected = torch.linalg.eigvalsh(matrix.double().cpu())[-50:]
    for a in (matrix, k.operator(x)):
        found = km.linalg.eigh(a, subset_by_index=(2950, 2999), method="iterative")
        assert "Krylov" in found.ran
        assert_close(found.w, expected, dtype=torch.float32, depth=3000, magnitude=expected[-1])


def test_conjugate_gradients_do_not_wait():
    x, y = normal(3000, 3), normal(3000, 2, seed=1)
    k = km.Gaussian(1.0)
    plan = km.linalg.nystrom(k.operator(x), 200, 0.1)
    operator = k.operator(x, diagonal=0.1)
    km.linalg.cg(operator, y, preconditioner=plan, max_iterations=500, tolerance=1e-10)
    with nothing_waits():
        found = km.linalg.cg(operator, y, preconditioner=plan, max_iterations=500, tolerance=1e-10)
    assert found.converged.all()
    assert found.residual.max() < 1e-9
    expected = torch.linalg.solve(k(x, diagonal=0.1).cpu(), y.cpu())
    assert_close(found.x, expected, depth=3000, magnitude=1e6)


def test_kernel_systems():
    x, y = normal(3000, 3), normal(3000, 2, seed=1)
    k = km.Gaussian(1.0)
    expected = torch.linalg.solve(k(x, diagonal=0.1).cpu(), y.cpu())
    for method in ("cholesky", "cg"):
        found = km.linalg.solve_kernel(k, x, y, 0.1, method=method, tolerance=1e-10, check_errors=True)
        assert_close(found.x, expected, depth=3000, magnitude=1e6)


def test_gradients():
    root, b = normal(5, 5).requires_grad_(), normal(5, 2).requires_grad_()
    eye = torch.eye(5, device="cuda", dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda r, b: km.linalg.solve_cholesky(r @ r.mT + eye, b).x, (root, b))
    assert torch.autograd.gradcheck(lambda r, b: km.linalg.solve_lu(r, b).x, (root, b))
    assert torch.autograd.gradcheck(lambda r: km.linalg.eigh(r + r.mT).w, (root,))


def test_mixed_precision():
    a, b = spd(500, 500), normal(500, 3)
    found = km.linalg.solve_cholesky(a, b, refine=3)
    assert found.residual.max() < 1e-14
    assert_close(found.x, torch.linalg.solve(a.cpu(), b.cpu()), depth=500**2)
