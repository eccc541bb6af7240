"""How solvers use the kernel for small systems: what it does is done here by LAPACK, on the same memory."""

from __future__ import annotations

import ctypes
from functools import partial

import numpy as np
import pytest
import torch
from scipy.linalg import lapack

import kernmantle as km
from kernmantle.linalg import small
from kernmantle.runtime.dispatch import PLANS
from kernmantle.testing import assert_close
from kernmantle.torch_ops import cuda_system

from ..arrays import normal


def spd(*shape):
    root = normal(*shape)
    return root @ root.mT + torch.eye(shape[-1], dtype=torch.float64)


class Host:
    """``cuda_system.run`` on the CPU; ``calls`` are (factors, solves, transposed), ``bound`` bound launches."""

    def __init__(self):
        self.calls, self.bound = [], 0

    def bind(self, arrays, pivoted):
        """Launches that find the tensors of a call by their addresses, as a kernel would."""
        (count, n), r = arrays.a.shape[:2], arrays.b.shape[2]
        strides = [tensor.stride() for tensor in (arrays.a, arrays.b, arrays.x)]

        def at(address, shape, strides, kind=ctypes.c_double, dtype=np.float64):
            size = 1 + sum((length - 1) * step for length, step in zip(shape, strides, strict=True))
            memory = np.ctypeslib.as_array((kind * size).from_address(address))
            return torch.from_numpy(memory.view(dtype)).as_strided(shape, strides)

        def launch(addresses):
            a, info, b, x = addresses
            self.bound += 1
            own = cuda_system.Arrays(
                at(a, (count, n, n), strides[0]), info=at(info, (count,), (1,), ctypes.c_int32, np.int32),
                b=at(b, (count, n, r), strides[1]), x=at(x, (count, n, r), strides[2]),
            )  # fmt: skip
            self.run(own, pivoted)

        return launch

    def run(self, arrays, pivoted, transposed=False):
        self.calls.append((arrays.info is not None, arrays.b is not None, transposed))
        count, n = arrays.a.shape[:2]
        assert arrays.a.dim() == 3
        for tensor in (arrays.pivots, arrays.info):
            assert tensor is None or tensor.is_contiguous()
        for item in range(count):
            matrix = arrays.a[item].double().numpy().copy()
            failed, order = 0, None
            if arrays.info is not None:
                if pivoted:
                    matrix, order, failed = lapack.dgetrf(matrix)
                else:
                    matrix, failed = lapack.dpotrf(np.tril(matrix), lower=1, clean=1)
                arrays.info.view(-1)[item] = int(failed)
                if arrays.factor is not None:
                    arrays.factor[item] = torch.from_numpy(matrix)
                if arrays.pivots is not None:
                    arrays.pivots.view(-1, n)[item] = torch.from_numpy(order + 1)
            elif pivoted:
                order = arrays.pivots.reshape(-1, n)[item].numpy() - 1
            if arrays.b is not None:
                assert arrays.b.shape == arrays.x.shape
                side = arrays.b[item].double().numpy()
                if pivoted:
                    x = lapack.dgetrs(matrix, order, side, trans=int(transposed))[0]
                else:
                    x = lapack.dpotrs(matrix, side, lower=1)[0]
                arrays.x[item] = torch.from_numpy(x if not failed else np.full_like(x, np.nan))


@pytest.fixture(autouse=True)
def host(monkeypatch):
    found = Host()
    monkeypatch.setattr(small, "takes", lambda a: 0 < a.shape[-1] <= 32 and a.numel() > 0)
    monkeypatch.setattr(cuda_system, "run", found.run)
    monkeypatch.setattr(cuda_system, "bind", found.bind)
    PLANS.clear()
    yield found
    PLANS.clear()


SHAPES = [((5, 5), (5,)), ((3, 5, 5), (3, 5)), ((3, 5, 5), (3, 5, 2)), ((2, 3, 5, 5), (2, 3, 5, 1))]


