"""Cholesky, LU and spectra against scipy in float64: sizes, conditions, strides, gradients, what fails."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg
import torch

import kernmantle as km
from kernmantle.testing import assert_close, tolerance

from ..arrays import normal, with_spectrum

SIZES = [0, 1, 2, 7, 64, 65, 200]
DTYPES = [torch.float32, torch.float64]


def graded(n, condition):
    return torch.logspace(0, -np.log10(condition), n, dtype=torch.float64) if n else torch.zeros(0).double()


def backward_error(a, x, b):
    """Residual over what rounding of the data explains: of order one times the tolerance for a stable solver."""
    a, x, b = a.double(), x.double(), b.double()
    top = a.norm() * x.norm(dim=-2) + b.norm(dim=-2)
    return float(((a @ x - b).norm(dim=-2) / top.clamp_min(1e-300)).max()) if b.numel() else 0.0


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("condition", [1e1, 1e4, 1e12])
def test_solutions_are_backward_stable(n, dtype, condition):
    a, b = with_spectrum(graded(n, condition)).to(dtype), normal(n, 3, dtype=dtype, seed=1)
    if condition == 1e12 and dtype == torch.float32:
        a = a + 1e-5 * torch.eye(n)
    for lower in (True, False):
        found = km.linalg.solve_cholesky(a, b, lower=lower)
        assert not found.info.any()
        assert backward_error((a + a.mT) / 2, found.x, b) <= tolerance(dtype, max(n, 1))
    assert backward_error(a, km.linalg.solve_lu(a, b).x, b) <= tolerance(dtype, max(n, 1))


def check_pairs(a, w, v):
    """Residual and orthogonality within rounding of ``n eps ‖a‖``, values within it of scipy's in float64."""
    n, unit = a.shape[-1], torch.finfo(a.dtype).eps * max(a.shape[-1], 1)
    assert w.shape == (n,)
    assert v.shape == (n, n)
    if n:
        expected = scipy.linalg.eigh(a.double().numpy(), eigvals_only=True)
        assert float((a @ v - v * w).norm()) <= 10 * unit
        assert float((v.mT @ v - torch.eye(n)).norm()) <= 10 * unit * n**0.5
        assert np.abs(w.double().numpy() - expected).max() <= 10 * unit


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("condition", [1e1, 1e12])
def test_spectra_are_backward_stable(n, dtype, condition):
    a = with_spectrum(graded(n, condition)).to(dtype)
    for lower in (True, False):
        check_pairs(a, *km.linalg.eigh(a, lower=lower))


@pytest.mark.parametrize(("dtype", "condition"), [(torch.float32, 1e1), (torch.float32, 1e12), (torch.float64, 1e12)])
def test_large_matrices_are_as_stable(dtype, condition):
    """Eigenvalues are known, since reflections keep them."""
    n, values = 2000, graded(2000, condition)
    exact, b = torch.diag(values), normal(n, 3, dtype=dtype, seed=1)
    for u in torch.nn.functional.normalize(normal(3, n, seed=2)):
        image = exact @ u
        exact = exact - 2 * (torch.outer(u, image) + torch.outer(image, u)) + 4 * (u @ image) * torch.outer(u, u)
    a = exact.to(dtype)
    definite = torch.finfo(dtype).eps * condition < 1
    for solve in [km.linalg.solve_lu, *[km.linalg.solve_cholesky] * definite]:
        found = solve(a, b)
        assert not found.info
        assert backward_error(a, found.x, b) <= tolerance(dtype, n)
    w, v = km.linalg.eigh(a)
    unit = torch.finfo(dtype).eps * n
    assert float((a @ v - v * w).norm()) <= 10 * unit
    assert float((v.mT @ v - torch.eye(n)).norm()) <= 10 * unit * n**0.5
    assert float((w - values.flip(0)).abs().max()) <= 10 * unit


