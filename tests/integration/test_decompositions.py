"""Operators in torch's own operations: exported programs without operators of ours, and what ONNX is given."""

import importlib.util

import numpy as np
import pytest
import torch

import kernmantle as km
from benchmarks.metric_samples import rows
from kernmantle.errors import BackendError
from kernmantle.integrations.export import decompositions
from kernmantle.ir.reductions import REDUCTIONS
from kernmantle.pairwise import KERNELS, METRICS
from kernmantle.pairwise.constructors import make
from kernmantle.testing import assert_close

from ..arrays import Module
from ..cases import sampled

M, N, K = 5, 6, 4


def normal(*shape, seed=0, dtype=torch.float64):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape)).to(dtype)


def foreign(program):
    return [str(node.target) for node in program.graph.nodes if "kernmantle" in str(node.target)]


def agrees(function, *args, depth=K):
    """A call beside its exported program in torch's operations alone."""
    model = function if isinstance(function, torch.nn.Module) else Module(function)
    program = torch.export.export(model, args)
    assert foreign(program) != []
    plain = program.run_decompositions(torch.export.default_decompositions() | decompositions())
    assert foreign(plain) == []
    found, wanted = plain.module()(*args), function(*args)
    for one, other in zip(*([value] if torch.is_tensor(value) else value for value in (found, wanted)), strict=True):
        assert one.shape == other.shape
        assert one.dtype == other.dtype
        assert_close(one.detach(), other.detach(), depth=depth)


@pytest.mark.parametrize("name", sampled(3, sorted(METRICS)))
def test_every_metric(name):
    row = METRICS[name]
    x, y = (rows(row.domain, count, K, seed) for seed, count in enumerate((M, N)))
    options = {option: torch.ones(K, dtype=torch.float64) for option in row.options if option == "V"}
    options |= {option: torch.eye(K, dtype=torch.float64) for option in row.options if option == "VI"}
    agrees(lambda x, y: km.cdist(x, y, metric=name, **options), x, y)


@pytest.mark.parametrize("name", sampled(3, sorted(KERNELS)))
def test_every_kernel(name):
    kernel = make(KERNELS[name], {})
    x, y, v = normal(M, K), normal(N, K, seed=1), normal(N, 2, seed=2)
    agrees(kernel.matmul, x, y, v)


@pytest.mark.parametrize("reduce", sorted(REDUCTIONS))
def test_every_reduction(reduce):
    def mapped(a, b):
        return a < b if reduce in ("any", "all") else a + b

    contraction = km.Contraction("mk,nk->mn", mapped, reduce=reduce)
    agrees(contraction, normal(M, K), normal(N, K, seed=1))
    if reduce in ("sum", "logsumexp", "argmin"):  # one number, several, and a position
        agrees(contraction, normal(3, M, K), normal(N, K, seed=1))
        agrees(lambda a: contraction(a, a), normal(M, K))
    if not reduce.startswith("arg"):
        agrees(km.Contraction("mk,nk->k", mapped, reduce=reduce), normal(M, K), normal(N, K, seed=1), depth=M * N)


@pytest.mark.parametrize("how", ["sum", "max", "logsumexp"])
def test_reductions_of_rows(how):
    kernel = km.Laplace(2.0)
    agrees(getattr(kernel, how), normal(M, K), normal(N, K, seed=1))


def test_nearest_rows():
    x, y = normal(M, K), normal(N, K, seed=1)
    agrees(lambda x, y: km.argkmin(x, y, 3, return_values=True), x, y)
    agrees(lambda x, y: km.Laplace(1.0).argkmax(x, y, 3, return_values=True), x, y)


def test_products_of_matrices_stay_products():
    x, y = normal(2, M, K), normal(N, K, seed=1)
    contraction = km.Contraction("mk,nk->nm", lambda a, b: a * b, epilogue=lambda s: s / 2)
    agrees(contraction, x, y)
    program = torch.export.export(Module(contraction), (x, y))
    plain = program.run_decompositions(torch.export.default_decompositions() | decompositions())
    largest = max(
        node.meta["val"].numel() for node in plain.graph.nodes if isinstance(node.meta.get("val"), torch.Tensor)
    )
    assert largest == 2 * M * N


def test_semirings_and_parameters():
    plus = km.Semiring(lambda a, b: km.where(a > b, a, b), -np.inf)
    agrees(km.Contraction("mk,nk->mn", lambda a, b: a - b, reduce=plus), normal(M, 7), normal(N, 7, seed=1))
    contraction = km.Contraction("mk,nk->mn", lambda a, b, p: abs(a - b) ** p, epilogue=lambda s, p: s ** (1 / p))
    p = torch.tensor([1.5, 2.5], dtype=torch.float64)
    agrees(lambda a, b, p: contraction(a, b, p=p), normal(2, M, K), normal(N, K, seed=1), p)
    agrees(lambda a, b: contraction(a, b, p=1.5), normal(M, K), normal(N, K, seed=1))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_halves_are_computed_in_float32(dtype):
    x, y = normal(M, 300, dtype=dtype), normal(N, 300, seed=1, dtype=dtype)
    agrees(lambda x, y: km.cdist(x, y, p=1), x, y, depth=300)
    factors = normal(4, 3, dtype=dtype), normal(5, 6, seed=1, dtype=dtype)
    agrees(lambda x, *factors: km.kron_matmul(x, factors), normal(M, 20, dtype=dtype), *factors, depth=20)


