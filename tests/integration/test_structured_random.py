"""Two thousand random structured products and all their gradients against float64."""

from __future__ import annotations

import math
import random

import pytest
import torch

from kernmantle.kron import kron_matmul
from kernmantle.kronsparse import kron_sparse_matmul
from kernmantle.testing import assert_close

SPARSE, KRON = 75, 25  # of each slice
EACH_RUN = 40, 15  # of the slice that is run every time
SLICES = [
    pytest.param("cpu", None, id="cpu-some"),
    *(pytest.param("cpu", part, marks=pytest.mark.exhaustive) for part in range(20)),
    *(pytest.param("cuda", part, marks=[pytest.mark.exhaustive, pytest.mark.cuda]) for part in range(20)),
]
HALVES = torch.float16, torch.bfloat16
ROWS = (1, 2, 7, 16, 33, 64, 65, 127, 300)


def log_uniform(source, most) -> int:
    return int(math.exp(source.uniform(0, math.log(most + 1))))


def made(shape, seed, dtype, device="cpu") -> torch.Tensor:
    source = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=source).to(device, dtype)


def gradients(product, leaves, grad):
    """The product and its gradients."""
    own = [leaf.detach().requires_grad_() for leaf in leaves]
    out = product(*own)
    return [out.detach(), *torch.autograd.grad(out, own, grad)]


def check(ours, exact, leaves, grad, depths) -> None:
    found = gradients(ours, leaves, grad)
    wanted = gradients(exact, [leaf.double() for leaf in leaves], grad.double())
    terms = gradients(exact, [leaf.double().abs() for leaf in leaves], grad.double().abs())
    for own, right, size, depth in zip(found, wanted, terms, depths, strict=True):
        assert own.dtype == leaves[0].dtype
        assert_close(own, right, depth=depth, magnitude=size)


@pytest.mark.slow
@pytest.mark.parametrize(("device", "part"), SLICES)
def test_kronecker_sparse_products(device, part) -> None:
    source = random.Random(part or 0)
    for case in range(EACH_RUN[0] if part is None else SPARSE):
        a, d = log_uniform(source, 6), log_uniform(source, 24)
        b, c = log_uniform(source, 90), log_uniform(source, 90)
        rows, last, dtype = (
            source.choice(ROWS),
            source.random() < 0.5,
            source.choice((torch.float32, torch.float64, *HALVES)),
        )
        weight, bias = made((a, b, c, d), 2 * case, dtype, device), made((a * b * d,), 2 * case + 1, dtype, device)

        def exact(x, weight, bias, last=last, sizes=(a, c, d)):
            value = torch.einsum("nikl,ijkl->nijl", (x.mT if last else x).unflatten(1, sizes), weight).flatten(1) + bias
            return value.mT if last else value

        def ours(x, weight, bias, last=last):
            return kron_sparse_matmul(x, weight, bias=bias, batch_last=last)

        x, grad = (
            made((m, rows) if last else (rows, m), case + at, dtype, device)
            for at, m in ((100, a * c * d), (200, a * b * d))
        )
        check(ours, exact, [x, weight, bias], grad, (c, b, rows, rows))


@pytest.mark.slow
@pytest.mark.parametrize(("device", "part"), SLICES)
def test_kronecker_products(device, part) -> None:
    source = random.Random(1000 + (part or 0))
    for case in range(EACH_RUN[1] if part is None else KRON):
        count = source.randint(2, 4)
        sizes = [(log_uniform(source, 24), log_uniform(source, 24)) for _ in range(count)]
        while math.prod(max(size) for size in sizes) > 4096:
            sizes.pop()
        rows, dtype = source.choice(ROWS[:6]), source.choice((torch.float32, torch.float64))
        factors = [made(size, case + place, dtype, device) for place, size in enumerate(sizes)]
        before, after = (math.prod(side) for side in zip(*sizes, strict=True))

        def exact(x, *factors):
            whole = factors[0]
            for factor in factors[1:]:
                whole = torch.kron(whole, factor)
            return x @ whole

        x, grad = made((rows, before), case + 100, dtype, device), made((rows, after), case + 200, dtype, device)
        depth = sum(max(size) for size in sizes)
        check(
            lambda x, *own: kron_matmul(x, list(own)),
            exact,
            [x, *factors],
            grad,
            [depth, depth] + [rows * max(before, after)] * len(factors),
        )


def test_the_comparison_can_fail() -> None:
    leaves, grad = [made((3, 4), 0, torch.float32), made((4, 5), 1, torch.float32)], made((3, 5), 2, torch.float32)
    check(torch.matmul, torch.matmul, leaves, grad, (4, 5, 3))
    with pytest.raises(AssertionError):
        check(lambda x, w: x @ w * 1.0001, torch.matmul, leaves, grad, (4, 5, 3))