def layouts(a):
    """The same batch of matrices behind all kinds of strides."""
    wide = torch.full((2 * a.shape[0], 2 * a.shape[1], 3 * a.shape[2]), float("nan"), dtype=a.dtype)
    wide[::2, 1::2, 2::3] = a
    return [a, a.mT.contiguous().mT, a.permute(2, 0, 1).contiguous().permute(1, 2, 0), wide[::2, 1::2, 2::3]]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 7, 65])
@pytest.mark.parametrize("condition", [1e1, 1e12])
def test_batches_of_any_strides_are_backward_stable(n, dtype, condition):
    shift = 1e-5 if dtype == torch.float32 else 0
    a = torch.stack([with_spectrum(graded(n, condition), seed) + shift * torch.eye(n) for seed in range(3)]).to(dtype)
    b = normal(3, n, 2, dtype=dtype, seed=1)
    for view, side in zip(layouts(a), layouts(b), strict=True):
        w, v = km.linalg.eigh(view)
        solutions = [km.linalg.solve_cholesky(view, side, lower=lower).x for lower in (True, False)]
        solutions += [km.linalg.solve_lu(view, side).x, km.linalg.solve_lu(view.mT, side).x]
        for item in range(3):
            check_pairs(a[item], w[item], v[item])
            assert all(backward_error(a[item], x[item], b[item]) <= tolerance(dtype, n) for x in solutions)


SHAPES = [
    ((5, 5), (5,)), ((5, 5), (5, 2)), ((3, 5, 5), (3, 5)), ((3, 5, 5), (5, 2)), ((2, 1, 5, 5), (3, 5, 1)),
    ((0, 5, 5), (5, 1)), ((5, 5), (5, 0)), ((0, 0), (0, 2)),
]  # fmt: skip


@pytest.mark.parametrize("shapes", SHAPES)
@pytest.mark.parametrize("solve", [km.linalg.solve_cholesky, km.linalg.solve_lu])
def test_shapes_are_those_of_torch(solve, shapes):
    root = normal(*shapes[0])
    a, b = root @ root.mT + torch.eye(shapes[0][-1]), normal(*shapes[1], seed=1)
    expected = torch.linalg.solve(a, b)
    found = solve(a, b)
    assert found.x.shape == expected.shape
    assert found.info.shape == a.shape[:-2]
    assert_close(found.x, expected, depth=1000)


@pytest.mark.parametrize("dtype", DTYPES)
def test_numpy_comes_back(dtype):
    root = normal(4, 4)
    a, b = (root @ root.mT + torch.eye(4)).to(dtype).numpy(), normal(4, 2, dtype=dtype).numpy()
    expected = scipy.linalg.solve(a.astype(np.float64), b.astype(np.float64))
    for found in (km.linalg.solve_cholesky(a, b), km.linalg.solve_lu(a, b)):
        assert isinstance(found.x, np.ndarray)
        assert isinstance(found.info, np.ndarray)
        assert found.x.dtype == a.dtype
        assert_close(found.x, expected, depth=100)
    factor = km.linalg.lu_factor(a)
    assert_close(km.linalg.lu_solve(factor, b).x, expected, depth=100)
    w, v = km.linalg.eigh(a, subset_by_index=(1, 2))
    assert isinstance(v, np.ndarray)
    assert_close(w, scipy.linalg.eigh(a.astype(np.float64))[0][1:3], dtype=dtype, depth=100)


def test_overwriting_uses_the_memory_that_was_given():
    root = normal(6, 6)
    exact, b = root @ root.mT + torch.eye(6), normal(6, 2, seed=1)
    expected = torch.linalg.solve(exact, b)
    for solve in (km.linalg.solve_cholesky, km.linalg.solve_lu):
        a, side = exact.clone(), b.mT.contiguous().mT
        found = solve(a, side, overwrite_a=True, overwrite_b=True)
        assert not torch.equal(a, exact)
        assert found.x.data_ptr() == side.data_ptr()
        assert_close(side, expected, depth=100)
    a = exact.clone()
    assert km.linalg.cholesky_factor(a, overwrite_a=True).factor.data_ptr() == a.data_ptr()
    a = exact.clone()
    assert km.linalg.lu_factor(a, overwrite_a=True).factors.data_ptr() == a.data_ptr()
    kept = exact.clone()
    km.linalg.eigh(kept)
    km.linalg.solve_cholesky(kept, b, jitter=1e-3)
    assert torch.equal(kept, exact)