@pytest.mark.parametrize("shapes", SHAPES)
@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("overwrite", [True, False])
def test_factors_and_solutions_come_from_one_call(host, shapes, lower, overwrite):
    a, b = spd(*shapes[0]), normal(*shapes[1], seed=1)
    expected = torch.linalg.solve(a, b)
    for solve in (lambda b: km.linalg.solve_cholesky(a, b, lower=lower, overwrite_b=overwrite),
                  lambda b: km.linalg.solve_lu(a, b, overwrite_b=overwrite)):  # fmt: skip
        side = b.clone()
        found = solve(side)
        assert_close(found.x, expected, depth=1000)
        assert found.ran == "one kernel for small systems"
        assert found.info.shape == a.shape[:-2]
        assert (found.x.data_ptr() == side.data_ptr()) == overwrite
        assert torch.equal(side, b) != overwrite
    assert host.calls == [(True, True, False)] * 2


@pytest.mark.parametrize("shapes", SHAPES)
@pytest.mark.parametrize(
    "solve", [km.linalg.solve_cholesky, partial(km.linalg.solve_cholesky, lower=False), km.linalg.solve_lu]
)
@pytest.mark.parametrize("strided", [False, True])
def test_a_layout_that_was_solved_is_bound(host, shapes, solve, strided):
    for seed in (1, 2, 3):
        a, b = spd(*shapes[0]) * seed, normal(*shapes[1], seed=seed)
        if strided:
            a, b = a.mT, torch.stack([b, b], -1)[..., 0]
        found = solve(a, b)
        assert_close(found.x, torch.linalg.solve(a, b), depth=1000)
        assert found.x.shape == b.shape
        assert found.info.shape == a.shape[:-2]
        assert not found.info.any()
        assert found.ran == "one kernel for small systems"
    assert host.bound == 2


@pytest.mark.parametrize("solve", [km.linalg.solve_cholesky, km.linalg.solve_lu])
def test_what_asks_for_more_is_not_bound(host, solve):
    a, b = spd(3, 4, 4), normal(3, 4, 2, seed=1)
    for _ in range(2):
        solve(a, b)
    assert host.bound == 1
    with pytest.raises(km.errors.LinearAlgebraError, match="item"):
        solve(torch.zeros_like(a), b, check_errors=True)
    with pytest.raises(km.errors.ParameterError, match="NaN"):
        solve(a * float("nan"), b, check=True)
    with pytest.raises(km.errors.DtypeError):
        solve(a.half(), b)
    side = b.clone()
    assert solve(a, side, overwrite_b=True).x.data_ptr() == side.data_ptr()
    found = solve(a, b.clone().requires_grad_())
    assert found.x.requires_grad
    solve(a.numpy(), b.numpy())
    solve(a, b.expand(2, 3, 4, 2))
    assert host.bound == 1
    root = normal(2, 3, 8, 4, seed=5).transpose(0, 1)  # whose batch axes are no one axis
    for _ in range(2):
        assert_close(
            solve(root.mT @ root, b[:, None].expand(3, 2, 4, 2)).x,
            torch.linalg.solve(root.mT @ root, b[:, None]),
            depth=1000,
        )


def test_what_shares_a_matrix_is_factored_once(host):
    a, b = spd(5, 5), normal(4, 5, 2, seed=1)
    for solve in (km.linalg.solve_cholesky, km.linalg.solve_lu):
        for given in (a, a.expand(4, 5, 5)):
            assert_close(solve(given, b).x, torch.linalg.solve(a, b), depth=1000)
    assert all(factors != solves for factors, solves, _ in host.calls)


@pytest.mark.parametrize("solve", [km.linalg.solve_cholesky, km.linalg.solve_lu, "upper"])
def test_a_step_factors_and_solves_in_one_call_and_solves_once_back(host, solve):
    solve = partial(km.linalg.solve_cholesky, lower=False) if solve == "upper" else solve
    root, side = normal(3, 4, 4).requires_grad_(), normal(3, 4, 2, seed=3).requires_grad_()
    eye = torch.eye(4, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda r, s: solve(r @ r.mT + eye, s).x, (root, side))
    assert torch.autograd.gradgradcheck(lambda r, s: solve(r @ r.mT + eye, s).x, (root, side))
    host.calls.clear()
    shared = normal(3, 4, 1, seed=5).requires_grad_()
    found = solve((root @ root.mT + eye).detach().requires_grad_(), shared.expand(3, 4, 2))
    torch.autograd.grad(found.x.sum(), shared)
    assert [(factors, solves) for factors, solves, _ in host.calls] == [(True, True), (False, True)]


