"""What torch's FlopCounterMode counts of the operators: a count by hand for each."""

import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import kernmantle as km
from kernmantle.ir.node import Node, const, var
from kernmantle.torch_ops.flops import FORMULAS, operations
from kernmantle.torch_ops.operator import SCHEMAS

M, N, K, C = 40, 50, 7, 3


def counted(call, *args):
    with FlopCounterMode(display=False) as counter:
        call(*args)
    return counter.get_total_flops()


def points(*shape):
    return torch.from_numpy(np.random.default_rng(0).normal(size=shape))


X, Y, V = points(M, K), points(N, K), points(N, C)


def test_every_operator_has_a_formula():
    assert km.kron_matmul
    assert km.KSLinear
    assert km.Kernel
    assert set(FORMULAS) == set(SCHEMAS)


def test_operations_of_numbers_alone_are_not_counted():
    a, p = var("a"), var("p")
    twice = Node("mul", (p, const(2)))
    assert operations([Node("div", (a, twice))], ["p"]) == 1
    assert operations([Node("div", (a, twice))]) == 2
    square = Node("mul", (a, a))
    assert operations([Node("add", (square, square))]) == 2


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda: km.cdist(X, Y, p=1), M * N * 3 * K),
        (lambda: km.cdist(X, Y), M * N * (3 * K + 1)),
        (lambda: km.cdist(X), M * (M + 1) // 2 * (3 * K + 1)),
        (lambda: km.cdist(X[None].expand(2, M, K), Y, p=1), 2 * M * N * 3 * K),
        (lambda: km.contract("mk,kn->mn", lambda a, b: a * b, X, Y.T), M * N * 2 * K),
        (lambda: km.contract("mk,nk->mn", lambda a, b: a + b, X, Y, reduce="min"), M * N * 2 * K),
        (lambda: km.contract("mk,nk->", lambda a, b: abs(a - b), X, Y), M * N * 3 * K),
        (lambda: km.contract("mk,mk->mk", lambda a, b: a * b + a, X, X), M * K * 2),
        (lambda: km.Laplace(2.0)(X, Y), M * N * (3 * K + 3)),
        (lambda: km.Laplace(2.0).matmul(X, Y, V), M * N * (3 * K + 3 + 2 * C)),
        (lambda: km.argkmin(X, Y, 4, p=1), M * N * (3 * K + 1)),
        (lambda: km.cdist(X[:0], Y), 0),
    ],
)
def test_contractions(call, expected):
    assert counted(call) == expected


def test_a_product_of_matrices_counts_as_torch_counts_it():
    assert counted(lambda: km.contract("mk,nk->mn", lambda a, b: a * b, X, Y)) == counted(torch.mm, X, Y.T)


def test_gradients_are_counted():
    x, y = X.clone().requires_grad_(), Y.clone().requires_grad_()
    result = km.cdist(x, y, p=1)
    # A difference, its sign, times the cotangent, added: four; for the columns its negative too.
    assert counted(result.backward, torch.ones_like(result)) == M * N * K * (4 + 5)
    v = V.clone().requires_grad_()
    product = km.Laplace(2.0).matmul(X, Y, v)
    assert counted(product.sum().backward) == M * N * (3 * K + 3 + 2 * C)


@pytest.mark.parametrize("shapes", [[(4, 4), (4, 4)], [(2, 6), (5, 3), (7, 2)], [(3, 3)]])
def test_kronecker_products(shapes):
    factors = [points(*shape) for shape in shapes]
    x = points(5, math.prod(rows for rows, _ in shapes))
    least = math.inf
    for order in np.ndindex(*(len(shapes),) * len(shapes)):
        if len(set(order)) == len(shapes):
            extents, total = [rows for rows, _ in shapes], 0
            for position in order:
                total += math.prod(extents) * shapes[position][1]
                extents[position] = shapes[position][1]
            least = min(least, total)
    assert counted(km.kron_matmul, x, factors) == 2 * 5 * least


def test_compiled_forms_count_as_eager_ones():
    x, y, v = (tensor.to("meta") for tensor in (X, Y, V))
    text = '["product", 0, "{\\"operands\\":[[\\"x0\\",\\"mk\\"],[\\"x1\\",\\"nk\\"]],\\"out\\":\\"mn\\",'
    text += '\\"map\\":\\"sub x0 x1;abs %0;> %1\\",\\"reduce\\":[\\"sum\\"],\\"outputs\\":\\"neg s0;exp %0;> %1\\"}"]'
    forward = M * N * (3 * K + 2 + 2 * C)
    operators, types = torch.ops.kernmantle, "f64;f64;default"
    assert counted(operators.apply, [x, y, v], [], None, text, types) == forward
    result = torch.empty(M, C, device="meta")
    given = [x, y, v], result, result, [], None, text, types
    only_v = counted(operators.apply_backward, *given, [False, False, True])
    with_x = counted(operators.apply_backward, *given, [True, False, True])
    # Entries are computed to be vjp back, and for the product with the transposed matrix. The cotangent of an entry
    # is -exp(-s) g; that of x its product with the sign of a difference, summed.
    assert M * N * (3 * K + 2) < only_v - forward <= M * N * (3 * K + 2 + 4)
    assert with_x - only_v == M * N * 2 * C + M * N * K * 4
    distances = '{"operands":[["x0","mk"],["x1","nk"]],"out":"mn","map":"sub x0 x1;abs %0;> %1","reduce":["sum"],'
    distances += '"outputs":"> s0"}'
    vjp = [x, y], [torch.empty(M, N, device="meta")], [], None, distances, types
    assert counted(operators.contract_backward, *vjp, [True, True], [True]) == M * N * K * (4 + 5)
    assert counted(operators.contract_backward, *vjp, [False, True], [True]) == M * N * K * 5
    column, factors = torch.empty(5, 16, 1, device="meta"), [torch.empty(4, 4, device="meta")] * 2
    one, options = 2 * 5 * 16 * 4, ("0 1", "default fused")
    assert counted(operators.kron_backward, column, factors, column, 1, *options, [True, False, False]) == 2 * one
    whole = counted(operators.kron_backward, column, factors, column, 1, *options, [True, True, True])
    assert whole >= 2 * one + 2 * 5 * 16 * 16  # the gradient that both factors share
    weights = [torch.empty(shape, device="meta") for shape in [(4, 4, 4, 1), (1, 4, 4, 4)]]
    rows = torch.empty(5, 16, device="meta")
    assert counted(operators.kron_sparse_chain, rows, weights, None, "factors 1 0 auto ") == 2 * 5 * 2 * 64
    back = rows, weights, [], rows, "factors 1011 0 auto "
    assert counted(operators.kron_sparse_chain_backward, *back) == 2 * 2 * 5 * 2 * 64


def test_operators_that_are_loaded_inside_the_counter_are_counted():
    code = """
import torch, kernmantle as km
from torch.utils.flop_counter import FlopCounterMode
with FlopCounterMode(display=False) as counter:
    km.kron_matmul(torch.ones(3, 16), [torch.ones(4, 4)] * 2)
print(counter.get_total_flops())
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == str(2 * 3 * 2 * 64)