def test_a_factor_serves_many_right_hand_sides():
    root = normal(3, 5, 5)
    a = root @ root.mT + torch.eye(5)
    factor = km.linalg.cholesky_factor(a, lower=False)
    assert_close(factor.factor.mT @ factor.factor, a, depth=25)
    assert not factor.factor.tril(-1).any()
    lu = km.linalg.lu_factor(root)
    for b in (normal(5, 2), normal(3, 5), normal(4, 1, 5, 2)):
        assert_close(km.linalg.cholesky_solve(factor, b).x, torch.linalg.solve(a, b), depth=1000)
        assert_close(km.linalg.lu_solve(lu, b).x, torch.linalg.solve(root, b), depth=10000)
        assert_close(km.linalg.lu_solve(lu, b, transpose=True).x, torch.linalg.solve(root.mT, b), depth=10000)


@pytest.mark.parametrize("lower", [True, False])
def test_jitter_is_the_least_that_suffices(lower):
    eye = torch.eye(4, dtype=torch.float64)
    a = torch.stack([eye, 0 * eye + 1, torch.ones(4, 4).double() - 0.01 * eye, -eye])
    b = normal(4, 4, 1)
    found = km.linalg.solve_cholesky(a, b, jitter=(1e-3, 0.1), lower=lower, check_errors=False)
    assert found.info.tolist() == [0, 0, 0, 1]
    assert_close(found.jitter, torch.tensor([0, 1e-3, 0.099, 0], dtype=torch.float64))
    assert found.x[3].isnan().all()
    raised = a + found.jitter[:, None, None] * eye
    assert_close((raised @ found.x)[:3], b[:3], magnitude=found.x[:3].abs().max(), depth=16)


def test_infos_are_those_of_lapack():
    a = torch.diag(torch.tensor([2.0, 1.0, -1.0, 3.0])).double()
    found = km.linalg.solve_cholesky(a, torch.ones(4).double(), check_errors=False)
    assert found.info == scipy.linalg.lapack.dpotrf(a.numpy())[1] == 3
    singular = torch.tensor([[1.0, 2.0, 0.0], [2.0, 4.0, 0.0], [0.0, 0.0, 1.0]]).double()
    found = km.linalg.solve_lu(singular, torch.ones(3).double(), check_errors=False)
    assert found.info == scipy.linalg.lapack.dgetrf(singular.numpy())[2]
    assert found.x.isnan().all()
    with pytest.raises(km.errors.LinearAlgebraError, match=r"item 1 .*order 3"):
        km.linalg.solve_cholesky(torch.stack([a.abs(), a]), torch.ones(4, 1).double(), check_errors=True)
    with pytest.raises(km.errors.LinearAlgebraError, match=r"2 of 2 items"):
        km.linalg.cholesky_factor(torch.stack([a, a]), check_errors=True)
    with pytest.raises(km.errors.LinearAlgebraError, match="singular"):
        km.linalg.lu_factor(singular, check_errors=True)


def test_nan_spoils_its_item_alone():
    root = normal(2, 4, 4)
    a = root @ root.mT + torch.eye(4)
    a[1, 2, 1] = float("nan")
    found = km.linalg.solve_cholesky(a, normal(4, 1), check_errors=False)
    assert found.x.isnan().flatten(1).any(1).tolist() == [False, True]
    assert km.linalg.solve_lu(a, normal(4, 1)).x.isnan().flatten(1).any(1).tolist() == [False, True]
    found = km.linalg.eigh(a, check_errors=False)
    assert found.w.isnan().all(1).tolist() == [False, True]
    assert found.v.isnan().flatten(1).all(1).tolist() == [False, True]
    assert found.info.tolist() == [0, 5]
    with pytest.raises(km.errors.LinearAlgebraError, match="item 1"):
        km.linalg.eigh(a, check_errors=True)


