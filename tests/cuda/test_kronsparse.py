"""Kronecker-sparse products on the GPU against float64: every kind of tile, and thousands of random cases."""

from __future__ import annotations

import copy
import itertools
import random
from functools import partial
from typing import Any

import pytest
import torch

import kernmantle as km
from kernmantle.kronsparse import kron_sparse_matmul
from kernmantle.runtime.kernel_store import compile_only
from kernmantle.structured.mode_product import execute
from kernmantle.structured.mode_product.operands import Operands, empty
from kernmantle.testing import assert_close
from kernmantle.torch_ops.info import RunInfo

from .harness import Machine
from .kronsparse_harness import (
    GradientCase,
    KronSparseCase,
    TurnCase,
    cases,
    check,
    check_gradient,
    check_turn,
    gradient_cases,
    run,
    run_gradient,
    run_turn,
    turn_cases,
)

pytestmark = pytest.mark.cuda

BATCHES = (0, 1, 2, 16, 127, 128, 129)
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
PRIMES = (2, 3, 5, 7, 11, 13, 17, 31, 37, 61, 67, 101)
EXTENTS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192)
DEPTHS = (1, 1, 2, 3, 4, 5, 8, 16, 33)
FIXED = (
    (4, 2, 2, 1),
    (1, 2, 2, 64),
    (7, 2, 2, 3),
    (1, 1, 1, 1),
    (1, 257, 131, 1),
    (6, 64, 64, 1),
    (1, 96, 48, 2),
    (1, 64, 64, 16),
)
LARGEST = 300_000


def patterns(count: int) -> list[tuple[int, int, int, int]]:
    """The fixed patterns and random ones, half of them of primes."""
    draw, found = random.Random(0), list(FIXED)
    while len(found) < count:
        sizes = PRIMES if len(found) % 2 else EXTENTS
        pattern = draw.choice((1, 1, 2, 3, 5)), draw.choice(sizes), draw.choice(sizes), draw.choice(DEPTHS)
        if pattern[0] * pattern[1] * pattern[2] * pattern[3] <= LARGEST and pattern not in found:
            found.append(pattern)
    return found


def operands(pattern, batch, dtype, last, seed=0):
    """x, weight and bias on the GPU."""
    a, b, c, d = pattern
    source = torch.Generator("cuda").manual_seed(seed)

    def draw(*shape):
        return torch.randn(shape, generator=source, device="cuda").to(dtype)

    return draw(*((a * c * d, batch) if last else (batch, a * c * d))), draw(*pattern), draw(a * b * d)


def exact(x, weight, bias, last):
    """Result and magnitude of its terms in float64."""
    a, b, c, d = weight.shape
    rows = (x.T if last else x).double().reshape(-1, a, c, d)
    wanted, terms = (
        torch.einsum("nikl,ijkl->nijl", rows_of, weight_of).reshape(-1, a * b * d) + bias_of
        for rows_of, weight_of, bias_of in (
            (rows, weight.double(), bias.double()), (rows.abs(), weight.double().abs(), bias.double().abs()),
        )
    )  # fmt: skip
    return (wanted.T, terms.T) if last else (wanted, terms)


def exact_of_layer(layer, x, last):
    """Result of a layer of two factors and magnitude of its terms in float64."""
    first, second = layer.weights
    between, sizes = exact(x, first, first.new_zeros(()), last)
    return exact(between, second, layer.bias, last)[0], exact(sizes, second, layer.bias, last)[1]


@pytest.mark.parametrize("case", list(cases()), ids=lambda case: case.name)
def test_every_kind_of_tile(case: KronSparseCase) -> None:
    check(case, run(Machine(), case))


def test_the_comparison_can_fail() -> None:
    case = next(iter(cases()))
    found = run(Machine(), case)
    found.flat[0] += 1
    with pytest.raises(AssertionError):
        check(case, found)


@pytest.mark.parametrize("case", list(gradient_cases()), ids=lambda case: case.name)
def test_gradients_of_every_kind_of_tile(case: GradientCase) -> None:
    check_gradient(case, run_gradient(Machine(), case))


@pytest.mark.parametrize("case", list(turn_cases()), ids=lambda case: case.name)
def test_turned_rows(case: TurnCase) -> None:
    check_turn(case, run_turn(Machine(), case))


