"""What solvers say of their results is so: converged, residuals, errors and infos against float64 oracles."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg
import torch

import kernmantle as km
from kernmantle.testing import assert_close

from ..arrays import normal, with_spectrum


@pytest.mark.parametrize("n", [40, 100, 300])
@pytest.mark.parametrize("count", [1, 5, 30])
@pytest.mark.parametrize("vectors", [True, False])
def test_as_many_pairs_of_clustered_matrices_as_were_asked_for(n, count, vectors):
    q = torch.linalg.qr(normal(n, n)).Q
    a = (q @ q.mT).float()
    for index in ((n - count, n - 1), (0, count - 1)):
        expected = scipy.linalg.eigh(a.double().numpy(), eigvals_only=True)[index[0] : index[1] + 1]
        found = km.linalg.eigh(a, subset_by_index=index, eigvals_only=not vectors)
        w = found.w if vectors else found
        assert_close(w, expected, dtype=torch.float32, depth=n)
        if vectors:
            assert found.info == 0
            assert_close(found.v.double().mT @ found.v.double(), torch.eye(count), dtype=torch.float32, depth=n**2)
            assert_close(a.double() @ found.v.double(), found.v * w, dtype=torch.float32, depth=n**2, magnitude=1)


def test_batches_of_clustered_and_other_matrices():
    q = torch.linalg.qr(normal(200, 200)).Q
    a = torch.stack([(q @ q.mT).float(), torch.diag(normal(200)).float(), ((q * normal(200)) @ q.mT).float()])
    found = km.linalg.eigh(a, subset_by_index=(195, 199))
    assert found.info.tolist() == [0, 0, 0]
    expected = np.stack([scipy.linalg.eigh(item.double().numpy(), eigvals_only=True)[195:] for item in a])
    assert_close(found.w, expected, dtype=torch.float32, depth=200**2)


def test_what_does_not_converge_in_lapack_is_told_by_item(monkeypatch):
    """Of a batch the others are what they are alone."""
    a = torch.stack([with_spectrum(range(5)), 1e3 * with_spectrum(range(5))])
    plain = torch.linalg.eigh

    def failing(matrix, *rest):
        if matrix.abs().max() > 100:
            raise torch.linalg.LinAlgError("did not converge")
        return plain(matrix, *rest)

    monkeypatch.setattr(torch.linalg, "eigh", failing)
    found = km.linalg.eigh(a, check_errors=False)
    assert found.info.tolist() == [0, 1]
    assert_close(found.w[0], torch.arange(5.0), depth=25, magnitude=4)
    assert found.v[1].isnan().all()
    with pytest.raises(km.errors.LinearAlgebraError, match="item 1"):
        km.linalg.eigh(a, check_errors=True)


@pytest.mark.parametrize(
    ("dtype", "exponents"), [(torch.float32, (-60, -80, -100, 60, 100)), (torch.float64, (-400, -530, -900, 600, 900))]
)
@pytest.mark.parametrize("largest", [True, False])
def test_iterations_for_spectra_at_any_scale(dtype, exponents, largest):
    """A power of two changes no digit of what is found."""
    n, count = 300, 5
    a = with_spectrum(torch.cat([torch.linspace(-3, -2, 8), torch.linspace(0, 1, n - 16), torch.linspace(2, 3, 8)]))
    index = (n - count, n - 1) if largest else (0, count - 1)
    expected = torch.linalg.eigvalsh(a)[index[0] : index[1] + 1]
    plain = km.linalg.eigh(a.to(dtype), subset_by_index=index, method="iterative", tolerance=1e-5)
    assert "Krylov" in plain.ran
    assert_close(plain.w, expected, dtype=dtype, depth=n**2, magnitude=3) if dtype == torch.float32 else None
    for e in exponents:
        scaled = a.to(dtype) * 2.0**e
        found = km.linalg.eigh(scaled, subset_by_index=index, method="iterative", tolerance=1e-5)
        assert torch.equal(found.w.double(), plain.w.double() * 2.0**e)
        assert torch.equal(found.residual, plain.residual)


def true_residual(a, x, b):
    """In float64, and for tiny and huge numbers alike."""
    scale = b.double().abs().amax(0).clamp_min(5e-324)
    gap = (b.double() - a.double() @ x.double()) / scale
    return gap.norm(dim=0) / (b.double() / scale).norm(dim=0)


@pytest.mark.parametrize(("dtype", "decades"), [(torch.float32, 6), (torch.float64, 12)])
@pytest.mark.parametrize("columns", [1, 150])
def test_cg_claims_what_its_solution_has(dtype, decades, columns):
    a = with_spectrum(torch.logspace(0, -decades, 150, dtype=torch.float64)).to(dtype)
    b = normal(150, columns, dtype=dtype, seed=1)
    with pytest.warns(km.errors.KernmantleWarning, match="conjugate gradients stopped"):
        found = km.linalg.cg(a, b)
    true = true_residual(a, found.x, b)
    limit = 1e-5 if dtype == torch.float32 else 1e-8
    assert not found.converged.all()
    assert torch.equal(found.converged, true <= limit)
    assert (found.info[~found.converged] == (1 if columns == 1 else 2)).all()
    assert_close(found.residual, true, dtype=dtype, depth=150, magnitude=(1 + 10 * true))
    with pytest.raises(km.errors.LinearAlgebraError, match="conjugate gradients stopped"):
        km.linalg.cg(a, b, check_errors=True)


def test_cg_of_a_kernel_reaches_its_tolerance_where_the_recursion_drifts():
    """float32 products of 1500 rows are off by more than the tolerance; residuals in float64 mend that."""
    x = normal(1500, 10, dtype=torch.float32)
    y = x.sum(1).sin()
    k = km.Gaussian(3.0)
    exact = torch.exp(-(torch.cdist(x.double(), x.double()) ** 2) / 18) + 1e-2 * torch.eye(1500, dtype=torch.float64)
    for found in (
        km.linalg.solve_kernel(k, x, y, 1e-2, method="cg").iterations,
        km.linalg.cg(k.operator(x, diagonal=1e-2), y[:, None], tolerance=1e-4),
        km.linalg.cg(k.operator(x.numpy(), diagonal=1e-2), y[:, None].numpy(), tolerance=1e-4),
    ):
        assert found.converged.all()
        true = true_residual(exact, torch.as_tensor(found.x), y[:, None])
        assert float(true.max()) <= 1e-4
        assert_close(torch.as_tensor(found.residual), true, dtype=torch.float32, depth=1500)


SMALLEST = {torch.float32: [-24, -30, 30], torch.float64: [-165, -300, 300]}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_cg_of_right_hand_sides_and_matrices_at_any_scale(dtype):
    a, b = with_spectrum(torch.linspace(1, 10, 150)), normal(150, 2, seed=1)
    wanted = torch.linalg.solve(a, b)
    limit = 1e-5 if dtype == torch.float32 else 1e-8
    for power in SMALLEST[dtype]:
        scale = 10.0**power
        side = torch.stack([b[:, 0], b[:, 1] * scale], 1).to(dtype)
        found = km.linalg.cg(a.to(dtype), side)
        assert found.converged.all()
        error = (found.x.double() / torch.tensor([1.0, scale], dtype=torch.float64) - wanted).norm(dim=0)
        assert (error <= 10 * limit * wanted.norm(dim=0)).all()
        part = 10.0 ** (power / 10 * 9)
        found = km.linalg.cg((a * part).to(dtype), (b * part).to(dtype))
        assert found.converged.all()
        assert ((found.x.double() - wanted).norm(dim=0) <= 10 * limit * wanted.norm(dim=0)).all()


def test_a_kernel_system_with_tiny_targets():
    k, x = km.Gaussian(0.5), torch.linspace(0, 3, 50)[:, None]
    y = x.sin()[:, 0] * 1e-24
    found = km.linalg.solve_kernel(k, x, y, ridge=1e-2, method="cg")
    exact = k(x.double(), diagonal=1e-2)
    wanted = torch.linalg.solve(exact, y.double())
    assert found.iterations.converged.all()
    assert (found.x - wanted).norm() <= 1e-3 * wanted.norm()


INDEFINITE = {
    "negative": -with_spectrum(torch.linspace(1, 9, 60)),
    "indefinite": with_spectrum(torch.linspace(-4, 9, 60)),
    "nearly": with_spectrum(torch.cat([torch.linspace(1, 9, 58), torch.tensor([-1e-3, -1e-2])])),
    "singular": with_spectrum(torch.cat([torch.zeros(20), torch.linspace(1, 9, 40)])),
    "zero": torch.zeros(60, 60, dtype=torch.float64),
}


@pytest.mark.parametrize("kind", INDEFINITE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("columns", [1, 5])
def test_cg_of_matrices_that_are_not_definite(kind, dtype, columns):
    """Solved, or said: a warning, an info, and the best iterate."""
    a, b = INDEFINITE[kind].to(dtype), normal(60, columns, dtype=dtype, seed=3)
    with pytest.warns(km.errors.KernmantleWarning, match="conjugate gradients stopped"):
        found = km.linalg.cg(a, b)
    true = true_residual(a, found.x, b)
    assert not found.converged.any()
    assert (found.info > 0).all()
    assert (true <= 1 + 1e-6).all()
    assert_close(found.residual, true, dtype=dtype, depth=60, magnitude=10)


def test_cg_keeps_columns_that_have_nan_apart():
    a, b = with_spectrum(torch.linspace(1, 9, 60)), normal(60, 3)
    b[3, 1] = float("nan")
    with pytest.warns(km.errors.KernmantleWarning, match="NaN"):
        found = km.linalg.cg(a, b)
    assert found.info.tolist() == [0, 4, 0]
    assert found.x[:, 1].isnan().all()
    assert found.residual[1].isnan()
    assert (true_residual(a, found.x, b)[[0, 2]] <= 1e-8).all()
    a[2, 2] = float("nan")
    with pytest.warns(km.errors.KernmantleWarning, match="NaN"):
        found = km.linalg.cg(a, normal(60))
    assert found.x.isnan().all()
    assert found.info == 4


def test_the_system_of_a_gradient_says_what_it_does_not_reach():
    a = with_spectrum(torch.logspace(0, -12, 60, dtype=torch.float64))
    b = (a @ normal(60, seed=1)).requires_grad_()
    found = km.linalg.cg(a, b, tolerance=1e-3)
    with pytest.warns(km.errors.KernmantleWarning, match="conjugate gradients stopped"):
        found.x.backward(normal(60, seed=2))
    easy = with_spectrum(torch.linspace(1, 9, 60))
    side = normal(60).requires_grad_()
    km.linalg.cg(easy, side).x.backward(1e-200 * normal(60, seed=2))
    wanted = torch.linalg.solve(easy, normal(60, seed=2))
    assert (side.grad * 1e200 - wanted).norm() <= 1e-7 * wanted.norm()


BAD_SPD = torch.diag(torch.tensor([2.0, 1.0, -1.0, 3.0])).double()
SINGULAR = torch.tensor([[1.0, 2.0], [2.0, 4.0]]).double()
FAILING = [
    (lambda **o: km.linalg.solve_cholesky(BAD_SPD, torch.ones(4).double(), **o).info, "order 3"),
    (lambda **o: km.linalg.cholesky_factor(BAD_SPD, **o).info, "order 3"),
    (lambda **o: km.linalg.inverse_spd(BAD_SPD, **o).info, "order 3"),
    (lambda **o: km.linalg.logdet_spd(BAD_SPD, **o).isnan(), "order 3"),
    (lambda **o: km.linalg.solve_lu(SINGULAR, torch.ones(2).double(), **o).info, "singular"),
    (lambda **o: km.linalg.lu_factor(SINGULAR, **o).info, "singular"),
    (lambda **o: km.linalg.eigh(SINGULAR * float("nan"), **o).info, "NaN"),
    (lambda **o: km.linalg.solve_kernel(-1 * km.Gaussian(1.0), normal(5, 2), normal(5), 0.1, **o).factor.info, "minor"),
]


@pytest.mark.parametrize("case", range(len(FAILING)))
def test_on_the_cpu_failures_are_raised_unless_asked_otherwise(case):
    solve, words = FAILING[case]
    with pytest.raises(km.errors.LinearAlgebraError, match=words):
        solve()
    with pytest.raises(km.errors.LinearAlgebraError, match=words):
        solve(check_errors=True)
    assert solve(check_errors=False) != 0


def test_transforms_leave_it_at_infos():
    stack = torch.stack([BAD_SPD, -BAD_SPD])
    found = torch.vmap(lambda a: km.linalg.solve_cholesky(a, torch.ones(4).double()).info)(stack)
    assert found.tolist() == [3, 1]


def test_compiled_solvers_are_those_of_eager_calls_at_every_size():
    """Values, gradients and errors; graphs end before them and go on after them."""
    k = km.Gaussian(1.0)
    functions = [
        lambda a, b: km.linalg.solve_cholesky(a @ a.mT + 9 * torch.eye(len(a)), b).x,
        lambda a, b: km.linalg.solve_lu(a @ a.mT + 9 * torch.eye(len(a)), 2 * b).x,
        lambda a, b: km.linalg.solve_kernel(k, 2 * a, b, ridge=1.0).x,
        lambda a, b: km.linalg.solve_kernel(k, 2 * a, b, ridge=1.0, method="cg").x,
        lambda a, b: km.linalg.eigh(a @ a.mT).w * b.sum(),
    ]
    for function in functions:
        torch._dynamo.reset()
        compiled = torch.compile(function, backend="aot_eager")
        for n in (7, 12, 9):
            a, b = normal(n, 5).requires_grad_(), normal(n, 2, seed=1).requires_grad_()
            found, wanted = compiled(a, b), function(a, b)
            assert torch.equal(found, wanted)
            weights = normal(*wanted.shape, seed=2)
            for one, other in zip(*(torch.autograd.grad(x, (a, b), weights) for x in (found, wanted)), strict=True):
                assert torch.equal(one, other)
    torch._dynamo.reset()
    with pytest.raises(km.errors.LinearAlgebraError, match="singular"):
        torch.compile(lambda a: km.linalg.solve_lu(a, torch.ones(2).double()).x, backend="eager")(SINGULAR)


@pytest.mark.parametrize("method", ["cholesky", "cg"])
def test_kernel_systems_under_transforms_raise_with_the_reason(method):
    x, y, k = normal(7, 3), normal(7), km.Gaussian(1.0)

    def solved(q, t, h):
        return km.linalg.solve_kernel(km.Gaussian(h) if h is not None else k, q, t, ridge=0.5, method=method).x.sum()

    h = torch.tensor(1.0, dtype=torch.float64)
    for call in (
        lambda: torch.func.grad(lambda q: solved(q, y, None))(x),
        lambda: torch.func.grad(lambda t: solved(x, t, None))(y),
        lambda: torch.func.grad(lambda h: solved(x, y, h))(h),
        lambda: torch.vmap(lambda q: solved(q, y, None))(x.expand(2, 7, 3)),
        lambda: torch.func.jvp(lambda q: solved(q, y, None), (x,), (x,)),
    ):
        with pytest.raises(km.errors.GradientError, match=r"torch\.func"):
            call()


@pytest.mark.parametrize("solve", [km.linalg.solve_cholesky, km.linalg.solve_lu])
@pytest.mark.parametrize("scale", [1e-300, 1e-150, 1e-40, 1.0, 1e40, 1e150, 1e300])
def test_refinement_at_any_scale(solve, scale):
    root, b = normal(2, 50, 50), normal(2, 50, 3, seed=1)
    a = root @ root.mT + 50 * torch.eye(50)
    wanted = torch.linalg.solve(a, b)
    for side in (1.0, 1e-200 if scale < 1 else 1e200):
        found = solve(a * scale, b * side, refine=3)
        assert found.info.tolist() == [0, 0]
        assert_close(found.x * scale / side if scale > 1 else found.x / side * scale, wanted, depth=50**2)
        assert (found.residual <= 1e-13).all()


@pytest.mark.parametrize("solve", [km.linalg.solve_cholesky, km.linalg.solve_lu])
def test_refinement_that_gains_no_digits_is_said(solve):
    a = with_spectrum(torch.logspace(0, -9, 60, dtype=torch.float64)) + 1e-7 * torch.eye(60)
    easy = with_spectrum(torch.linspace(1, 2, 60))
    b = normal(60, 2)
    found = solve(torch.stack([easy, a]), b, refine=4, check_errors=False)
    assert found.info[0] == 0
    for item, info in zip((easy, a), found.info.tolist(), strict=True):
        x = found.x[0] if item is easy else found.x[1]
        backward = (item @ x - b).norm() / (item.norm() * x.norm())
        assert info != 0 or backward <= 60 * torch.finfo(torch.float32).eps
    hard = with_spectrum(torch.logspace(0, -13, 60, dtype=torch.float64))
    with pytest.raises(km.errors.LinearAlgebraError):
        solve(hard, b, refine=2)


def estimated(dtype):
    """Matrices of the type, from condition 10 to what it represents, with and without gaps in their spectrum."""
    x = torch.rand(120, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) * 2
    for noise in (1e-1, 1e-3, 1e-4, *[1e-6] * (dtype == torch.float64)):
        yield km.Gaussian(0.5)(x, diagonal=noise).to(dtype)
    for decades in (1, 3, 5, *[8] * (dtype == torch.float64)):
        values = torch.logspace(0, -decades, 120, dtype=torch.float64)
        yield torch.diag(values).to(dtype)
        yield with_spectrum(values).to(dtype)
        yield with_spectrum(torch.linspace(10.0**-decades, 1, 120)).to(dtype)
        yield with_spectrum(torch.cat([torch.ones(60), torch.full((60,), 10.0**-decades)])).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_errors_of_log_determinants_cover_the_truth(dtype):
    """Of the recursions' truncation too: within 3 errors always, within 2 nearly so, and within 1 mostly."""
    off = []
    for a in estimated(dtype):
        exact = torch.linalg.slogdet(a.double()).logabsdet
        for seed, steps in ((0, 16), (1, 30), (2, 40)):
            found = km.linalg.logdet(a, steps=steps, generator=torch.Generator().manual_seed(seed))
            off.append(float((found.value - exact).abs() / found.error))
    off = np.array(off)
    assert off.max() <= 3
    assert (off <= 2).mean() >= 0.95
    assert (off <= 1).mean() >= 0.6
    few = km.linalg.logdet(torch.diag(torch.linspace(1, 3, 50)), steps=5)
    assert few.error == float("inf")
    assert km.linalg.logdet(torch.diag(torch.tensor([1.0, 2.0, 3.0])), steps=5).error < 1e-5