@pytest.mark.parametrize("solve", [km.linalg.solve_cholesky, km.linalg.solve_lu])
def test_gradients_of_what_failed_are_no_numbers(solve):
    a = torch.stack([spd(3, 3), torch.zeros(3, 3, dtype=torch.float64)]).requires_grad_()
    b = normal(2, 3, 1).requires_grad_()
    found = solve(a, b, check_errors=False)
    assert found.info.ne(0).tolist() == [False, True]
    of_a, of_b = torch.autograd.grad(found.x.sum(), (a, b))
    exact = torch.autograd.grad(torch.linalg.solve(a[0], b[0]).sum(), (a, b))
    assert_close(of_b[0], exact[1][0], depth=1000)
    assert not of_a[1].isfinite().any()
    assert found.x[1].isnan().all()


def test_a_sign_that_torch_has_put_off_is_taken():
    a, b = spd(3, 4, 4), normal(3, 4, 2, seed=1)
    put_off = [torch.complex(torch.zeros_like(t), -t).conj().imag for t in (a, b)]
    assert all(t.is_neg() for t in put_off)
    for solve in (km.linalg.solve_cholesky, km.linalg.solve_lu):
        assert_close(solve(*put_off).x, torch.linalg.solve(a, b), depth=1000)
    assert_close(km.linalg.cholesky_factor(put_off[0]).factor, torch.linalg.cholesky(a), depth=1000)


@pytest.mark.parametrize("lower", [True, False])
def test_factors_serve_many_sides(lower):
    a, general = spd(3, 6, 6), normal(3, 6, 6, seed=2)
    work = a.clone()
    factor, lu = km.linalg.cholesky_factor(work, lower=lower, overwrite_a=True), km.linalg.lu_factor(general)
    assert factor.factor.data_ptr() == work.data_ptr()
    product = factor.factor @ factor.factor.mT if lower else factor.factor.mT @ factor.factor
    assert_close(product, a, depth=100)
    for b in (normal(6, 2), normal(3, 6), normal(4, 1, 6, 2)):
        assert_close(km.linalg.cholesky_solve(factor, b).x, torch.linalg.solve(a, b), depth=1000)
        assert_close(km.linalg.lu_solve(lu, b).x, torch.linalg.solve(general, b), depth=10**4)
        found = km.linalg.lu_solve(lu, b, transpose=True).x
        assert_close(found, torch.linalg.solve(general.mT, b), depth=10**4)


def test_memory_that_cannot_be_walked_through_is_copied_and_written_back():
    base, sides = spd(3, 2, 4, 4), normal(3, 2, 4, 2, seed=4)
    a, b = base.transpose(0, 1), sides.clone().transpose(0, 1)
    expected = torch.linalg.solve(a, b)
    for solve in (km.linalg.solve_cholesky, km.linalg.solve_lu):
        side = sides.clone().transpose(0, 1)
        assert solve(a, side, overwrite_b=True).x.data_ptr() == side.data_ptr()
        assert_close(side, expected, depth=1000)
    work = base.clone().transpose(0, 1)
    factor = km.linalg.cholesky_factor(work, overwrite_a=True).factor
    assert factor.data_ptr() == work.data_ptr()
    assert_close(work @ work.mT, a, depth=100)


def test_failures_and_wrong_targets():
    a = torch.stack([spd(3, 3), -spd(3, 3)])
    found = km.linalg.solve_cholesky(a, normal(2, 3, 1))
    assert found.info.tolist() == [0, 1]
    assert found.x.isnan().flatten(1).all(1).tolist() == [False, True]
    for solve, matrix in ((km.linalg.solve_cholesky, a), (km.linalg.solve_lu, torch.ones(2, 3, 3).double())):
        with pytest.raises(km.errors.LinearAlgebraError, match="item"):
            solve(matrix, normal(2, 3, 1), check_errors=True)
        with pytest.raises(km.errors.ParameterError, match="overwrite_b"):
            solve(matrix, normal(3, 1), overwrite_b=True)
    with pytest.raises(km.errors.ParameterError, match="not symmetric"):
        km.linalg.solve_cholesky(normal(2, 3, 3), normal(2, 3, 1), check=True)
