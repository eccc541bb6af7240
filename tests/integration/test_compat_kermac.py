"""kermac's functions against what they are said to compute, in float64."""

from __future__ import annotations

import functools
import itertools
import subprocess
import sys

import pytest
import torch

from kernmantle import config, errors, precompile
from kernmantle.compat import install, kermac
from kernmantle.compat.kermac import InnerOperator, KernelDescriptor, KernelType, PowerType
from kernmantle.testing import assert_close

from ..arrays import normal as rows


@pytest.mark.parametrize("p", [1, 1.0, 2, 2.0, 1.3, 3])
def test_distances(p, backend, device):
    a, b = rows(7, 4, device=device), rows(5, 4, seed=1, device=device)
    expected = torch.cdist(a, b, p=float(p))
    result = kermac.cdist(a, b, p=p)
    assert result.shape == (1, 7, 5)
    assert_close(result[0], expected, depth=8)
    sums = kermac.cdist(a, b, p=p, skip_epilogue=True)
    assert_close(sums[0], expected**p, depth=16)
    assert_close(kermac.cdist(a, b, p=p), result)
    out = torch.empty(7, 5, dtype=torch.float64, device=device)
    assert kermac.cdist(a, b, out, p) is out
    assert_close(out, expected, depth=8)


def test_a_call_leaves_no_trace():
    a = rows(4, 3)
    before = kermac.kernel_descriptor_l2_norm
    kermac.cdist(a, a, skip_epilogue=True)
    assert kermac.kernel_descriptor_l2_norm == before
    assert_close(kermac.cdist(a, a)[0], torch.cdist(a, a), depth=8)


@pytest.mark.parametrize("layout", [False, True])
def test_operands_keep_their_roles_in_every_layout(layout):
    signed = KernelDescriptor(InnerOperator.DIFF, PowerType.NOOP, PowerType.NOOP, KernelType.NONE)
    a, b = rows(4, 3), rows(5, 3, seed=1)
    out = torch.empty(5, 4, dtype=torch.float64).mT if layout else torch.empty(4, 5, dtype=torch.float64)
    kermac.run_kernel(signed, a, b, out=out)
    assert_close(out, b.sum(-1) - a.sum(-1)[:, None], depth=8)


def test_batched_hyperparameters():
    a, b = rows(4, 3), rows(1, 5, 3, seed=1)
    p, bandwidth = torch.tensor([1.0, 1.7, 2.0]).double(), torch.tensor([0.5]).double()
    kernel = KernelDescriptor(InnerOperator.DIFF, PowerType.POW, PowerType.POW, KernelType.LAPLACE)
    result = kermac.run_kernel(kernel, a, b, p=p, bandwidth=bandwidth)
    for i in range(3):
        assert_close(result[i], torch.exp(-torch.cdist(a, b[0], p=p[i].item()) / 0.5), depth=16)
    out = torch.empty(3, 4, 5, dtype=torch.float64)
    kermac.run_kernel(kermac.kernel_descriptor_laplace_l1, a, b, out=out, bandwidth=2.0)
    assert_close(out[2], torch.exp(-torch.cdist(a, b[0], p=1.0) / 2), depth=8)


@pytest.mark.parametrize("p", [1.0, 1.3, 2.0])
def test_one_hyperparameter_for_a_whole_batch(p):
    """A tensor of one entry is not read past its end."""
    a, b = rows(3, 4, 3), rows(3, 5, 3, seed=1)
    powers = torch.full((8,), 7.0).double()
    powers[3] = p
    assert_close(kermac.cdist(a, b, p=powers[3:4]), torch.cdist(a, b, p=p), depth=8)


@pytest.mark.parametrize("layouts", list(itertools.product([False, True], repeat=3)), ids=str)
def test_every_layout(layouts, backend, device):
    """Rows or columns first in memory, of each array and of the result, batched or not."""
    signed = KernelDescriptor(InnerOperator.DIFF, PowerType.NOOP, PowerType.NOOP, KernelType.NONE)
    for lead in ((), (2,)):
        given = (
            rows(*lead, 4, 3, device=device),
            rows(*lead, 5, 3, seed=1, device=device),
            rows(*lead, 4, 5).to(device),
        )
        a, b, out = (t.mT.contiguous().mT if turned else t for t, turned in zip(given, layouts, strict=True))
        kermac.run_kernel(signed, a, b, out=out)
        assert_close(out, b.sum(-1)[..., None, :] - a.sum(-1)[..., None], depth=8)