@pytest.mark.parametrize("exponent", [-66, -90, 60, 90])
@pytest.mark.parametrize("subset", [{"subset_by_index": (0, 3)}, {"subset_by_value": (0.05, 0.5)}], ids=str)
def test_parts_of_a_spectrum_are_the_same_at_any_scale(exponent, subset):
    """LAPACK's syevr loses half the digits of float32 at 1e-20."""
    a = with_spectrum(torch.logspace(0, -5, 24, dtype=torch.float64)).float()
    w, v = km.linalg.eigh(a, **subset)
    found = km.linalg.eigh(a * 2.0**exponent, **{
        name: ends if name == "subset_by_index" else tuple(end * 2.0**exponent for end in ends)
        for name, ends in subset.items()
    })  # fmt: skip
    assert_close(found.w.double() * 2.0**-exponent, w, dtype=torch.float32, depth=24**2, magnitude=1)
    assert_close(a.double() @ found.v.double(), found.v.double() * w, dtype=torch.float32, depth=24**2, magnitude=1)
    assert found.v.shape == v.shape


@pytest.mark.parametrize(("dtype", "exponents"), [(torch.float32, (-90, 90)), (torch.float64, (-600, 600))])
def test_log_determinants_at_any_scale(dtype, exponents):
    a = with_spectrum(torch.linspace(1, 10, 50)).to(dtype)
    plain = km.linalg.logdet(a)
    for exponent in exponents:
        scaled = (a * 2.0**exponent).requires_grad_()
        found = km.linalg.logdet(scaled)
        assert_close(
            found.value.detach() - 50 * exponent * np.log(2), plain.value, dtype=dtype, depth=50, magnitude=5000
        )
        assert torch.equal(found.error, plain.error)
        (gradient,) = torch.autograd.grad(found.value, scaled)
        assert abs(float((gradient * scaled).sum()) - 50) <= 1e-3