SUBSETS = [
    {"subset_by_index": (0, 0)}, {"subset_by_index": (3, 6)}, {"subset_by_index": [0, 9]},
    {"subset_by_value": (-1.0, 2.0)}, {"subset_by_value": (2.0, np.inf)}, {"subset_by_value": (100.0, 200.0)},
]  # fmt: skip


@pytest.mark.parametrize("subset", SUBSETS)
@pytest.mark.parametrize("lower", [True, False])
def test_parts_of_a_spectrum_are_those_of_scipy(subset, lower):
    a = normal(10, 10)
    expected = scipy.linalg.eigh(a.numpy(), lower=lower, **subset)
    w, v = km.linalg.eigh(a, lower=lower, **subset)
    symmetric = a.tril() + a.tril(-1).mT if lower else a.triu() + a.triu(1).mT
    assert_close(w, expected[0], depth=100)
    assert v.shape == expected[1].shape
    assert_close(symmetric @ v, v * w, depth=100, magnitude=5)
    assert_close(km.linalg.eigh(a, lower=lower, eigvals_only=True, **subset), expected[0], depth=100)


def test_repeated_items_are_worked_on_once_and_returned_for_all():
    root = normal(4, 4)
    a = (root @ root.mT + torch.eye(4)).expand(3, 4, 4)
    w, v = found = km.linalg.eigh(a)
    assert w.shape == (3, 4)
    assert found.info.shape == (3,)
    assert_close(a @ v, v * w[:, None], depth=100)
    assert km.linalg.cholesky_factor(a).factor.shape == (3, 4, 4)


def test_determinants_and_inverses():
    root = normal(3, 5, 5)
    a = root @ root.mT + torch.eye(5)
    assert_close(km.linalg.logdet_spd(a), torch.linalg.slogdet(a).logabsdet, depth=100)
    assert_close(km.linalg.inverse_spd(a).x, torch.linalg.inv(a), depth=1000)
    assert km.linalg.logdet_spd(-a, check_errors=False).isnan().all()
    assert isinstance(km.linalg.inverse_spd(a.numpy()).x, np.ndarray)


def test_refinement_reaches_float64():
    a, b = with_spectrum(graded(100, 1e4)), normal(100, 2, seed=3)
    expected = torch.linalg.solve(a, b)
    plain = km.linalg.solve_cholesky(a.float(), b.float()).x
    for solve in (km.linalg.solve_cholesky, km.linalg.solve_lu):
        found = solve(a, b, refine=5)
        assert (found.x - expected).norm() <= 1e-9 * expected.norm() < (plain - expected).norm()
        assert_close(found.residual, (a @ found.x - b).norm(dim=0) / b.norm(dim=0), magnitude=1e-10)
    tiny = km.linalg.solve_cholesky(a, 1e-200 * b, refine=5).x
    assert_close(tiny * 1e200, expected, depth=10**8)


@pytest.mark.parametrize("solve", [km.linalg.solve_cholesky, km.linalg.solve_lu])
def test_refinement_of_nothing(solve):
    for shape in ((0, 0), (2, 0, 0)):
        found = solve(torch.zeros(shape).double(), torch.zeros(0, 3).double(), refine=2)
        assert found.x.shape == (*shape[:-2], 0, 3)
    found = solve(torch.eye(3).double(), torch.zeros(3, 2).double(), refine=2)
    assert (found.x == 0).all()
    assert (found.residual == 0).all()