def test_strided_views():
    a, b = rows(8, 6)[::2, ::2], rows(3, 15, seed=1).mT[::3]
    room = torch.full((9, 20), torch.nan).double()
    out = room[1::2, 3::4]
    kermac.cdist(a, b, out=out[:, :5], p=1.3)
    assert_close(out[:, :5], torch.cdist(a.contiguous(), b.contiguous(), p=1.3), depth=8)
    assert room.isnan().sum() == room.numel() - 20
    weights, coef = rows(16, 30, seed=2)[::4, ::3][:3], rows(2, 9, seed=3)[:, ::3]
    points, others = rows(8, 20, seed=4)[::2, ::2], rows(4, 6, seed=5)[:, ::2]
    for power in (1, 1.3, 2):
        found = kermac.cdist_grad(weights, others, coef, points, p=power)[0]
        wanted = torch.einsum("ok,km,nkm->onm", coef, weights, slopes(points, others, power))
        assert_close(found, wanted, depth=16)


def test_kernels_and_their_mask():
    a = rows(4, 3)
    b = torch.cat([a[:2] + 1e-7, rows(3, 3, seed=1)])
    gaussian = KernelDescriptor(InnerOperator.DIFF, PowerType.SQUARE, PowerType.NOOP, KernelType.GAUSSIAN)
    squares = torch.cdist(a, b).square()
    expected = torch.exp(-torch.where(squares < 1e-5, 0.0, squares) / (2 * 1.5**2))
    assert_close(kermac.run_kernel(gaussian, a, b, bandwidth=1.5)[0], expected, depth=8)
    assert kermac.run_kernel(gaussian, a, b, bandwidth=1e-9)[0, 0, 0] == 1
    assert kermac.run_kernel(gaussian, a, b, bandwidth=1e-9, epsilon=0.0)[0, 0, 0] < 1
    inner = KernelDescriptor(InnerOperator.DIFF, PowerType.POW, PowerType.POW, KernelType.NONE)
    mixed = kermac.run_kernel(inner, a, b, inner_p=1.5, outer_p=0.5)[0]
    assert_close(mixed, (a[:, None] - b).abs().pow(1.5).sum(-1).sqrt(), depth=8)
    assert_close(kermac.run_kernel(kermac.kernel_descriptor_mma, a, b)[0], a @ b.mT, depth=8)


@pytest.mark.parametrize("kind", list(KernelType), ids=str)
def test_every_arithmetic(kind):
    """Inner operator, inner power, outer power: all of them, by the formula."""
    a, b = rows(4, 3), rows(5, 3, seed=1)
    powers = {
        PowerType.NOOP: lambda t, _: t,
        PowerType.ABS: lambda t, _: t.abs(),
        PowerType.SQUARE: lambda t, _: t.square(),
        PowerType.SQRT: lambda t, _: t.sqrt(),
        PowerType.POW: lambda t, p: t.abs() ** p,
    }
    for operator, inner, outer in itertools.product(InnerOperator, PowerType, PowerType):
        given = {} if kind is KernelType.NONE else {"bandwidth": 1.5}
        given |= {} if inner is not PowerType.POW else {"inner_p": 1.7}
        given |= {} if outer is not PowerType.POW else {"outer_p": 0.6}
        term = b - a[:, None] if operator is InnerOperator.DIFF else a[:, None] * b
        expected = powers[outer](powers[inner](term, 1.7).sum(-1), 0.6)
        if kind is not KernelType.NONE:
            expected = torch.where(expected < 1e-5, 0.0, expected)
            expected = torch.exp(-expected / (1.5 if kind is KernelType.LAPLACE else 2 * 1.5**2))
        with config(backend="reference"):
            found = kermac.run_kernel(KernelDescriptor(operator, inner, outer, kind), a, b, **given)[0]
        assert_close(found, expected, depth=16)