@pytest.mark.filterwarnings("ignore::kernmantle.errors.KernmantleWarning")
def test_refined_iterations_reach_what_float32_does_not():
    x, y = smooth_rows(600)
    k, ridge = km.Gaussian(0.7), 1e-3
    options = {"tolerance": 1e-8, "max_iterations": 200}
    less = km.linalg.nystrom(k.operator(x.float()), 100, ridge)
    narrow = km.linalg.cg(k.operator(x.float(), diagonal=ridge), y.float(), preconditioner=less, **options)
    assert not narrow.converged.any()
    more = km.linalg.nystrom(k.operator(x), 100, ridge)
    found = km.linalg.cg(k.operator(x, diagonal=ridge), y, preconditioner=more, refine=True, **options)
    true = (y - k(x, diagonal=ridge) @ found.x).norm() / y.norm()
    assert found.converged.all()
    assert float(true) <= 1.01e-8
    assert abs(float(found.residual) / float(true) - 1) < 1e-2
    assert "float32" in found.ran


@pytest.mark.filterwarnings("ignore::kernmantle.errors.KernmantleWarning")
@pytest.mark.parametrize("ridge", [1e-2, 1e-4, 1e-6, 1e-8])
@pytest.mark.parametrize("options", [{}, {"refine": 1}, {"method": "cholesky", "refine": 15}])
def test_kernel_systems_claim_what_their_solutions_have(ridge, options):
    x, y = smooth_rows(500)
    k = km.Gaussian(0.7)
    found = km.linalg.solve_kernel(
        k, x, y, ridge, tolerance=1e-8, max_iterations=60, check_errors=False, **({"method": "cg"} | options)
    )
    true = float((y - k(x, diagonal=ridge) @ found.x).norm() / y.norm())
    claimed = float(found.iterations.residual.max())
    assert abs(claimed - true) <= 0.05 * true + 1e-12
    if found.iterations.converged.all():
        assert true <= 1.05e-8
    if options.get("refine") == 15:
        assert found.factor.factor.dtype == torch.float32
        assert found.iterations.converged.all() == (ridge >= 1e-4)