@pytest.mark.parametrize(
    ("pattern", "dtype"),
    [((2, 64, 32, 8), torch.float32), ((3, 16, 24, 8), torch.float16), ((1, 72, 8, 40), torch.bfloat16)],
    ids=str,
)
def test_products_over_turned_rows(pattern, dtype) -> None:
    for batch in (1, 129, 700):
        x, weight, bias = operands(pattern, batch, dtype, False)
        info = RunInfo()
        found = execute.product_by("transposed", Operands(x[None], weight[None], bias[None]), None, info)[0]
        assert info.route.startswith("transposed rows: ")
        wanted, terms = exact(x, weight, bias, False)
        rounded = 2 * terms * torch.finfo(dtype).eps  # of the sums, before the bias is added to them
        assert_close(found, wanted, depth=pattern[2], magnitude=terms + rounded)


@pytest.mark.parametrize("dtype", DTYPES[:3], ids=str)
@pytest.mark.parametrize("pattern", [(2, 64, 32, 8), (3, 17, 24, 9), (1, 72, 8, 40), (1, 128, 128, 32)], ids=str)
def test_gradients_over_turned_rows(pattern, dtype) -> None:
    a, b, c, d = pattern
    for batch in (1, 129, 700):
        x = operands(pattern, batch, dtype, False)[0]
        grad = torch.randn(batch, a * b * d, device="cuda").to(dtype)
        found = execute.gradient(x[None], grad[None], pattern, "transposed", "")[0]
        sides = x.double().reshape(-1, a, c, d), grad.double().reshape(-1, a, b, d)
        wanted, terms = (torch.einsum("nikl,nijl->ijkl", *own) for own in (sides, [side.abs() for side in sides]))
        assert_close(found, wanted, depth=batch, magnitude=terms)


@pytest.mark.parametrize(
    ("pattern", "last"),
    [((1, 48, 40, 6), True), ((3, 20, 24, 5), True), ((5, 16, 24, 1), False), ((40, 8, 8, 32), True)],
    ids=str,
)
def test_batched_products_are_written_where_they_lie(pattern, last) -> None:
    for dtype, batch in itertools.product(DTYPES, (1, 129)):
        x, weight, bias = operands(pattern, batch, dtype, last)
        found = kron_sparse_matmul(x, weight, batch_last=last, algorithm="bmm")
        wanted, terms = exact(x, weight, torch.zeros_like(bias), last)
        assert_close(found, wanted, depth=pattern[2], magnitude=terms)


def test_gradients_of_random_patterns() -> None:
    def call(x, grad, pattern):
        return execute.gradient(x, grad, pattern, "kernel", "")

    for pattern, dtype, last, batch in itertools.product(patterns(24), DTYPES[:3], (False, True), (1, 127, 700)):
        a, b, c, d = pattern
        x = operands(pattern, batch, dtype, last)[0]
        rows = (x.T if last else x)[None]
        grad = torch.randn(batch, a * b * d, device="cuda").to(dtype)
        found = call(rows, grad[None] if last else grad.T.contiguous().T[None], pattern)[0]
        wide, slope = rows[0].double().reshape(-1, a, c, d), grad.double().reshape(-1, a, b, d)
        wanted, terms = (
            torch.einsum("nikl,nijl->ijkl", left, right) for left, right in ((wide, slope), (wide.abs(), slope.abs()))
        )
        assert_close(found, wanted, depth=len(wide), magnitude=terms)


@pytest.mark.slow
def test_random_cases() -> None:
    def call(x, weight, bias, last):
        return kron_sparse_matmul(x, weight, bias=bias, batch_last=last, algorithm="kernel")

    drawn = [
        (*operands(pattern, batch, dtype, last, seed=batch), last)
        for pattern, dtype, last, batch in itertools.product(patterns(44), DTYPES, (False, True), BATCHES)
    ]
    assert len(drawn) >= 2000
    km.precompile([partial(call, *given) for given in drawn])
    for x, weight, bias, last in drawn:
        wanted, terms = exact(x, weight, bias, last)
        try:
            assert_close(call(x, weight, bias, last), wanted, depth=weight.shape[2], magnitude=terms)
        except AssertionError as error:
            message = (
                f"{tuple(weight.shape)} of {tuple(x.shape)} {x.dtype}, batch {'last' if last else 'first'}: {error}"
            )
            raise AssertionError(message) from error