@pytest.mark.parametrize("layout", [False, True])
def test_regularization_overwrites_by_global_index(layout):
    a, b = rows(4, 3), rows(6, 3, seed=1)
    out = torch.empty(6, 4, dtype=torch.float64).mT if layout else torch.empty(4, 6, dtype=torch.float64)
    kernel = kermac.kernel_descriptor_laplace_l1
    offsets = {"regularization_offset_x": 2, "regularization_offset_y": 1}
    kermac.run_kernel(kernel, a, b, out=out, bandwidth=1.0, regularization=0.25, **offsets)
    plain = kermac.run_kernel(kernel, a, b, bandwidth=1.0)[0]
    for i in range(4):
        for j in range(6):
            assert_close(out[i, j], torch.tensor(1.25).double() if i + 2 == j + 1 else plain[i, j])
    batch = torch.tensor([0.0, 0.5]).double()
    result = kermac.run_kernel(kernel, a, b, bandwidth=1.0, regularization=batch)
    assert_close(result[0], plain)
    assert_close(result[1].diagonal(), torch.full((4,), 1.5).double())


def slopes(d, b, p):
    gap = d[:, None, :] - b[:, :, None]
    return gap.sign() * gap.abs() ** (p - 1)


@pytest.mark.parametrize("p", [1, 2.0, 1.3])
def test_gradients(p, backend, device):
    a, b, c, d = (rows(*s, seed=i, device=device) for i, s in enumerate([(6, 5), (3, 6), (2, 6), (3, 5)]))
    expected = torch.einsum("ok,km,nkm->onm", c, a, slopes(d, b, p))
    result = kermac.cdist_grad(a, b, c, d, p=p)
    assert result.shape == (1, 2, 3, 5)
    assert_close(result[0], expected, depth=16)
    out = torch.empty(2, 3, 5, dtype=torch.float64, device=device)
    assert kermac.cdist_grad(a, b, c, d, out=out, p=p) is out
    assert_close(out, expected, depth=16)


@pytest.mark.parametrize("batched", list(itertools.product([False, True], repeat=4)), ids=str)
def test_gradients_of_squares_in_batches(batched):
    shapes = (6, 7), (9, 6), (2, 6), (9, 7)
    a, b, c, d = (
        rows(*(3,) * lead, *shape, seed=i) for i, (lead, shape) in enumerate(zip(batched, shapes, strict=True))
    )
    whole = [tensor.expand(3, *tensor.shape[-2:]) for tensor in (a, b, c, d)]
    gap = whole[3][:, :, None, :] - whole[1][..., None]
    expected = torch.einsum("bok,bkm,bnkm->bonm", whole[2], whole[0], gap)
    result = kermac.cdist_grad(a, b, c, d, p=2)
    assert_close(result, expected[: 3 if any(batched) else 1], depth=16)
    out = torch.full((3, 2, 9, 7), torch.nan).double()
    assert kermac.cdist_grad(a, b, c, d, out, p=2) is out
    assert_close(out, expected, depth=16)


@pytest.mark.parametrize("p", [1, 2, 1.3])
def test_gradients_in_a_batch_of_one(p):
    a, b, c, d = (rows(1, *s, seed=i) for i, s in enumerate([(6, 5), (3, 6), (2, 6), (3, 5)]))
    expected = torch.einsum("ok,km,nkm->onm", c[0], a[0], slopes(d[0], b[0], p))[None]
    assert_close(kermac.cdist_grad(a, b, c, d, p=p), expected, depth=16)
    out = torch.empty(1, 2, 3, 5).double()
    assert kermac.cdist_grad(a, b, c, d, out, p=p) is out
    assert_close(out, expected, depth=16)


def test_gradients_of_batched_powers_that_hold_one():
    a, b, c, d = (rows(*s, seed=i) for i, s in enumerate([(6, 5), (3, 6), (2, 2, 6), (3, 5)]))
    d[0, 0] = b[0, 0]
    p = torch.tensor([1.0, 1.6]).double()
    result = kermac.cdist_grad(a, b, c, d, p=p)
    for i in range(2):
        expected = torch.einsum("ok,km,nkm->onm", c[i], a, torch.nan_to_num(slopes(d, b, p[i])))
        assert_close(result[i], expected, depth=16)


@pytest.mark.parametrize("p", [0.5, 1.3, 2.5, torch.tensor(1.3).double()])
def test_differences_are_no_smaller_than_asked_under_the_power(p):
    a, b, c, d = (rows(*s, seed=i) for i, s in enumerate([(6, 5), (3, 6), (2, 6), (3, 5)]))
    gap = d[:, None, :] - b[:, :, None]
    slope = gap.sign() * gap.abs().clamp(min=0.5) ** (float(p) - 1)
    found = kermac.cdist_grad(a, b, c, d, p=p, eps=0.5)[0]
    assert_close(found, torch.einsum("ok,km,nkm->onm", c, a, slope), depth=16)


