"""Kronecker-sparse products against the dense matrix in float64: every pattern, batch, layout and type."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
import torch

import kernmantle as km
from kernmantle import errors
from kernmantle.kronsparse import KSPattern, kron_sparse_matmul
from kernmantle.structured.kronsparse.matmul import CHOICES, STORED
from kernmantle.structured.mode_product.cost import quickest
from kernmantle.structured.mode_product.torch_products import GRADIENTS, MADE, OWN, block_rows, sparse_rows
from kernmantle.testing import assert_close

DTYPES = {"f64": torch.float64, "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
BATCHES = (0, 1, 2, 3, 7, 16, 33, 64, 127, 128, 129)
EXTENTS = (1, 2, 3, 4, 5, 7, 8, 11, 13, 16, 17, 24, 32, 33, 48, 64, 67)
SWEEP = [range(80), pytest.param(range(80, 260), marks=pytest.mark.exhaustive)]
LARGEST = 60_000
ACTIVATIONS = {
    None: lambda value: value, "relu": torch.relu, "gelu": torch.nn.functional.gelu, "silu": torch.nn.functional.silu,
}  # fmt: skip


def dense(weight):
    """The matrix, entry by entry."""
    a, b, c, d = weight.shape
    matrix = np.zeros((a * b * d, a * c * d))
    for i, j, k, l in itertools.product(range(a), range(b), range(c), range(d)):
        matrix[i * b * d + j * d + l, i * c * d + k * d + l] = weight[i, j, k, l]
    return torch.from_numpy(matrix)


def exact(x, weight, bias=None, activation=None, batch_last=False):
    """Result and magnitude of its terms, in float64."""
    rows, matrix = x.double().cpu(), KSPattern(*weight.shape).to_dense(weight.double().cpu())
    rows = rows.T if batch_last else rows
    product, terms = rows @ matrix.T, rows.abs() @ matrix.abs().T
    if bias is not None:
        product, terms = product + bias.double().cpu(), terms + bias.double().cpu().abs()
    product = ACTIVATIONS[activation](product)
    return (product.T, terms.T) if batch_last else (product, terms)


def case(seed, dtype, device, batch_last=False):
    """A random pattern, batch and operands."""
    draw = random.Random(seed)
    while True:
        pattern = (draw.choice((1, 1, 2, 3, 5)), *draw.choices(EXTENTS, k=2), draw.choice((1, 1, 2, 3, 4, 8, 17, 32)))
        if draw.random() < 0.15:
            pattern = (draw.choice((1, 4, 7)), 2, 2, draw.choice((1, 2, 16)))
        batch = draw.choice(BATCHES)
        if max(batch, 1) * np.prod(pattern) <= LARGEST:
            break
    source = torch.Generator().manual_seed(seed)
    a, b, c, d = pattern
    shape = (a * c * d, batch) if batch_last else (batch, a * c * d)
    x = torch.randn(shape, generator=source, dtype=torch.float64).to(device, dtype)
    weight = torch.randn(pattern, generator=source, dtype=torch.float64).to(device, dtype)
    bias = torch.randn(a * b * d, generator=source, dtype=torch.float64).to(device, dtype)
    return x, weight, bias


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (2, 3, 4, 5), (1, 2, 2, 4), (3, 1, 5, 2)], ids=str)
def test_the_matrix_entry_by_entry(shape):
    weight = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    matrix = KSPattern(*shape).to_dense(weight)
    assert torch.equal(matrix, dense(weight))
    assert torch.equal(KSPattern(*shape).mask(), dense(weight) != 0)
    assert torch.equal(KSPattern(*shape).from_dense(matrix), weight)
    noise = torch.ones_like(matrix).masked_fill(KSPattern(*shape).mask(), 0)
    assert torch.equal(KSPattern(*shape).from_dense(matrix + noise), weight)


@pytest.mark.parametrize("batch_last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("seeds", SWEEP, ids=["some", "rest"])
def test_sweep(dtype, batch_last, seeds):
    for seed in seeds:
        x, weight, bias = case(seed, DTYPES[dtype], "cpu", batch_last)
        found = kron_sparse_matmul(x, weight, bias=bias, batch_last=batch_last, algorithm="kernel")
        wanted, terms = exact(x, weight, bias, None, batch_last)
        assert_close(found, wanted, depth=weight.shape[2], magnitude=terms)


@pytest.mark.parametrize("algorithm", CHOICES)
@pytest.mark.parametrize("batch_last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("shape", [(1, 6, 4, 1), (2, 3, 5, 4), (3, 4, 4, 2)], ids=str)
def test_algorithms(algorithm, batch_last, shape):
    source = torch.Generator().manual_seed(1)
    pattern = KSPattern(*shape)
    weight = torch.randn(shape, generator=source)
    x = torch.randn((pattern.in_features, 9) if batch_last else (9, pattern.in_features), generator=source)
    bias = torch.randn(pattern.out_features, generator=source)
    options = {"bias": bias, "activation": "gelu", "batch_last": batch_last}
    wanted, terms = exact(x, weight, **options)
    found = kron_sparse_matmul(x, weight, algorithm=algorithm, **options)
    assert_close(found, wanted, depth=pattern.c, magnitude=terms)
    out = torch.full_like(found, float("nan"))
    assert kron_sparse_matmul(x, weight, algorithm=algorithm, out=out, **options) is out
    assert_close(out, wanted, depth=pattern.c, magnitude=terms)


@pytest.mark.parametrize("shape", [(1, 6, 6, 4), (1, 3, 9, 1), (2, 4, 4, 3)])
def test_block_sparse_rows_lie_together(shape):
    """On GPUs torch multiplies by no others."""
    weight = torch.randn((2, *shape), generator=torch.Generator().manual_seed(1))
    for matrix in block_rows(weight):
        assert matrix.values().is_contiguous()


@pytest.mark.parametrize("shape", [(1, 64, 1, 1), (1, 64, 32, 1), (64, 3, 1, 1), (1, 3, 5, 1), (2, 3, 1, 4)], ids=str)
@pytest.mark.parametrize("make", [sparse_rows, block_rows])
def test_sparse_matrices_are_in_one_piece(make, shape):
    """On GPUs torch passes the addresses of values and indices on: an expanded index was read behind its memory."""
    memory = torch.randn((2, *shape, 3), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    expanded = (memory[:1, :, :1, :1, :1, 1], memory[:1, :1, :1, :1, :1, 0])
    for weight in (memory[..., 1], *(own.expand(2, *shape) for own in expanded)):
        wanted = MADE["dense"](weight)
        for matrix, own in zip(make(weight), wanted, strict=True):
            for part in (matrix.crow_indices(), matrix.col_indices(), matrix.values()):
                assert part.is_contiguous()
            assert matrix.crow_indices()[-1] == len(matrix.col_indices()) == len(matrix.values())
            if make is sparse_rows:
                assert torch.equal(matrix.to_dense(), own)


class Failing:
    """A sparse matrix of which a product fails."""

    def __init__(self, error: RuntimeError) -> None:
        self.error = error

    def __matmul__(self, other):
        raise self.error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (RuntimeError("addmm: unsupported"), errors.BackendError),
        (torch.OutOfMemoryError("out of memory"), torch.OutOfMemoryError),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), RuntimeError),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), RuntimeError),
    ],
)
def test_errors_of_sparse_products(error, expected):
    with pytest.raises(expected) as found:
        OWN["sparse"](torch.ones(1, 2, 3), torch.ones(1, 1, 3, 3, 1), [Failing(error)])
    assert type(found.value) is expected


@pytest.mark.parametrize("dtype", ["f64", "f32"])
@pytest.mark.parametrize("batch_last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("shape", [(1, 2, 2, 5), (3, 2, 4, 1), (2, 4, 1, 3), (2, 1, 1, 2)], ids=str)
def test_entry_by_entry_of_the_blocks(shape, batch_last, dtype):
    source, (a, b, c, d) = torch.Generator().manual_seed(4), shape
    for count, of_weight in itertools.product((1, 9), (1, 2)):
        x, y = (torch.randn((2, a * m * d, count), generator=source).to(DTYPES[dtype]).mT for m in (c, b))
        x, y = (side if batch_last else side.contiguous() for side in (x, y))
        weight = torch.randn((of_weight, *shape), generator=source).to(DTYPES[dtype])
        found, summed = OWN["entries"](x, weight), GRADIENTS["entries"](x, y, *shape)
        blocks = [side.double().reshape(2, count, a, m, d) for side, m in ((x, c), (y, b))]
        terms = torch.einsum("gnikl,gnijl->gijkl", *(side.abs() for side in blocks))
        assert_close(summed, torch.einsum("gnikl,gnijl->gijkl", *blocks), depth=count, magnitude=terms)
        for group in range(2):
            wanted, terms = exact(x[group], weight[min(group, of_weight - 1)])
            assert_close(found[group], wanted, depth=c, magnitude=terms)


# Microseconds of one core of an AMD EPYC (znver5): pattern, batch, type, is it last in memory; of each algorithm.
MEASURED = (
    ((2, 48, 192, 1), 1568, "f32", False, (239, 584)), ((6, 64, 64, 1), 1568, "f32", True, (311, 718)),
    ((512, 2, 2, 1), 1568, "f32", True, (206, 387)), ((1, 48, 48, 4), 1568, "f32", True, (125, 313)),
    ((1, 768, 192, 2), 1, "f32", False, (20, 107)), ((1, 512, 512, 4), 1, "f32", False, (48, 327)),
    ((1, 512, 512, 4), 1568, "f32", True, (15155, 30960)), ((4, 96, 96, 4), 1568, "f32", False, (2201, 8865)),
    ((1, 2, 2, 512), 1568, "f32", False, (303, 11161, 394)), ((512, 2, 2, 1), 1568, "f32", False, (274, 5496, 1508)),
    ((512, 2, 2, 1), 1, "f32", False, (7, 14, 28)), ((1, 384, 96, 64), 1, "f32", False, (116, 3377)),
    ((1, 128, 128, 3), 1568, "f32", False, (764, 1905)), ((1, 192, 48, 2), 1568, "f32", False, (241, 788)),
    ((1, 1024, 1024, 4), 1568, "f32", False, (57675, 141575)), ((31, 1, 1, 21), 69, "f32", False, (18, 141, 21)),
    ((42, 8, 145, 1), 11, "bf16", False, (25, 43)), ((5, 73, 304, 1), 2599, "bf16", True, (1712, 2063)),
    ((11, 20, 4, 1), 222, "bf16", False, (13, 42)), ((1, 20, 10, 3), 124, "bf16", True, (10, 29)),
    ((10, 12, 5, 4), 1000, "f16", False, (62, 8346)), ((50, 64, 64, 1), 64, "f16", True, (126, 4261)),
)  # fmt: skip


@pytest.mark.parametrize(("pattern", "count", "dtype", "last", "taken"), MEASURED, ids=str)
def test_the_model_of_cost_chooses_as_measurements_do_on_a_cpu(pattern, count, dtype, last, taken):
    chosen, _ = quickest(pattern, count, dtype, "cpu", last)
    assert taken[("kernel", "bmm", "entries").index(chosen)] <= 1.15 * min(taken)


def test_backends(backend, device):
    for seed in range(12):
        x, weight, bias = case(seed, torch.float32, device)
        activation = [*ACTIVATIONS][seed % len(ACTIVATIONS)]
        found = kron_sparse_matmul(x, weight, bias=bias, activation=activation, algorithm="kernel")
        wanted, terms = exact(x, weight, bias, activation)
        assert_close(found, wanted, depth=weight.shape[2], magnitude=terms)


@pytest.mark.parametrize("batch_last", [False, True], ids=["first", "last"])
def test_batch_axes_and_strides(batch_last):
    source = torch.Generator().manual_seed(2)
    weight = torch.randn(3, 4, 2, 5, generator=source).transpose(1, 2)
    features = 3 * 4 * 5
    x = torch.randn(2, 7, 3, features, generator=source)
    for view in (x, x[:, ::2], x.transpose(0, 2), x[..., None, :, :].expand(2, 7, 4, 3, features), x[0, 0, 0]):
        shaped = view.movedim(-1, 0) if batch_last else view
        found = kron_sparse_matmul(shaped, weight, batch_last=batch_last)
        wanted, terms = exact(view.reshape(-1, features), weight)
        found = found.movedim(0, -1) if batch_last else found
        assert found.shape == (*view.shape[:-1], 30)
        assert_close(found.reshape(-1, 30), wanted, depth=4, magnitude=terms)
    scattered = torch.randn(features, 11, generator=source).T
    assert_close(kron_sparse_matmul(scattered, weight), exact(scattered, weight)[0], depth=4)
    misaligned = torch.randn(11 * features + 1, generator=source)[1:].view(11, features)
    assert_close(kron_sparse_matmul(misaligned, weight), exact(misaligned, weight)[0], depth=4)


def test_out_of_any_layout():
    x, weight = torch.randn(4, 6, 12), torch.randn(2, 5, 3, 2)
    wanted = kron_sparse_matmul(x, weight)
    for out in (
        torch.empty(4, 6, 20), torch.empty(20, 6, 4).permute(2, 1, 0), torch.empty(6, 4, 20).transpose(0, 1),
        torch.empty(4, 6, 41)[..., ::2][..., :20],
    ):  # fmt: skip
        version = out._version
        assert kron_sparse_matmul(x, weight, out=out) is out
        assert_close(out, wanted, depth=3)
        assert out._version > version
    last = torch.empty(20, 4, 6)
    kron_sparse_matmul(x.movedim(-1, 0), weight, batch_last=True, out=last)
    assert_close(last.movedim(0, -1), wanted, depth=3)


def test_chain_of_weights():
    source = torch.Generator().manual_seed(3)
    first, second = torch.randn(6, 8, 4, 1, generator=source), torch.randn(1, 10, 24, 2, generator=source)
    x, bias = torch.randn(5, 24, generator=source), torch.randn(20, generator=source)
    inner, terms = exact(x, first)
    matrix = KSPattern(1, 10, 24, 2).to_dense(second.double())
    wanted = torch.relu(inner @ matrix.T + bias)
    found = kron_sparse_matmul(x, [first, second], bias=bias, activation="relu")
    assert_close(found, wanted, depth=28, magnitude=terms @ matrix.abs().T + bias.abs())
    out = torch.empty(5, 20)
    assert torch.equal(kron_sparse_matmul(x, (first, second), bias=bias, activation="relu", out=out), found)
    patterns = [(6, 8, 4, 1), (1, 10, 24, 2)]
    assert torch.equal(kron_sparse_matmul(x, [first, second], patterns, bias=bias, activation="relu"), found)


def test_nan_and_infinity_stay_in_their_rows_and_blocks():
    x, weight = torch.ones(6, 2 * 3 * 2), torch.ones(2, 2, 3, 2)
    x[1, 0], x[2, 7], x[3, 4] = float("nan"), float("inf"), float("-inf")
    wanted = torch.einsum("nikl,ijkl->nijl", x.view(6, 2, 3, 2).double(), weight.double()).reshape(6, 8)
    assert wanted.isfinite().sum() == 6 * 8 - 3 * 2
    for algorithm in ("kernel", "bmm"):
        assert_close(kron_sparse_matmul(x, weight, algorithm=algorithm), wanted, depth=3)
    weight[1, 0, 2, 1] = float("nan")
    found = kron_sparse_matmul(x, weight)
    assert found[:, 5].isnan().all()
    assert found.isnan().sum() == 6 + 2


@pytest.mark.parametrize("stored", STORED, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_float8_weights(stored, dtype):
    weight = torch.randn(2, 5, 4, 3).to(stored)
    x = torch.randn(7, 24).to(dtype).requires_grad_()
    found = kron_sparse_matmul(x, weight)
    assert found.dtype == dtype
    wanted, terms = exact(x.detach(), weight.to(dtype))
    assert_close(found.detach(), wanted, depth=4, magnitude=terms)
    found.sum().backward()
    ones, _ = exact(torch.ones(7, 30), weight.float().transpose(1, 2))
    assert_close(x.grad, ones, dtype=dtype, depth=5, magnitude=30)


def test_numpy_in_numpy_out():
    x, weight = np.random.default_rng(0).normal(size=(3, 6)), np.ones((1, 2, 3, 2))
    found = kron_sparse_matmul(x, weight)
    assert isinstance(found, np.ndarray)
    assert_close(found, exact(torch.from_numpy(x), torch.from_numpy(weight))[0], depth=3)


def test_autocast():
    x, weight, bias = torch.randn(4, 12), torch.randn(2, 5, 3, 2, requires_grad=True), torch.randn(20)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = kron_sparse_matmul(x, weight, bias=bias)
        assert kron_sparse_matmul(x.double(), weight.double()).dtype == torch.float64
    assert found.dtype == torch.bfloat16
    rounded = [value.detach().bfloat16() for value in (x, weight, bias)]
    wanted, terms = exact(rounded[0], rounded[1], rounded[2])
    assert_close(found.detach(), wanted, depth=3, magnitude=terms)
    found.sum().backward()
    assert weight.grad.dtype == torch.float32


BAD = [
    (errors.ShapeError, "11 features on the last axis.*a c d = 12", {"x": torch.ones(4, 11)}),
    (errors.ShapeError, "first axis", {"x": torch.ones(4, 12), "batch_last": True}),
    (errors.ShapeError, "four axes", {"weight": torch.ones(5, 3, 2)}),
    (errors.ShapeError, "its pattern is", {"pattern": (2, 5, 2, 3)}),
    (errors.ParameterError, "b of the pattern .* positive integer", {"pattern": (2, 0, 3, 2)}),
    (errors.ParameterError, "d of the pattern .* positive integer", {"pattern": (2, 5, 3, -2)}),
    (errors.ParameterError, "four entries", {"pattern": (2, 5, 3)}),
    (errors.ShapeError, "bias has shape", {"bias": torch.ones(19)}),
    (errors.DtypeError, "x is float32 but weight is float64", {"weight": torch.ones(2, 5, 3, 2).double()}),
    (errors.DtypeError, "x is int64", {"x": torch.ones(4, 12).long(), "weight": torch.ones(2, 5, 3, 2).long()}),
    (errors.DtypeError, "x is float8", {"x": torch.ones(4, 12).to(torch.float8_e5m2)}),
    (errors.DtypeError, "bias is float8", {"bias": torch.ones(20).to(torch.float8_e5m2)}),
    (errors.DtypeError, "x must be a torch tensor", {"x": "ones"}),
    (errors.DtypeError, "stored as float8_e4m3fn or", {"weight": torch.ones(2, 5, 3, 2).to(torch.float8_e4m3fnuz)}),
    (errors.ParameterError, "a chain of one is", {"weight": [torch.ones(2, 5, 3, 2)], "pattern": (2, 5, 3, 2)}),
    (errors.ParameterError, "activation must be", {"activation": "tanh"}),
    (errors.ParameterError, "activation must be", {"activation": ["relu"]}),
    (errors.ParameterError, "algorithm must be", {"algorithm": "fast"}),
    (errors.ParameterError, "precision must be", {"precision": "high"}),
    (errors.OutputError, "out has shape", {"out": torch.empty(4, 19)}),
    (errors.OutputError, "out has dtype", {"out": torch.empty(4, 20).double()}),
    (errors.GradientError, "out=", {"out": torch.empty(4, 20), "bias": torch.ones(20, requires_grad=True)}),
    (errors.ShapeError, "single number", {"x": torch.ones(())}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("error", "message", "changes"), BAD, ids=lambda value: value if isinstance(value, str) else ""
)
def test_bad_input(error, message, changes):
    given = {"x": torch.ones(4, 12), "weight": torch.ones(2, 5, 3, 2)} | changes
    with pytest.raises(error, match=message):
        kron_sparse_matmul(given.pop("x"), given.pop("weight"), given.pop("pattern", None), **given)


def test_chains_that_do_not_chain():
    with pytest.raises(errors.ShapeError, match=r"a b d = 20 features.*a c d = 18"):
        kron_sparse_matmul(torch.ones(4, 12), [torch.ones(2, 5, 3, 2), torch.ones(3, 2, 6, 1)])
    with pytest.raises(errors.ShapeError, match="2 patterns but 1 weights"):
        kron_sparse_matmul(torch.ones(4, 12), [torch.ones(2, 5, 3, 2)], [(2, 5, 3, 2), (1, 1, 20, 1)])
    with pytest.raises(errors.ParameterError, match="at least one"):
        kron_sparse_matmul(torch.ones(4, 12), [])
    weight = torch.ones(2, 5, 3, 2).to(torch.float8_e5m2).requires_grad_()
    with pytest.raises(errors.GradientError, match="storage"):
        kron_sparse_matmul(torch.ones(4, 12), weight)


def test_the_parameters_of_a_layer_are_a_chain():
    layer = km.KSLinear(12, 6, [(2, 5, 3, 2), (1, 6, 20, 1)], bias=False)
    x = torch.randn(4, 12)
    found = kron_sparse_matmul(x, layer.weights, layer.patterns)
    assert_close(found.detach(), layer(x).detach(), depth=20)
    assert found.requires_grad


def test_out_overlapping_an_operand():
    memory = torch.ones(4, 32)
    with pytest.raises(errors.OutputError, match="overlaps"):
        kron_sparse_matmul(memory[:, :12], torch.ones(2, 5, 3, 2), out=memory[:, 10:30])


def test_a_device_without_an_engine():
    x, weight = torch.ones(3, 8, device="meta"), torch.ones(1, 2, 8, 1, device="meta")
    with pytest.raises(errors.DeviceError, match="no kernels for tensors on meta"):
        kron_sparse_matmul(x, weight)


@pytest.mark.parametrize("batch_last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_halves_are_multiplied_where_they_lie(dtype, batch_last):
    """Few rows in a bound call and many; strided ones, and packed weights."""
    source = torch.Generator().manual_seed(0)
    pattern = (3, 20, 24, 5)
    layer = km.KSLinear(360, 300, [pattern], batch_last=batch_last, algorithm="kernel").to(dtype).requires_grad_(False)
    packed = layer.pack()
    for count in (1, 7, 3000):
        x = torch.randn(count, 720, generator=source).to(dtype)[:, ::2]
        for view in (x, x.contiguous()):
            shaped = view.mT if batch_last else view
            for call in (layer, packed, layer):
                found = call(shaped, "gelu")
                assert call.info.startswith("llvm")
                wanted, terms = exact(view, layer.weights[0], layer.bias, "gelu")
                assert_close(found.mT if batch_last else found, wanted, depth=24, magnitude=terms)
    found = torch.func.vmap(layer)(torch.randn(2, *((360, 9) if batch_last else (9, 360)), generator=source).to(dtype))
    assert found.dtype == dtype