def test_refine_is_refused_where_it_means_nothing():
    x, y = smooth_rows(50)
    k = km.Gaussian(0.7)
    with pytest.raises(km.errors.DtypeError, match="float64"):
        km.linalg.solve_kernel(k, x.float(), y.float(), 1.0, refine=3)
    with pytest.raises(km.errors.ParameterError, match="refine must be an integer"):
        km.linalg.solve_kernel(k, x, y, 1.0, refine=-1)
    with pytest.raises(km.errors.DtypeError, match="float64"):
        km.linalg.cg(k.operator(x.float(), diagonal=1.0), y.float(), refine=True)
    with pytest.raises(km.errors.ParameterError, match="True or False"):
        km.linalg.cg(k.operator(x, diagonal=1.0), y, refine=2)

    class Bare:
        shape, dtype = (50, 50), torch.float64

        def __matmul__(self, v):
            return v

    with pytest.raises(km.errors.ParameterError, match=r"float\(\)"):
        km.linalg.cg(Bare(), y, refine=True)


def smooth_rows(n):
    source = torch.Generator().manual_seed(n)
    x = torch.rand(n, 4, generator=source, dtype=torch.float64)
    return x, (3 * x.sum(1)).sin() + 0.1 * torch.randn(n, generator=source, dtype=torch.float64)