@pytest.mark.parametrize("order", [torch.autograd.gradcheck, torch.autograd.gradgradcheck])
@pytest.mark.parametrize("batch", [(), (2,)])
def test_gradients_of_solutions(order, batch):
    root, b = normal(*batch, 3, 3).requires_grad_(), normal(3, 2, seed=1).requires_grad_()
    eye = torch.eye(3, dtype=torch.float64)

    def spd(root):
        return root @ root.mT + eye

    assert order(lambda r, b: km.linalg.solve_cholesky(spd(r), b).x, (root, b))
    assert order(lambda r, b: km.linalg.solve_cholesky(spd(r), b, refine=3).x, (root, b))
    assert order(lambda r, b: km.linalg.solve_lu(r, b).x, (root, b))
    assert order(lambda r, b: km.linalg.solve_lu(r, b[:, 0]).x if not batch else r.sum(), (root, b))
    assert order(lambda r: km.linalg.inverse_spd(spd(r)).x, (root,))
    assert order(lambda r: km.linalg.logdet_spd(spd(r)), (root,))
    factor = km.linalg.cholesky_factor(spd(root.detach()))
    assert order(lambda b: km.linalg.cholesky_solve(factor, b).x, (b,))


@pytest.mark.parametrize("order", [torch.autograd.gradcheck, torch.autograd.gradgradcheck])
def test_gradients_of_spectra(order):
    root = normal(4, 4).requires_grad_()

    def parts(a, **options):
        w, v = km.linalg.eigh((a + a.mT) / 2, **options)
        return w, v @ torch.diag_embed(w.cos()) @ v.mT

    assert order(parts, (root,))
    assert order(lambda a: parts(a, subset_by_index=(1, 2)), (root,))
    assert order(lambda a: km.linalg.eigh(a + a.mT, eigvals_only=True, subset_by_value=(-9.0, 9.0)), (root,))