@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("dtype", DTYPES[:3], ids=str)
@pytest.mark.parametrize("pattern", [(3, 17, 40, 2), (6, 64, 64, 1), (1, 33, 20, 8), (2, 2, 2, 5)], ids=str)
def test_gradients(pattern, dtype, last) -> None:
    batch = 300
    x, weight, bias = (value.requires_grad_() for value in operands(pattern, batch, dtype, last))
    found = kron_sparse_matmul(x, weight, bias=bias, batch_last=last, algorithm="kernel")
    grad = torch.randn_like(found)
    of_x, of_weight, of_bias = torch.autograd.grad(found, [x, weight, bias], grad)
    wide = [value.detach().double().requires_grad_() for value in (x, weight, bias)]
    wanted = torch.autograd.grad(exact(*wide, last)[0], wide, grad.double())
    sizes = [value.detach().abs().double().requires_grad_() for value in (x, weight, bias)]
    terms = torch.autograd.grad(exact(*sizes, last)[0], sizes, grad.double().abs())
    depths = (pattern[1], batch, batch)
    for own, right, term, depth in zip((of_x, of_weight, of_bias), wanted, terms, depths, strict=True):
        assert_close(own, right, dtype=dtype, depth=depth, magnitude=term)


@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("pattern", [(2, 48, 40, 1), (2, 24, 20, 16)], ids=str)
def test_infinities_and_nan_stay_where_they_are(pattern, last) -> None:
    x, weight, bias = operands(pattern, 70, torch.float32, last)
    rows = x.T if last else x
    rows[3, 5], rows[17, 41], rows[64, 0] = float("inf"), float("nan"), float("-inf")
    weight[1, 7, 3, 0] = float("nan")
    found = kron_sparse_matmul(x, weight, bias=bias, batch_last=last, algorithm="kernel")
    assert_close(found, exact(x, weight, bias, last)[0], depth=40)


@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
def test_misaligned_and_strided_operands(dtype) -> None:
    pattern, batch = (2, 40, 24, 2), 130
    x, weight, bias = operands(pattern, batch, dtype, False)
    wanted, terms = exact(x, weight, bias, False)
    wide = torch.empty(batch, 3 * x.shape[1] + 1, device="cuda", dtype=dtype)
    turned = weight.permute(3, 1, 0, 2).contiguous().permute(2, 1, 3, 0)
    for offset in (0, 1, 2, 7):
        view = wide[:, offset : offset + x.shape[1]]
        view.copy_(x)
        out = torch.empty(batch, bias.numel() + offset, device="cuda", dtype=dtype)[:, offset:]
        kron_sparse_matmul(view, turned, bias=bias, algorithm="kernel", out=out)
        assert_close(out, wanted, depth=pattern[2], magnitude=terms)
    scattered = wide[:, ::3][:, : x.shape[1]]
    scattered.copy_(x)
    assert_close(
        kron_sparse_matmul(scattered, weight, bias=bias, algorithm="kernel"), wanted, depth=24, magnitude=terms
    )


def route(x, weight, algorithm, precision) -> str:
    """What a product runs as."""
    info = RunInfo()
    execute.product(Operands(x[None], weight[None], precision=precision), algorithm, info=info)
    return info.route


def test_tensor_cores_run_and_can_be_refused() -> None:
    x, weight, _ = operands((6, 64, 64, 1), 1024, torch.float32, False)
    assert "3 x f16" in route(x, weight, "kernel", "")
    assert "f16" not in route(x, weight, "kernel", "ieee")


def test_in_a_graph() -> None:
    layer = km.KSLinear(384, 1536, [(6, 64, 64, 1), (1, 768, 192, 2)], device="cuda", algorithm="kernel")
    x = torch.randn(200, 384, device="cuda")
    with torch.no_grad():
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            layer(x)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = layer(x)
        x.normal_()
        graph.replay()
        assert torch.equal(found, layer(x))


@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
@pytest.mark.parametrize("batch", [5, 3000])
def test_graphed_callables_train(batch, dtype) -> None:
    torch.manual_seed(0)
    layer = km.KSLinear(384, 1536, [(6, 64, 64, 1), (1, 768, 192, 2)], device="cuda", dtype=dtype)
    twin = copy.deepcopy(layer).double()
    sample = torch.randn(batch, 384, device="cuda", dtype=dtype, requires_grad=True)
    graphed: Any = torch.cuda.make_graphed_callables(layer, (sample,))
    near = {torch.float32: 1e-5, torch.bfloat16: 1e-2}[dtype]
    for _ in range(2):
        x = torch.randn(batch, 384, device="cuda", dtype=dtype, requires_grad=True)
        other = x.detach().double().requires_grad_()
        slope = torch.randn(batch, 1536, device="cuda", dtype=dtype)
        found = torch.autograd.grad(graphed(x), [x, *layer.parameters()], slope)
        wanted = torch.autograd.grad(twin(other), [other, *twin.parameters()], slope.double())
        for own, same in zip(found, wanted, strict=True):
            assert float((own.double() - same).norm() / same.norm()) < near
        with torch.no_grad():
            for own, same in zip(layer.parameters(), twin.parameters(), strict=True):
                own.mul_(0.5)
                same.copy_(own)


