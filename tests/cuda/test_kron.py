"""Kronecker products on CUDA tensors against float64: sizes around every tile, both sides, strides, y, and edges."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
import torch

import kernmantle as km
from kernmantle.structured.kron import aligned_choice, cuda, gradient_cuda
from kernmantle.structured.kron.factor_sums import outer
from kernmantle.structured.kron.matmul import multiply
from kernmantle.testing import assert_close
from kernmantle.testing.tolerances import DEVIATIONS
from kernmantle.torch_ops.info import RunInfo

from ..kron_oracle import MIXED, REAL_WORLD, SQUARE, drawn, limited, named, oracle, powers, terms

pytestmark = pytest.mark.cuda
DTYPES = {"f32": torch.float32, "f64": torch.float64, "f16": torch.float16, "bf16": torch.bfloat16}
SIZES = [size for size in [*SQUARE, *MIXED, *REAL_WORLD] if len(size[1]) <= 12]
TENSOR = [powers(37, p, n) for p in (8, 16, 17, 24, 31, 32, 50, 64, 127, 128) for n in (1, 2, 3)]
TENSOR += [powers(9, 4, 7), powers(9, 2, 9), powers(5, 16, 4), (7, [(16, 48), (64, 20)]), (7, [(100, 12), (9, 64)])]


def depth(size):
    return sum(p for p, _ in size[1])


def rounded(x, factors, side="right"):
    """Size of what halves round away: x before every factor, and factors that are multiplied out."""
    return DEVIATIONS * math.sqrt(2 * len(factors)) * terms(x, factors, side)


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("size", SIZES, ids=named)
def test_sizes(size, dtype):
    x, factors = drawn(limited(size, 1 << 18), DTYPES[dtype], device="cuda")
    found, size_of = km.kron_matmul(x, factors).cpu(), terms(x, factors)
    assert_close(found, oracle(x, factors), dtype=DTYPES[dtype], depth=depth(size), magnitude=size_of)


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("size", SIZES[::5], ids=named)
def test_sizes_from_the_left(size, dtype):
    x, factors = drawn(limited(size, 1 << 16), DTYPES[dtype], "left", "cuda")
    found, size_of = km.kron_matmul(x, factors, side="left").cpu(), terms(x, factors, "left")
    assert_close(found, oracle(x, factors, "left"), dtype=DTYPES[dtype], depth=depth(size), magnitude=size_of)


@pytest.mark.parametrize("seed", range(16))
def test_random_products(seed):
    source = random.Random(seed)
    dtype, side = DTYPES[source.choice(["f32", "f64"])], source.choice(["right", "left"])
    count = source.randint(1, 4)
    most = [130, 70, 20, 9][count - 1]
    size = source.randint(1, 40), [(source.randint(1, most), source.randint(1, most)) for _ in range(count)]
    x, factors = drawn(size, dtype, side, "cuda", seed)
    wanted, size_of = oracle(x, factors, side), terms(x, factors, side)
    if source.random() < 0.5:
        x = x.mT.contiguous().mT
    if source.random() < 0.5:
        place = source.randrange(count)
        factors[place] = torch.stack([factors[place]] * 3)[:, None]
        x, wanted, size_of = x.expand(2, *x.shape), wanted[None, None], size_of[None, None]
    y = torch.randn(x.shape[-2] if side == "right" else 1, 1, device="cuda").to(dtype)
    found = km.kron_matmul(x, factors, side=side, alpha=0.5, beta=-2, y=y).cpu()
    exact = 0.5 * wanted - 2 * y.cpu().double().numpy()
    expected, size_of = (np.broadcast_to(each, found.shape) for each in (exact, size_of))
    assert_close(found, expected, dtype=dtype, depth=3 * depth(size), magnitude=size_of)


def test_float64_derivatives_of_every_argument():
    leaves = [torch.randn(2, 128, device="cuda", dtype=torch.float64)]
    leaves += [torch.randn(p, p, device="cuda", dtype=torch.float64) for p in (16, 8)]
    leaves += [torch.randn((), device="cuda", dtype=torch.float64), torch.randn(2, 128, device="cuda").double()]

    def product(x, f, g, alpha, y):
        return km.kron_matmul(x, [f, g], alpha=alpha, beta=2, y=y)

    assert torch.autograd.gradcheck(product, [leaf.requires_grad_() for leaf in leaves])


@pytest.mark.parametrize("dtype", list(DTYPES))
@pytest.mark.parametrize(
    "size",
    [(40, [(64, 64)] * 2), (9, [(8, 8)] * 5), (9, [(30, 62), (20, 8)]), (5, [(128, 128), (2, 4)]), (40, [(4, 4)] * 6),
     (7, [(50, 2), (2, 50)]), (1000, [(16, 16)]), (3, [(31, 63), (3, 3)]), (3, [(16, 16)] * 4),
     (5, [(32, 32)] * 3), (70, [(8, 8)] * 3), (2, [(64, 64)] * 3)],
    ids=named,
)  # fmt: skip
def test_gradients(size, dtype):
    x, factors = drawn(size, DTYPES[dtype], device="cuda")
    leaves = [x.requires_grad_(), *(factor.requires_grad_() for factor in factors)]
    out = km.kron_matmul(x, factors)
    weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(2)).to("cuda", out.dtype)
    found = torch.autograd.grad(out, leaves, weight)
    exact = [leaf.detach().cpu().double().requires_grad_() for leaf in leaves]
    wanted = torch.autograd.grad(km.kron_matmul(exact[0], exact[1:]), exact, weight.cpu().double())
    for one, other in zip(found, wanted, strict=True):
        typical = other.square().mean().sqrt()
        rounds = DEVIATIONS * math.sqrt(2 * len(factors)) if out.dtype.itemsize == 2 else 1
        assert_close(one.cpu(), other, depth=x.numel(), magnitude=rounds * typical)


SHARED = (
    (60, [(2, 2), (7, 7), (20, 20), (9, 9)]), (40, [(12, 46), (5, 205)]), (6, [(5, 3), (2, 2), (63, 63), (3, 3)]),
    (512, [(67, 67), (6, 6), (2, 3)]),
)  # fmt: skip


@pytest.mark.parametrize(
    ("dtype", "frozen"), [("f16", None), ("f16", 0), ("f16", 2), ("bf16", None), ("f32", None), ("f32", 2)]
)
@pytest.mark.parametrize("size", SHARED, ids=named)
def test_gradients_that_factors_share(size, dtype, frozen):
    x, factors = drawn(size, DTYPES[dtype], device="cuda")
    wanted = [leaf.requires_grad_() for place, leaf in enumerate((x, *factors)) if place != frozen]
    out = km.kron_matmul(x, factors)
    weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(2)).to("cuda", out.dtype)
    exact = [leaf.detach().double().requires_grad_() for leaf in (x, *factors)]
    whole = exact[1]
    for factor in exact[2:]:
        whole = torch.kron(whole, factor)
    right = torch.autograd.grad(exact[0] @ whole, exact, weight.double())
    others = [own for place, own in enumerate(right) if place != frozen]
    for one, other in zip(torch.autograd.grad(out, wanted, weight), others, strict=True):
        rounds = DEVIATIONS * math.sqrt(2 * len(factors)) if out.dtype.itemsize == 2 else 1
        assert_close(one, other, depth=x.numel(), magnitude=rounds * other.square().mean().sqrt())


def test_long_sums_of_halves_lose_nothing():
    """Accumulators of tensor cores round towards zero: sums over 480000 rows were 1 % too small."""
    x, factor = (
        torch.randn(400000, 264, device="cuda").half(),
        torch.randn(264, 8, device="cuda").half().requires_grad_(),
    )
    weight = (x[:, :8] / 10 + torch.randn(400000, 8, device="cuda")).half()
    (found,) = torch.autograd.grad(km.kron_matmul(x, [factor]), [factor], weight)
    assert_close(found, x.double().mT @ weight.double(), depth=1, magnitude=40000.0)
    joint = outer(x.unsqueeze(-1), weight.unsqueeze(-1), 1, (8, 264))
    assert_close(joint, weight.double().mT @ x.double(), depth=1, magnitude=40000.0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("rows", "columns"), [(17, 17), (9, 33), (63, 2), (3, 8), (99, 70)])
def test_rows_of_an_odd_number_of_halves_are_summed_two_at_a_time(rows, columns, dtype):
    """An entry of another block of the sum over both would be off by more than the type rounds."""
    u = torch.randn(60000, columns, device="cuda").to(dtype)
    v = torch.randn(60000, rows, device="cuda").to(dtype)
    v[:, : min(rows, columns)] += u[:, : min(rows, columns)] / 10
    kernel = gradient_cuda.bind_two_rows(u.unsqueeze(-1), v.unsqueeze(-1), False)
    assert_close(kernel(u, v), v.double().mT @ u.double(), depth=1, magnitude=6000.0)


ODD = (
    (7, [(77, 77), (51, 51), (2, 2)]), (300, [(3, 3), (38, 38), (17, 17)]), (5, [(12, 46), (5, 205)]),
    (2, [(250, 7)] * 2),
)  # fmt: skip


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
@pytest.mark.parametrize("store", [None, False])
@pytest.mark.parametrize("size", ODD, ids=named)
def test_gradients_of_odd_extents(size, store, dtype):
    x, factors = drawn(size, DTYPES[dtype], device="cuda")
    leaves = [x.requires_grad_(), *(factor.requires_grad_() for factor in factors)]
    out = km.kron_matmul(x, factors, store=store)
    weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(2)).to("cuda", out.dtype)
    exact = [leaf.detach().double().requires_grad_() for leaf in leaves]
    whole = exact[1]
    for factor in exact[2:]:
        whole = torch.kron(whole, factor)
    wanted = torch.autograd.grad(exact[0] @ whole, exact, weight.double())
    for one, other in zip(torch.autograd.grad(out, leaves, weight), wanted, strict=True):
        rounds = DEVIATIONS * math.sqrt(2 * len(factors)) if out.dtype.itemsize == 2 else 1
        assert_close(one, other, depth=x.numel(), magnitude=rounds * other.square().mean().sqrt())


@pytest.mark.parametrize("size", [(75, [(3, 7), (31, 31), (32, 32)]), (64, [(16, 65), (4, 4)]), *ODD[:2]], ids=named)
def test_gradients_of_rows_that_lie_turned_round(size):
    """Such products may copy between their passes, with what gradients read and without."""
    x, factors = drawn(size, torch.float16, device="cuda")
    leaves = [x.mT.contiguous().mT.requires_grad_(), *(factor.requires_grad_() for factor in factors)]
    exact = [leaf.detach().double().requires_grad_() for leaf in leaves]
    whole = exact[1]
    for factor in exact[2:]:
        whole = torch.kron(whole, factor)
    weight = torch.randn(len(x), whole.shape[1], generator=torch.Generator().manual_seed(2)).to("cuda", x.dtype)
    wanted = torch.autograd.grad(exact[0] @ whole, exact, weight.double())
    rounds = DEVIATIONS * math.sqrt(2 * len(factors))
    for _ in range(2):
        out = km.kron_matmul(leaves[0], factors)
        assert_close(out.cpu(), oracle(x, factors), depth=depth(size), magnitude=rounded(x, factors))
        for one, other in zip(torch.autograd.grad(out, leaves, weight), wanted, strict=True):
            assert_close(one, other, depth=x.numel(), magnitude=rounds * other.square().mean().sqrt())


@pytest.mark.parametrize("size", [(24, [(64, 64)] * 2), (40, [(16, 16)] * 3), (16, [(8, 8)] * 3)], ids=named)
def test_gradients_from_the_left(size):
    x, factors = drawn(size, torch.float32, "left", device="cuda")
    leaves = [x.requires_grad_(), *(factor.requires_grad_() for factor in factors)]
    out = km.kron_matmul(x, factors, side="left", alpha=-2)
    weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(2)).to("cuda")
    exact = [leaf.detach().cpu().double().requires_grad_() for leaf in leaves]
    wanted = km.kron_matmul(exact[0], exact[1:], side="left", alpha=-2)
    found = torch.autograd.grad(out, leaves, weight)
    for one, other in zip(found, torch.autograd.grad(wanted, exact, weight.cpu().double()), strict=True):
        assert_close(one.cpu(), other, depth=x.numel(), magnitude=other.square().mean().sqrt())


@pytest.mark.parametrize("size", [(64, [(16, 16)] * 2), (16, [(64, 64)] * 2), (4, [(8, 8)] * 5)], ids=named)
def test_gradients_of_rows_keep_their_own_accuracy(size):
    x, factors = drawn(size, torch.float32, device="cuda")
    scales = 2.0 ** (torch.arange(len(x), device="cuda") * 7 % 41 - 20)[:, None]
    weight = torch.randn_like(x) * scales
    leaves = [x.requires_grad_(), *(factor.requires_grad_() for factor in factors)]
    found = torch.autograd.grad(km.kron_matmul(x, factors), leaves, weight)[0]
    exact = km.kron_matmul(weight.double().cpu(), [factor.detach().double().cpu().mT for factor in factors])
    rows = scales.double().cpu()
    assert_close((found / scales).cpu(), exact / rows, depth=sum(p for p, _ in size[1]))


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("size", TENSOR, ids=named)
def test_tensor_cores(size, dtype, side):
    x, factors = drawn(limited(size, 1 << 18), DTYPES[dtype], side, "cuda")
    found = km.kron_matmul(x, factors, side=side).cpu()
    size_of = None if dtype == "f32" else rounded(x, factors, side)
    assert_close(found, oracle(x, factors, side), dtype=DTYPES[dtype], depth=depth(size), magnitude=size_of)


@pytest.mark.parametrize("base", [16, 32, 64])
def test_strides_scalars_and_y(base):
    x, factors = drawn((40, [(base, base)] * 2), torch.float32, device="cuda")
    wide = torch.zeros(40, base * base + 3, device="cuda")
    wide[:, 1:-2] = x
    y = torch.randn(40, base * base, device="cuda")
    expected = 0.5 * oracle(x, factors) - 2 * y.cpu().double().numpy()
    for given in (x, wide[:, 1:-2], x.T.contiguous().T, torch.stack([x, x], 1)[:, 0]):
        out = y.clone()
        assert km.kron_matmul(given, factors, alpha=0.5, beta=-2, y=out, out=out) is out
        assert_close(out.cpu(), expected, depth=3 * base)
    transposed = [factor.mT.contiguous().mT for factor in factors]
    assert_close(km.kron_matmul(x, transposed).cpu(), oracle(x, factors), depth=2 * base)


UNALIGNED = [
    (77, [(69, 69)]), (77, [(21, 33)]), (50, [(74, 74)]), (300, [(4, 209)]), (19, [(12, 46), (5, 41)]),
    (70, [(22, 22), (14, 14)]), (5, [(10, 34), (20, 20), (15, 15)]), (40, [(44, 44), (6, 6)]),
    (9, [(40, 40), (49, 49)]),
]  # fmt: skip


def test_numbers_that_change_from_call_to_call():
    torch.manual_seed(0)
    x, y = torch.randn(16, 512, device="cuda"), torch.randn(16, 512, device="cuda")
    factors = [torch.randn(8, 8, device="cuda") for _ in range(3)]
    whole = x.double() @ torch.kron(torch.kron(*(f.double() for f in factors[:2])), factors[2].double())
    for alpha, beta in ((1, 0), (2.5, 0), (1, 0), (-0.5, 3), (1, 1), (-0.5, 3), (2.5, 0)):
        found = km.kron_matmul(x, factors, alpha=alpha, beta=beta, y=y if beta else None)
        assert_close(found.cpu(), (alpha * whole + beta * y.double()).cpu().numpy(), depth=512)


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("size", UNALIGNED, ids=named)
def test_halves_leave_for_rows_that_begin_anywhere(size, dtype, monkeypatch):
    monkeypatch.setattr(cuda, "KINDS", ("mma",))
    x, factors = drawn(size, DTYPES[dtype], device="cuda")
    wanted, size_of = oracle(x, factors), rounded(x, factors)
    rows, width = wanted.shape
    for before, gap in ((0, 0), (1, 0), (2, 0), (6, 0), (0, 1), (3, 2), (5, 8)):
        memory = torch.full((before + rows * (width + gap) + 9,), 7.0, dtype=DTYPES[dtype], device="cuda")
        whole = memory[before : before + rows * (width + gap)].view(rows, width + gap)
        km.kron_matmul(x, factors, out=whole[:, :width])
        found = whole[:, :width].cpu()
        assert_close(found, wanted, dtype=DTYPES[dtype], depth=depth(size), magnitude=size_of)
        whole[:, :width] = 7
        assert bool((memory == 7).all())


def test_rows_keep_their_own_accuracy():
    x, factors = drawn((64, [(64, 64)] * 2), torch.float32, device="cuda")
    scales = 2.0 ** (torch.arange(64, device="cuda") % 41 - 20)
    found = km.kron_matmul(x * scales[:, None], factors) / scales[:, None]
    assert_close(found.cpu(), oracle(x, factors), depth=128)
    columns = km.kron_matmul((x * scales[:, None]).T, factors, side="left") / scales
    assert_close(columns.cpu(), oracle(x.T, factors, "left"), depth=128)


def test_nan_and_infinity_stay_in_their_row():
    x, factors = drawn((64, [(32, 32)] * 2), torch.float32, device="cuda")
    clean = km.kron_matmul(x, factors)
    for value in (float("nan"), float("inf")):
        spoiled = x.clone()
        spoiled[5, 7] = value
        found = km.kron_matmul(spoiled, factors)
        assert not found[5].isfinite().any()
        rest = torch.arange(64, device="cuda") != 5
        assert torch.equal(found[rest], clean[rest])


def test_precision_says_which_arithmetic_runs():
    x, factors = drawn((4096, [(32, 32)] * 2), torch.float32, device="cuda")  # fewer rows take additions
    wanted = oracle(x, factors)
    routes = {}
    for precision in (None, "ieee", "tf32"):
        info = RunInfo()
        found = multiply(x, factors, precision=precision, info=info)
        routes[precision] = info.route
        kind, size = (torch.float16, rounded(x, factors)) if precision == "tf32" else (torch.float32, None)
        assert_close(found.cpu(), wanted, dtype=kind, depth=64, magnitude=size)
    assert "3 products of scaled f16 halves" in routes[None]
    assert "products" not in routes["ieee"]
    assert "f16 products" in routes["tf32"]


def test_gradients_and_graphs():
    x, factors = drawn((40, [(16, 16), (32, 32)]), torch.float32, device="cuda")
    leaves = [x.requires_grad_(), *(factor.requires_grad_() for factor in factors)]
    found = torch.autograd.grad(km.kron_matmul(x, factors).square().sum(), leaves)
    exact = [leaf.detach().cpu().double().requires_grad_() for leaf in leaves]
    wanted = torch.autograd.grad(km.kron_matmul(exact[0], exact[1:]).square().sum(), exact)
    for one, other in zip(found, wanted, strict=True):
        assert_close(one.cpu(), other, dtype=torch.float32, depth=40 * 512)
    with torch.no_grad():
        out = km.kron_matmul(x, factors)
        expected = out.clone()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            km.kron_matmul(x, factors, out=out)
        out.zero_()
        graph.replay()
        assert torch.equal(out, expected)


def in_float64(x, factors):
    """The product in float64 on the GPU, one factor after the other."""
    value, right = x.double(), 1
    for factor in reversed(factors):
        p, q = factor.shape
        value = factor.double().mT @ value.reshape(-1, p, right)
        right *= q
    return value.reshape(x.shape[0], right)


def norm_error(found, exact):
    """Largest error of a row, of its norm."""
    return float(((found.double() - exact).norm(dim=1) / exact.norm(dim=1)).max())


WGMMA = [
    (1057, (64, 64)),
    (1500, (128, 128)),
    (24, (128, 128, 128)),
    (11, (64, 3, 64, 64)),
    (531, (8, 8, 64)),
]


def taken_where_aligned(monkeypatch, choice, rows, extents, dtype):
    """Check rows that lie apart and factors in either order; return how often a choice was asked of aligned rows.

    Rows that begin elsewhere do not ask it.
    """
    taken, chosen = [], getattr(aligned_choice, choice)
    monkeypatch.setattr(aligned_choice, choice, lambda *given: taken.append(given) or chosen(*given))
    width, kind = math.prod(extents), DTYPES[dtype]
    torch.manual_seed(rows)
    memory = torch.randn(rows, width + 16, device="cuda").to(kind)
    factors = [(torch.randn(p, p, device="cuda") / math.sqrt(p)).to(kind) for p in extents]
    factors[-1] = factors[-1].mT.contiguous().mT
    allowed = {"f32": 1e-6, "f16": 1e-3, "bf16": 8e-3}[dtype] * math.sqrt(len(extents))
    for begin in (0, 8):
        x = memory[:, begin : begin + width]
        assert norm_error(km.kron_matmul(x, factors), in_float64(x, factors)) < allowed
    count = len(taken)
    x = memory[:, 1 : 1 + width]
    assert norm_error(km.kron_matmul(x, factors), in_float64(x, factors)) < allowed
    assert len(taken) == count
    return count


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize(("rows", "extents"), WGMMA)
def test_multiples_of_64_by_wgmma(rows, extents, dtype, monkeypatch):
    """Rows that lie apart, factors in either order, and what is left of the last tiles; unaligned rows by others."""
    count = taken_where_aligned(monkeypatch, "wgmma", rows, extents, dtype)
    assert count or torch.cuda.get_device_capability() != (9, 0) or not {*extents} <= {64, 128}


def check_rows_of_any_size(x, factors):
    """x (rows, groups, entries): groups of a row differ by powers of two, rows by more; none spoils another row."""
    rows, groups, _ = x.shape
    x = x * torch.exp2(torch.arange(float(groups), device="cuda") % 13 - 6)[:, None]
    x = (x * torch.exp2(torch.arange(float(rows), device="cuda") * 37 % 101 - 50)[:, None, None]).reshape(rows, -1)
    whole = km.kron_matmul(x, factors)
    assert norm_error(whole, in_float64(x, factors)) < 2e-6
    for bad in (math.nan, math.inf):
        spoiled = x.clone()
        spoiled[5, 777] = bad
        found = km.kron_matmul(spoiled, factors)
        assert not torch.isfinite(found[5]).any()
        kept = [*range(5), *range(6, rows)]
        assert torch.equal(found[kept], whole[kept])


def test_rows_of_any_size_by_wgmma():
    torch.manual_seed(0)
    factors = [torch.randn(64, 64, device="cuda") / 8 for _ in range(2)]
    check_rows_of_any_size(torch.randn(700, 64, 64, device="cuda"), factors)


@pytest.mark.parametrize("extent", [64, 128])
def test_entries_that_do_not_depend_on_an_infinity_are_those_without_it(extent):
    """One axis with others behind it, which a tile of wgmma scales together."""
    torch.manual_seed(1)
    x = torch.randn(600, extent * 256, device="cuda")
    factor = torch.randn(extent, extent, device="cuda") / math.sqrt(extent)
    right = km.kron_matmul(x, [factor, 256])
    for bad in (math.inf, -math.inf, math.nan):
        spoiled = x.clone()
        spoiled[7, 5 * 256 + 30] = bad
        found = km.kron_matmul(spoiled, [factor, 256]).view(600, extent, 256)
        assert not torch.isfinite(found[7, :, 30]).any()
        found[7, :, 30] = right.view(600, extent, 256)[7, :, 30]
        exact = factor.double().mT @ x.double().view(600, extent, 256)
        assert norm_error(found.view(600, -1), exact.view(600, -1)) < 1e-6


CLUSTERS = [
    (131, (4,) * 8),
    (700, (16,) * 4),
    (100, (16, 16, 4, 4, 8, 2)),
    (70, (64,) * 3),
    (100, (4,) * 9),
    (101, (4, 16, 64, 8, 8)),
    (300, (32,) * 3),
    (70, (4, 8, 2, 16, 32)),
]


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize(("rows", "extents"), CLUSTERS)
def test_whole_rows_by_clusters(rows, extents, dtype, monkeypatch):
    """Rows that lie apart, factors in either order, several rows to a cluster; unaligned rows by others."""
    count = taken_where_aligned(monkeypatch, "cluster", rows, extents, dtype)
    assert count or torch.cuda.get_device_capability() != (9, 0) or (dtype == "f16" and min(extents) < 16)


@pytest.mark.parametrize(("extent", "count"), [(16, 4), (32, 3), (64, 3)])
def test_rows_of_any_size_by_clusters(extent, count):
    torch.manual_seed(0)
    factors = [torch.randn(extent, extent, device="cuda") / math.sqrt(extent) for _ in range(count)]
    check_rows_of_any_size(torch.randn(300, extent ** (count - 2), extent**2, device="cuda"), factors)