def test_sums_of_exponentials():
    a, b = rows(4, 3), rows(2, 5, 3, seed=1)
    p, scale = 1.4, torch.tensor([-0.3, -0.7]).double()
    result = kermac.cdist_expadd(a, b, p=p, scale=scale)
    for i in range(2):
        expected = torch.exp(scale[i] * (a[:, None] - b[i]).abs() ** p).sum(-1)
        assert_close(result[i], expected, depth=8)
    grown = kermac.cdist_expadd(a, b[0], p=p, lengthscale=2.0)
    assert_close(grown[0], torch.exp((a[:, None] - b[0]).abs() ** p / 2.0**p).sum(-1), depth=8)


def test_sums_of_exponentials_in_float32(backend, device):
    """Against float64, to the accuracy of float32."""
    a, b, c, d, weights = (rows(*s, seed=i, device=device).float() for i, s in enumerate(
        [(6, 4), (7, 4), (2, 6), (9, 7), (6, 7)]))  # fmt: skip
    p, q, c0, scale = 1.3, 0.8, 0.2, -0.4
    gap = (a.double()[:, None] - b.double()).abs()
    assert_close(kermac.cdist_expadd(a, b, p=p, scale=scale)[0], torch.exp(scale * gap**p).sum(-1), depth=16)
    x, z = rows(9, 6, seed=7, device=device).float(), d
    gap = z.double()[:, None, :] - x.double()[:, :, None]
    terms = torch.exp(scale * gap.abs() ** p)
    outer = c.double()[:, :, None] * weights.double() * q * (c0 + terms.sum(0)) ** (q - 1)
    inner = terms * p * scale * gap.sign() * gap.abs() ** (p - 1)
    found = kermac.cdist_grad_expadd(weights, x, c, z, p=p, q=q, c0=c0, scale=scale)[0]
    assert_close(found, torch.einsum("okm,nkm->onm", outer, inner), depth=32)


@pytest.mark.parametrize("given", [False, True])
def test_gradients_of_sums_of_exponentials(given):
    """Against torch's derivative of the sum they come from."""
    a, b, c, d = (rows(*s, seed=i) for i, s in enumerate([(6, 5), (3, 6), (2, 6), (3, 5)]))
    p, q, c0, scale = 1.6, 2.0, 0.4, -0.5
    d = d.requires_grad_()
    sums = torch.exp(scale * (d[:, None, :] - b[:, :, None]).abs() ** p).sum(0)
    expected = torch.stack(
        [torch.autograd.grad((c[o][:, None] * a * (c0 + sums) ** q).sum(), d, retain_graph=True)[0] for o in range(2)]
    )
    extra = {"s_km": sums.detach()} if given else {}
    result = kermac.cdist_grad_expadd(a, b, c, d.detach(), p=p, q=q, c0=c0, scale=scale, **extra)
    assert_close(result[0], expected, depth=32)


def test_gradients_of_batched_sums_of_exponentials():
    a, b, c, d = (rows(*s, seed=i) for i, s in enumerate([(6, 5), (3, 6), (2, 6), (3, 5)]))
    p, scale, q, c0 = torch.tensor([1.2, 1.7]).double(), torch.tensor([-0.3, -0.6]).double(), 1.5, 0.2
    gap = d[:, None, :] - b[:, :, None]
    out = torch.empty(2, 2, 3, 5).double()
    assert kermac.cdist_grad_expadd(a, b, c, d, out=out, p=p, q=q, c0=c0, scale=scale) is out
    for i in range(2):
        terms = torch.exp(scale[i] * gap.abs() ** p[i])
        inner = terms * p[i] * scale[i] * gap.sign() * gap.abs() ** (p[i] - 1)
        outer = c[:, :, None] * a * q * (c0 + terms.sum(0)) ** (q - 1)
        assert_close(out[i], torch.einsum("okm,nkm->onm", outer, inner), depth=32)