def test_weights_that_change_just_before_are_seen() -> None:
    x, weight, _ = operands((2, 64, 64, 2), 512, torch.float32, False)
    for turn in range(20):
        weight.fill_(turn)
        x.fill_(1)
        found = kron_sparse_matmul(x, weight, algorithm="kernel")
        assert bool((found == 64 * turn).all())


@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
@pytest.mark.parametrize("algorithm", ["kernel", "dense"])
def test_packed_layers(algorithm, dtype, last) -> None:
    torch.manual_seed(0)
    chain = [(3, 40, 24, 2), (1, 65, 60, 4)]
    other = km.KSLinear(144, 260, chain, batch_last=last, algorithm=algorithm, device="cuda", dtype=dtype)
    other.requires_grad_(False)
    depth = sum(max(pattern[1:3]) for pattern in chain)

    def agrees(found: torch.Tensor, x: torch.Tensor) -> None:
        wanted, terms = exact_of_layer(other, x, last)
        assert_close(found, wanted, dtype=dtype, depth=depth, magnitude=terms)

    for batch in (1, 70, 513):
        x = torch.randn((144, batch) if last else (batch, 144), device="cuda").to(dtype)
        layer = other.pack()
        for own in (layer, other):  # which may run as different kernels
            agrees(own(x), x)
        graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            layer(x)
        torch.cuda.current_stream().wait_stream(side)
        with torch.cuda.graph(graph):
            found = layer(x)
        x.normal_()
        graph.replay()
        agrees(found, x)
        wanted = layer(x).clone()
        assert torch.equal(found, wanted)
        other.weights[0].mul_(-1)
        graph.replay()
        assert torch.equal(found, wanted)
        assert torch.equal(layer(x), wanted)
        agrees(other.pack()(x), x)


@pytest.mark.parametrize("options", [{"fused": True}, {"foreach": True}, {"capturable": True}], ids=str)
def test_layers_follow_every_optimizer(options) -> None:
    torch.manual_seed(0)
    layer = km.KSLinear(384, 1536, [(6, 64, 64, 1), (1, 768, 192, 2)], device="cuda", algorithm="kernel")
    other, x = copy.deepcopy(layer).train(), torch.randn(70, 384, device="cuda")
    steps = torch.optim.AdamW(layer.parameters(), lr=0.01, **options)
    for _ in range(3):
        other.load_state_dict(layer.state_dict())
        with torch.no_grad():
            assert torch.equal(layer(x), other(x))
            assert torch.equal(layer(x), other(x))
        steps.zero_grad()
        layer(x).square().mean().backward()
        steps.step()


def test_precision_of_a_layer_is_that_of_the_call() -> None:
    with km.config(precision="ieee"):
        layer = km.KSLinear(384, 384, [(6, 64, 64, 1)], device="cuda", algorithm="kernel")
    x = torch.randn(1024, 384, device="cuda")
    with torch.no_grad():
        layer(x)
        assert "3 x f16" in layer.info
        with km.config(precision="ieee"):
            layer(x)
            assert "f16" not in layer.info
        packed = layer.pack()
        for _ in range(2):
            packed(x)
            assert "3 x f16" in packed.info
        with km.config(precision="ieee"):
            packed(x)
            assert "f16" not in packed.info


KSMM = """
from ksmm_py.layer.kronecker_sparse.interface import KSLinear
import torch

# Two factors W = K_1 K_2
patterns = [(6, 64, 64, 1), (1, 768, 192, 2)]
dim_in = patterns[0][0] * patterns[0][2] * patterns[0][3] # a_2 * c_2 * d_2
batch_size = 25088
batch_size_last = True
device='cuda'

x = torch.randn((dim_in, batch_size) if batch_size_last else (batch_size, dim_in),
                dtype=torch.float32, # torch.float16 is fine too
                device=device)
weights = [torch.ones(*pattern) for pattern in patterns]

ksl = KSLinear(patterns=patterns, weights=weights, algo='kernel', dtype=x.dtype, bs_last=batch_size_last, device=device)
y = ksl(x)
ksl = KSLinear(patterns=patterns, weights=weights, algo='dense', dtype=x.dtype, bs_last=batch_size_last, device=device)
z = ksl(x)
print("Relative error between kernel and dense implementation: ",
    torch.linalg.norm(y - z) / torch.linalg.norm(z))
"""


def test_the_program_of_ksmm(capsys) -> None:
    km.compat.install("ksmm_py")
    exec(KSMM, given := {})  # noqa: S102
    assert "Relative error" in capsys.readouterr().out
    assert given["y"].shape == given["z"].shape == (1536, 25088)
    # Each layer draws its own bias, so they differ by that.
    error = torch.linalg.norm(given["y"] - given["z"]) / torch.linalg.norm(given["z"])
    assert float(error) < 1e-2