@pytest.mark.parametrize("side", ["right", "left"])
def test_kronecker_products(side):
    factors = normal(4, 3), normal(5, 6, seed=1), normal(2, 2, seed=2)
    columns = 40 if side == "right" else 36
    x = normal(3, columns) if side == "right" else normal(columns, 3)
    agrees(lambda x, *factors: km.kron_matmul(x, factors, side=side), x, *factors, depth=40)
    agrees(lambda x, *factors: km.kron_matmul(x, factors, side=side, alpha=0.5), x, *factors, depth=40)
    y = normal(3, 36) if side == "right" else normal(40, 3)
    agrees(
        lambda x, y, *factors: km.kron_matmul(x, factors, side=side, alpha=2.0, beta=-1.0, y=y),
        x,
        y,
        *factors,
        depth=40,
    )
    batched = normal(2, 4, 3), normal(5, 6, seed=1)
    agrees(lambda x, *factors: km.kron_matmul(x, factors), normal(2, 3, 20), *batched, depth=20)


@pytest.mark.parametrize("batch_last", [False, True])
@pytest.mark.parametrize("activation", [None, "relu"])
def test_kronecker_sparse_layers(batch_last, activation):
    patterns = [(4, 4, 4, 1), (1, 4, 4, 4)]
    layer = km.KSLinear(16, 16, patterns=patterns, batch_last=batch_last, dtype=torch.float64)
    x = normal(16, 7) if batch_last else normal(7, 16)
    agrees(layer, x, depth=64)
    weight, shape = normal(2, 3, 4, 3), (7, 24)
    x = normal(*shape).T.contiguous() if batch_last else normal(*shape)
    agrees(lambda x, w: km.kron_sparse_matmul(x, w, batch_last=batch_last, activation=activation), x, weight, depth=8)


def test_sizes_may_be_dynamic():
    rows, columns = torch.export.Dim("rows"), torch.export.Dim("columns")
    kernel = km.Laplace(2.0)
    shapes = (({0: rows}, {0: columns}, {0: columns}),)
    args = normal(M, K), normal(N, K, seed=1), normal(N, 2, seed=2)
    program = torch.export.export(Module(kernel.matmul), args, dynamic_shapes=shapes)
    plain = program.run_decompositions(torch.export.default_decompositions() | decompositions())
    others = normal(9, K, seed=3), normal(3, K, seed=4), normal(3, 2, seed=5)
    assert_close(plain.module()(*others), kernel.matmul(*others), depth=K)


def test_a_fold_has_none():
    fold = km.Contraction("mk,nk->mn", None, reduce=km.Fold(lambda acc, a, b: acc * a + b, 0.0))
    program = torch.export.export(Module(fold), (normal(M, K), normal(N, K, seed=1)))
    with pytest.raises(BackendError, match="Fold has no decomposition"):
        program.run_decompositions(torch.export.default_decompositions() | decompositions())


@pytest.mark.parametrize(
    ("function", "args"),
    [
        (lambda x, y: km.cdist(x, y, p=1), (normal(M, K), normal(N, K, seed=1))),
        (km.Laplace(2.0).matmul, (normal(M, K), normal(N, K, seed=1), normal(N, 2, seed=2))),
        (lambda x, *factors: km.kron_matmul(x, factors), (normal(M, 6), normal(2, 3), normal(3, 2))),
        (km.KSLinear(16, 16, patterns=[(4, 4, 4, 1), (1, 4, 4, 4)], dtype=torch.float64), (normal(3, 16),)),
    ],
)  # fmt: skip
def test_what_is_decomposed_for_onnx_needs_no_table(function, args, monkeypatch):
    model = function if isinstance(function, torch.nn.Module) else Module(function)
    program = torch.export.export(model, args)
    assert foreign(program.run_decompositions()) != []
    monkeypatch.setattr(torch.onnx, "is_in_onnx_export", lambda: True)
    plain = program.run_decompositions()
    assert foreign(plain) == []
    assert_close(plain.module()(*args).detach(), function(*args).detach(), depth=64)


@pytest.mark.filterwarnings("ignore")
def test_tracing_says_what_to_use_for_onnx():
    factors = [normal(2, 2), normal(2, 3)]
    for function in (lambda x: km.cdist(x, x), lambda x: km.kron_matmul(x, factors)):
        with pytest.raises(BackendError, match=r"torch\.onnx\.export\(\.\.\., dynamo=True\)"):
            torch.jit.trace(function, (normal(M, K),), check_trace=False)


@pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("onnx", "onnxscript", "onnxruntime")), reason="no ONNX"
)
@pytest.mark.parametrize("dtype", [torch.float32])
def test_onnx_runtime_computes_the_same(dtype, tmp_path):
    import onnxruntime

    kernel = km.Gaussian(1.5)
    args = normal(M, K, dtype=dtype), normal(N, K, seed=1, dtype=dtype), normal(N, 2, seed=2, dtype=dtype)
    torch.onnx.export(Module(kernel.matmul), args, tmp_path / "model.onnx", dynamo=True)
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    names = [each.name for each in session.get_inputs()]
    (found,) = session.run(None, dict(zip(names, (arg.numpy() for arg in args), strict=True)))
    assert_close(torch.from_numpy(found), kernel.matmul(*args), depth=K)