BAD = [
    (lambda a: kermac.cdist(a, a.numpy()), TypeError, "tensor"),
    (lambda a: kermac.cdist(a, a.float()), TypeError, "dtype"),
    (lambda a: kermac.cdist(a, a[:, :2]), ValueError, "columns"),
    (lambda a: kermac.cdist(a, a, out=torch.empty(3, 3).double()), ValueError, "out must have shape"),
    (lambda a: kermac.cdist(a, a, p=torch.ones(2, 2).double()), ValueError, "axes"),
    (lambda a: kermac.cdist(rows(2, 4, 3), rows(3, 4, 3)), ValueError, "batch size"),
    (lambda a: kermac.run_kernel(kermac.kernel_descriptor_p_norm, a, a), ValueError, "POW"),
    (lambda a: kermac.run_kernel(kermac.kernel_descriptor_l1_norm, a, a, p=2.0), ValueError, "neither"),
    (lambda a: kermac.run_kernel(kermac.kernel_descriptor_l1_norm, a, a, bandwidth=2.0), ValueError, "NONE"),
    (lambda a: kermac.run_kernel(kermac.kernel_descriptor_laplace_l1, a, a), ValueError, "bandwidth"),
    (lambda a: kermac.cdist_grad(a, a, a, a), ValueError, "must have shape"),
    (lambda a: kermac.cdist_expadd(a, a), ValueError, "either"),
    (lambda a: install("numpy"), errors.ParameterError, "no stand-in"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "kind", "text"), BAD, ids=range(len(BAD)))
def test_bad_input(call, kind, text):
    with pytest.raises(kind, match=text):
        call(rows(4, 3))


def test_an_existing_program_runs():
    code = """
import kernmantle.compat
kernmantle.compat.install("kermac")
import torch, kermac
from kermac import *
timer = kermac.CudaTimer()
timer.start()
x = torch.randn(4, 3)
assert torch.allclose(kermac.cdist(x, x, p=1.0)[0], torch.cdist(x, x, p=1.0))
assert timer.stop() >= 0
assert PowerType.POW is kermac.PowerType.POW
"""
    result = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr


_GAUSSIAN = KernelDescriptor(InnerOperator.DIFF, PowerType.POW, PowerType.POW, KernelType.GAUSSIAN)
DESCRIBED = [
    (kermac.kernel_descriptor_l1_norm, {}),
    (kermac.kernel_descriptor_l2_norm, {}),
    (kermac.kernel_descriptor_p_norm, {"p": 1.7}),
    (kermac.kernel_descriptor_laplace_l2, {"bandwidth": 3.0}),
    (kermac.kernel_descriptor_mma, {}),
    (_GAUSSIAN, {"inner_p": 1.4, "outer_p": 0.7, "bandwidth": 2.0}),
]


def test_descriptors_compile_ahead(tmp_path):
    a, b = rows(70, 40).float(), rows(50, 40, seed=1).float()
    calls = [functools.partial(kermac.run_kernel, descriptor, a, b, **given) for descriptor, given in DESCRIBED]
    with config(backend="llvm", cache_dir=tmp_path, progress=False):
        kermac.pre_compile_descriptors("cpu", [descriptor for descriptor, _ in DESCRIBED])
        assert precompile(calls, workers=1) == 0


@pytest.mark.cuda
def test_descriptors_compiled_ahead_for_a_gpu_are_those_that_run(tmp_path):
    a, b = rows(2048, 128, device="cuda").float(), rows(2048, 128, seed=1, device="cuda").float()
    few = [x[:9].cpu().double() for x in (a, b)]
    with config(backend="cuda", cache_dir=tmp_path, progress=False):
        kermac.pre_compile_descriptors("cuda", [descriptor for descriptor, _ in DESCRIBED])
        known = sorted(tmp_path.rglob("*"))
        assert known
        calls = [functools.partial(kermac.run_kernel, descriptor, a, b, **given) for descriptor, given in DESCRIBED]
        assert precompile(calls, workers=1) == 0
        found = [call()[..., :9, :9].cpu() for call in calls]
        assert sorted(tmp_path.rglob("*")) == known
    with config(backend="reference"):
        for result, (descriptor, given) in zip(found, DESCRIBED, strict=True):
            exact = kermac.run_kernel(descriptor, *few, **given)
            assert_close(result, exact, dtype=torch.float32, depth=128, magnitude=exact.abs().max())