@pytest.mark.parametrize("pattern", [(6, 64, 64, 1), (1, 64, 48, 8)], ids=str)
def test_every_way_that_is_measured_is_right(pattern, tmp_path, monkeypatch) -> None:
    ran, plain = [], execute.product_by

    def noted(way, own, *rest):
        value = plain(way, own, *rest)
        if not compile_only() and not torch.cuda.is_current_stream_capturing() and way not in ran:
            wanted, terms = exact(own.x[0], own.weight[0], torch.zeros(value.shape[2], device="cuda"), False)
            assert_close(value[0], wanted, depth=pattern[2], magnitude=terms)
            ran.append(way)
        return value

    monkeypatch.setattr(execute, "product_by", noted)
    a, _, c, d = pattern
    with km.config(cache_dir=tmp_path):
        (found,) = km.tune(kron_sparse_matmul, [((600, a * c * d), pattern)])
        assert set(found.seconds) == set(ran)
        assert sum(way.startswith("kernel ") for way in ran) > 3
        assert all(0 < taken < 1 for taken in found.seconds.values())
        ran = route(*operands(pattern, 550, torch.float32, False)[:2], "auto", "")
    assert ran.startswith("torch") != found.best.startswith(("kernel", "transposed"))


@pytest.mark.parametrize("batch_last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("algorithm", ["bsr", "sparse"])
# gcd(b, c) = 1: blocks of one entry, of which CUDA has no block-sparse product. (1, b, 1, 1): one index for all rows.
@pytest.mark.parametrize("pattern", [(1, 5, 16, 3), (1, 64, 1, 1)], ids=str)
def test_rows_of_single_entries(pattern, algorithm: str, dtype: torch.dtype, batch_last: bool) -> None:
    a, _, c, d = pattern
    torch.manual_seed(0)
    weight = torch.randn((*pattern, 3), device="cuda", dtype=dtype)[..., 1]
    for batch in (1, 7, 130):
        rows = torch.randn(batch, a * c * d, device="cuda", dtype=dtype)
        x = rows.T.contiguous() if batch_last else rows
        wanted = torch.einsum("nikl,ijkl->nijl", rows.double().view(batch, a, c, d), weight.double()).flatten(1)
        sizes = torch.einsum("nikl,ijkl->nijl", rows.double().abs().view(batch, a, c, d), weight.double().abs())
        for _ in range(2):
            torch.full((64,), 1 << 40, device="cuda")  # what memory held that is read behind an index
            found = kron_sparse_matmul(x, weight, pattern, algorithm=algorithm, batch_last=batch_last)
            assert_close(found.T if batch_last else found, wanted, dtype=dtype, depth=c, magnitude=sizes.flatten(1))


STREAMED = ((9, 130, 257, 1), (4, 61, 113, 37), (1, 70, 64, 300), (2, 512, 96, 3))


@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("dtype", DTYPES[:3], ids=str)
@pytest.mark.parametrize("pattern", STREAMED, ids=str)
def test_small_batches_read_the_weights_where_they_lie(pattern, dtype, last) -> None:
    """The product, that with the transposed weights, and the gradient of the weights."""
    for batch in (1, 3, 9, 33):
        x, weight, bias = operands(pattern, batch, dtype, last)
        info, rows = RunInfo(), (x.mT if last else x)[None]
        out = empty(rows, bias.numel(), last)
        execute.product_by("kernel", Operands(rows, weight[None], bias[None], batch_last=last), out, info)
        wanted, terms = exact(x, weight, bias, last)
        assert_close(out[0].mT if last else out[0], wanted, depth=pattern[2], magnitude=terms)
        assert batch > 3 or "streamed" in info.route
        turned = weight.transpose(1, 2).contiguous().transpose(1, 2)
        again = execute.product_by("kernel", Operands(rows, turned[None], bias[None], batch_last=last), None, info)
        assert_close(again[0].mT if last else again[0], wanted, depth=pattern[2], magnitude=terms)
        grad = torch.randn_like(out)
        found = execute.gradient(rows, grad, pattern, "kernel", "")[0]
        a, b, c, d = pattern
        sides = rows.double().reshape(-1, a, c, d), grad.double().reshape(-1, a, b, d)
        sums = torch.einsum("nikl,nijl->ijkl", *sides)
        terms = torch.einsum("nikl,nijl->ijkl", *(side.abs() for side in sides))
        assert_close(found, sums, depth=batch, magnitude=terms)
