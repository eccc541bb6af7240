"""Nested tensors are refused before anything runs, by an error that names the argument and says what to pass."""

import pytest
import torch

import kernmantle as km
from kernmantle.errors import DtypeError, OutputError

PLAIN = torch.randn(3, 3)


def nested(layout):
    return torch.nested.nested_tensor([torch.randn(2, 3), torch.randn(4, 3)], layout=layout)


CALLS = {
    "cdist": (km.cdist, "x"),
    "cdist of y": (lambda own: km.cdist(PLAIN, own), "y"),
    "cdist by a power": (lambda own: km.cdist(own, PLAIN, p=1.5), "x"),
    "contract": (lambda own: km.contract("mk,nk->mn", lambda a, b: a * b, own, PLAIN), "operand 0"),
    "a kernel": (km.Gaussian(1.0), "x"),
    "a product with a kernel": (lambda own: km.Gaussian(1.0).matmul(PLAIN, PLAIN, own), "v"),
    "argkmin": (lambda own: km.argkmin(own, PLAIN, 1), "x"),
    "kron_matmul": (lambda own: km.kron_matmul(own, [torch.eye(3)]), "x"),
    "kron_matmul of a factor": (lambda own: km.kron_matmul(PLAIN, [own]), r"factors\[0\]"),
    "kron_sparse_matmul": (lambda own: km.kron_sparse_matmul(own, torch.randn(1, 2, 3, 1)), "x"),
    "kron_sparse_matmul of weights": (lambda own: km.kron_sparse_matmul(PLAIN, own), "weight"),
    "a layer": (km.KSLinear(3, 2, [(1, 2, 3, 1)]), "x"),
    "solve_cholesky": (lambda own: km.linalg.solve_cholesky(own, PLAIN), "a"),
    "eigh": (km.linalg.eigh, "a"),
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged], ids=["strided", "jagged"])
@pytest.mark.parametrize("name", CALLS)
def test_calls_refuse_nested_tensors(name, layout):
    call, argument = CALLS[name]
    with pytest.raises(DtypeError, match=rf"^{argument}.* is a nested tensor; pass its parts one by one"):
        call(nested(layout))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nothing_is_written_to_nested_tensors():
    with pytest.raises(OutputError, match=r"^out is a nested tensor"):
        km.cdist(PLAIN, PLAIN, out=nested(torch.strided))