SIDES = normal(3, 2, seed=4)
TRANSFORMED = {
    "cholesky": (lambda a: km.linalg.solve_cholesky(a, SIDES).x, lambda a: torch.linalg.solve(a, SIDES)),
    "upper": (
        lambda a: km.linalg.solve_cholesky(a, SIDES[:, 0], lower=False).x, lambda a: torch.linalg.solve(a, SIDES[:, 0])
    ),
    "lu": (lambda a: km.linalg.solve_lu(a, SIDES).x, lambda a: torch.linalg.solve(a, SIDES)),
    "sides": (
        lambda a: km.linalg.solve_lu(GOOD.double(), a).x, lambda a: torch.linalg.solve(GOOD.double(), a)
    ),
    "both": (lambda a: km.linalg.solve_cholesky(a, a @ SIDES + 1).x, lambda a: torch.linalg.solve(a, a @ SIDES + 1)),
    "inverse": (lambda a: km.linalg.inverse_spd(a).x, torch.linalg.inv),
    "determinant": (km.linalg.logdet_spd, torch.logdet),
    "values": (lambda a: km.linalg.eigh(a, eigvals_only=True), torch.linalg.eigvalsh),
    "part": (
        lambda a: km.linalg.eigh(a, subset_by_index=(1, 2)).v.square(), lambda a: torch.linalg.eigh(a)[1][..., 1:] ** 2
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TRANSFORMED)
def test_direct_methods_under_transforms(name):
    """vmap, both modes, and these in one another, as torch has them."""
    roots = normal(4, 3, 3, seed=6)

    def both(way):
        def symmetric(function):
            return lambda root: function(root @ root.mT + torch.diag(torch.arange(1.0, 4).double()))

        return [way(symmetric(function)) for function in TRANSFORMED[name]]

    for way in (
        lambda f: torch.func.vmap(f)(roots),
        lambda f: torch.func.vmap(torch.func.vmap(f, 1))(roots.unflatten(0, (2, 2)).movedim(1, 2)),
        lambda f: torch.func.jacrev(f)(roots[0]),
        lambda f: torch.func.jacfwd(f)(roots[0]),
        lambda f: torch.func.hessian(lambda a: f(a).sin().sum())(roots[0]),
        lambda f: torch.func.vmap(torch.func.grad(lambda a: f(a).sin().sum()))(roots),
        lambda f: torch.func.jvp(lambda a: f(a.unflatten(0, (2, 2))), (roots,), (roots + 1,))[1],
    ):
        found, expected = both(way)
        assert_close(found, expected, depth=10**5, magnitude=1.0)
    # Of torch's second derivatives those whose inner one is in forward mode lack a term (2.13).
    expected = both(lambda f: torch.func.jacrev(torch.func.jacrev(f))(roots[0]))[1]
    for outer, inner in ((torch.func.jacfwd, torch.func.jacrev), (torch.func.jacrev, torch.func.jacfwd)):
        found = both(lambda f, outer=outer, inner=inner: outer(inner(f))(roots[0]))[0]
        assert_close(found, expected, depth=10**5, magnitude=1.0)
    with pytest.raises(km.errors.GradientError, match="forward mode within forward mode"):
        both(lambda f: torch.func.jacfwd(torch.func.jacfwd(f))(roots[0]))


def test_batches_of_other_lengths_under_vmap():
    a, b = normal(2, 5, 3, 3) + 4 * torch.eye(3).double(), normal(2, 7, 1, 3, 2, seed=1)
    solve = torch.func.vmap(lambda a, b: km.linalg.solve_lu(a, b).x)
    assert_close(solve(a, b), torch.linalg.solve(a[:, None], b), depth=100)
    shared = torch.func.vmap(lambda b: km.linalg.solve_lu(a[0], b).x)
    assert_close(shared(b), torch.linalg.solve(a[0], b), depth=100)
    last = torch.func.vmap(lambda a: km.linalg.solve_lu(a[0], b[0]).x, in_dims=1)
    assert_close(last(a), torch.stack([torch.linalg.solve(each[0], b[0]) for each in a.unbind(1)]), depth=100)


def test_what_fails_under_vmap_is_told_for_each():
    def solve(a):
        found = km.linalg.solve_cholesky(a, torch.ones(3).double())
        return found.x, found.info

    a = torch.stack([torch.eye(3), -torch.eye(3)]).double()
    x, info = torch.func.vmap(solve)(a)
    assert info.tolist() == [0, 1]
    assert x.isnan().tolist() == [[False] * 3, [True] * 3]
    assert torch.func.vmap(km.linalg.logdet_spd)(a).isnan().tolist() == [False, True]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda a: km.linalg.cholesky_factor(a).factor, r"use backward\(\)"),
        (lambda a: km.linalg.lu_factor(a).factors, r"use backward\(\)"),
        (lambda a: km.linalg.cg(a, torch.ones(3).double()).x, r"use backward\(\)"),
        (lambda a: km.linalg.cg(torch.eye(3).double(), a).x, r"use backward\(\)"),
        (lambda a: km.linalg.solve_lu(a, a, overwrite_a=True).x, "overwrite_a=True"),
        (lambda a: km.linalg.solve_cholesky(a, a, jitter=1e-6).x, "jitter="),
        (lambda a: km.linalg.eigh(a, check_errors=True).w, "check_errors=True"),
        (lambda a: km.linalg.eigh(a, subset_by_index=(0, 1), method="iterative").w, r"use backward\(\)"),
    ],
    ids=["factor", "lu", "cg", "cg sides", "overwritten", "jitter", "errors", "iterative"],
)
def test_transforms_that_solvers_do_not_have_are_told(call, words):
    a = 2 * torch.eye(3).double()
    for attempt in (
        lambda: torch.func.jvp(call, (a,), (a,)),
        lambda: torch.func.vmap(call)(a.expand(2, 3, 3)),
        lambda: torch.func.grad(lambda a: call(a).sum())(a),
    ):
        with pytest.raises(km.errors.GradientError, match=words):
            attempt()
    with torch.autograd.forward_ad.dual_level(), pytest.raises(km.errors.GradientError, match=words):
        call(torch.autograd.forward_ad.make_dual(a, a))


@pytest.mark.parametrize("factor", [km.linalg.cholesky_factor, km.linalg.lu_factor])
def test_factors_of_what_needs_a_gradient_are_refused(factor):
    a = torch.eye(3, requires_grad=True)
    with pytest.raises(km.errors.GradientError, match=r"solve_cholesky.*a\.detach\(\)"):
        factor(a)
    assert factor(a.detach()).info == 0
    with torch.no_grad():
        assert factor(a).info == 0


