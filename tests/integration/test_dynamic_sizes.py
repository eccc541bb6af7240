"""One compiled graph for arrays of any sizes: what is done in blocks guards the number of blocks, not each size."""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.testing import CompileCounter

import kernmantle as km
from kernmantle.testing import assert_close

F64 = torch.float64
CALLS = {
    "gradient": lambda x, y: km.Matern(2.5, nu=2.5).gradient(x, y, y[:, :2]),
    "gradient of sums": lambda x, y: km.Laplace(2.5).gradient(x, y, y[:, :2]),
    "agop": lambda x, y: km.Gaussian(2.5).agop(x, y, y[:, :1]),
    "pdist": lambda x, y: km.pdist(x, p=1),
    "solve": lambda x, y: km.KroneckerProduct([y[:2, :2] + 5 * torch.eye(2), 3]).solve(x[:6]),
    "neighbours": lambda x, y: km.Gaussian(2.0).argkmax(x, y, 2, return_values=True)[0],
}


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def points(rows, seed):
    return torch.randn(rows, 7, dtype=F64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", CALLS)
def test_one_graph(name):
    counter = CompileCounter()
    compiled = torch.compile(CALLS[name], fullgraph=True, dynamic=True, backend=counter)
    for m, n in ((33, 5), (37, 8), (20, 11), (100, 13)):
        x, y = points(m, 0), points(n, 1)
        assert_close(compiled(x, y), CALLS[name](x, y), depth=1000)
    assert counter.frame_count == 1


def test_distances_of_many_rows_have_a_graph_for_each_number_of_blocks():
    counter = CompileCounter()
    compiled = torch.compile(km.pdist, fullgraph=True, dynamic=True, backend=counter)
    for rows, graphs in ((33, 1), (129, 1), (300, 2), (317, 2), (1500, 3), (1501, 3)):
        x = points(rows, 2)
        assert_close(compiled(x), torch.pdist(x), depth=10)
        assert counter.frame_count == graphs