def test_gradients_between_equal_eigenvalues():
    """A projector onto a multiple eigenvalue has a gradient, though its vectors have none."""
    basis = torch.linalg.qr(normal(5, 5)).Q
    a = ((basis * torch.tensor([1.0, 1.0, 1.0, 2.0, 3.0]).double()) @ basis.mT).requires_grad_()

    def projector(a):
        v = km.linalg.eigh((a + a.mT) / 2).v[:, :3]
        return v @ v.mT

    assert torch.autograd.gradcheck(projector, (a,))


GOOD = torch.eye(3)
BAD = [
    (lambda: km.linalg.solve_cholesky(torch.ones(2, 3), torch.ones(2)), km.errors.ShapeError, "square"),
    (lambda: km.linalg.solve_lu(GOOD, torch.ones(4)), km.errors.ShapeError, "3 rows"),
    (lambda: km.linalg.solve_lu(GOOD.expand(2, 3, 3), torch.ones(4, 3, 1)), km.errors.ShapeError, "broadcast"),
    (lambda: km.linalg.solve_lu(GOOD.half(), torch.ones(3).half()), km.errors.DtypeError, "float32 and float64"),
    (lambda: km.linalg.solve_lu(GOOD, torch.ones(3).double()), km.errors.DtypeError, "b is float64"),
    (lambda: km.linalg.eigh(GOOD.to(torch.complex64)), km.errors.DtypeError, "complex64"),
    (lambda: km.linalg.solve_lu(GOOD, 3.0), km.errors.DtypeError, "b must be"),
    (lambda: km.linalg.solve_cholesky(GOOD, torch.ones(3), jitter=-1.0), km.errors.ParameterError, "jitter"),
    (lambda: km.linalg.solve_cholesky(GOOD, torch.ones(3), refine=2), km.errors.DtypeError, "float64"),
    (lambda: km.linalg.solve_lu(GOOD.double(), torch.ones(3).double(), refine=-1), km.errors.ParameterError, "refine"),
    (lambda: km.linalg.solve_lu(GOOD.double(), torch.ones(3).double(), refine=1, overwrite_a=True),
     km.errors.ParameterError, "overwrite_a"),
    (lambda: km.linalg.solve_lu(GOOD.expand(2, 3, 3), torch.ones(3, 1), overwrite_a=True), km.errors.OutputError,
     "expanded"),
    (lambda: km.linalg.solve_lu(GOOD.expand(2, 3, 3), torch.ones(3, 1), overwrite_b=True), km.errors.ParameterError,
     "overwrite_b"),
    (lambda: km.linalg.solve_lu(GOOD.clone().requires_grad_(), torch.ones(3), overwrite_a=True),
     km.errors.GradientError, "overwrite_a"),
    (lambda: km.linalg.solve_lu(GOOD, torch.ones(3, requires_grad=True), overwrite_b=True), km.errors.GradientError,
     "overwrite_b"),
    (lambda: km.linalg.solve_cholesky(GOOD + torch.ones(3, 3).triu(1), torch.ones(3), check=True),
     km.errors.ParameterError, "not symmetric"),
    (lambda: km.linalg.solve_lu(GOOD * float("nan"), torch.ones(3), check=True), km.errors.ParameterError, "NaN"),
    (lambda: km.linalg.eigh(GOOD / 0, check=True), km.errors.ParameterError, "infinite"),
    (lambda: km.linalg.eigh(GOOD, subset_by_index=(1, 3)), km.errors.ParameterError, "0 and 2"),
    (lambda: km.linalg.eigh(GOOD, subset_by_index=(2, 1)), km.errors.ParameterError, "first <= last"),
    (lambda: km.linalg.eigh(GOOD, subset_by_index=5), km.errors.ParameterError, "pair"),
    (lambda: km.linalg.eigh(GOOD, subset_by_value=(2.0, 1.0)), km.errors.ParameterError, "low < high"),
    (lambda: km.linalg.eigh(GOOD, subset_by_value=(0, 1), subset_by_index=(0, 1)), km.errors.ParameterError, "either"),
    (lambda: km.linalg.eigh(GOOD.expand(2, 3, 3), subset_by_value=(0, 1)), km.errors.ShapeError, "loop"),
    (lambda: km.linalg.eigh(GOOD, method="fast"), km.errors.ParameterError, "method"),
    (lambda: km.linalg.workspace("qr", 3), km.errors.ParameterError, "cholesky"),
    (lambda: km.linalg.workspace("lu", -3), km.errors.ParameterError, "n must be"),
    (lambda: km.linalg.workspace("lu", 3, dtype=torch.float16), km.errors.DtypeError, "float16"),
]  # fmt: skip


@pytest.mark.parametrize("case", range(len(BAD)))
def test_bad_input(case):
    call, kind, words = BAD[case]
    with pytest.raises(kind, match=words):
        call()


TOO_LARGE = {
    "solve_cholesky": km.linalg.solve_cholesky,
    "solve_lu": km.linalg.solve_lu,
    "jitter": lambda a, b: km.linalg.solve_cholesky(a, b, jitter=1e-6),
    "refine": lambda a, b: km.linalg.solve_lu(a[0, 0].double().expand(a.shape), b.double(), refine=1),
    "columns": lambda a, b: km.linalg.solve_cholesky(torch.eye(3).to(a), a[:3].expand(2**24, 3, a.shape[1])),
    "cholesky_factor": lambda a, _: km.linalg.cholesky_factor(a),
    "lu_factor": lambda a, _: km.linalg.lu_factor(a),
    "inverse_spd": lambda a, _: km.linalg.inverse_spd(a),
    "logdet_spd": lambda a, _: km.linalg.logdet_spd(a),
    "eigh": lambda a, _: km.linalg.eigh(a),
    "a part": lambda a, _: km.linalg.eigh(a, subset_by_index=(0, 1)),
    "iterative": lambda a, _: km.linalg.eigh(a, subset_by_index=(a.shape[0] - 2, a.shape[0] - 1), method="iterative"),
    "solve_kernel": lambda a, b: km.linalg.solve_kernel(km.Gaussian(1.0), a[:, :2], b, 1.0, method="cholesky"),
}


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
@pytest.mark.parametrize("name", TOO_LARGE)
def test_memory_that_runs_out_is_told(name, device):
    """More than any address space has, so that nothing is promised that is not there."""
    a, b = torch.ones(1, 1, device=device).expand(2**24, 2**24), torch.ones(2**24, device=device)
    words = r"(cholesky|lu|eigh) of .*take \d+ bytes, .*km\.linalg\.workspace\('\1', \d+, dtype=torch\.float(32|64)\)"
    with pytest.raises(km.errors.OutOfMemoryError, match=words) as found:
        TOO_LARGE[name](a, b)
    if name != "columns":
        assert str(2**48 * (8 if name == "refine" else 4)) in str(found.value).split("The matrices")[1]
    assert float(km.linalg.solve_lu(torch.eye(3, device=device), torch.ones(3, device=device)).x.sum()) == 3


def test_records_show_shapes_and_what_ran():
    found = km.linalg.solve_lu(GOOD, torch.ones(3))
    assert repr(found) == "Solution(x=(3,) float32, info=() int32, ran='torch.linalg.lu_factor_ex')"
    assert "ran='torch.linalg.eigh'" in repr(km.linalg.eigh(GOOD))


def test_workspaces_grow_with_the_problem():
    for routine in ("cholesky", "lu", "eigh"):
        small, large = (km.linalg.workspace(routine, n, dtype=torch.float64) for n in (1000, 20_000))
        assert 0 < small.device < large.device
        assert large.matrix == 8 * 20_000**2
        assert large.total == large.matrix + large.device
        if not torch.cuda.is_available():
            assert not large.exact
    few, many = (km.linalg.workspace("eigh", 20_000, devices=count) for count in (2, 16))
    assert many.total < few.total
    part = km.linalg.workspace("eigh_iterative", 20_000, subset_by_index=(19_900, 19_999))
    assert part.device < km.linalg.workspace("eigh", 20_000).device / 20
