"""Two factors of a Kronecker-sparse chain in one launch of clusters, or in two, for a few rows, against float64."""

from __future__ import annotations

import math

import pytest
import torch

import kernmantle as km
from kernmantle.structured.kronsparse import chain_training
from kernmantle.structured.mode_product import cluster
from kernmantle.structured.mode_product.cluster_plan import apart_plans, cluster_plan
from kernmantle.structured.mode_product.execute import ACTIVATIONS
from kernmantle.testing import assert_close
from kernmantle.torch_ops.cuda import limits
from kernmantle.torch_ops.dtypes import NAMES

pytestmark = pytest.mark.cuda

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
CHAINS = {
    "monarch": ((32, 128, 128, 1), (1, 128, 128, 32)), "wider": ((64, 64, 64, 1), (1, 172, 64, 64)),
    "several": ((8, 24, 264, 1), (2, 40, 12, 8)), "odd": ((16, 40, 72, 1), (4, 33, 20, 8)),
    "long": ((6, 16, 304, 1), (1, 9, 12, 8)), "few": ((4, 8, 8, 1), (1, 2, 4, 8)),
    "many": ((8, 288, 16, 1), (1, 3, 288, 8)),
}  # fmt: skip


def exact(x, weights, bias):
    """The result in float64, and the sizes of its terms; what lies between is rounded to the type of x."""
    found = []
    for own in (lambda value: value.double(), lambda value: value.double().abs()):
        value = own(x)
        for weight in weights:
            a, _, c, d = weight.shape
            value = torch.einsum("nikl,ijkl->nijl", value.reshape(-1, a, c, d), own(weight)).flatten(1)
            value = value.to(x.dtype).double() if weight is weights[0] else value
        found.append(value if bias is None else value + own(bias))
    return found


def operands(chain, batch, dtype):
    torch.manual_seed(0)
    weights = [(torch.randn(own, device="cuda") / math.sqrt(own[2])).to(dtype) for own in chain]
    (a, _, c, d), (i, j, _, k) = chain
    x, bias = (torch.randn(shape, device="cuda").to(dtype) for shape in ((batch, a * c * d), (i * j * k,)))
    return x, weights, bias


def check(plans, x, weights, bias, activation, is_made) -> None:
    """Compare a launch, or two, with float64."""
    out = torch.full((x.shape[0], math.prod(plans[-1].second) // weights[1].shape[2]), math.nan, device="cuda")
    out = out.to(x.dtype)
    bound = cluster.bind_cluster(plans, x[None], out[None])
    between = torch.full((bound.between,), math.nan, dtype=x.dtype, device="cuda")
    addresses = [x.data_ptr(), *(weight.data_ptr() for weight in weights), 0 if bias is None else bias.data_ptr()]
    bound.launch([*addresses, out.data_ptr(), is_made, *([between.data_ptr()] if bound.between else [])])
    wanted, terms = exact(x, weights, bias)
    depth = weights[0].shape[2] + weights[1].shape[2]
    assert_close(out, ACTIVATIONS[activation](wanted), depth=depth, magnitude=terms)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("chain", CHAINS.values(), ids=CHAINS)
def test_a_chain_is_one_launch(chain, dtype) -> None:
    kinds = [(1, False, ""), (3, True, ""), (4, True, "relu"), (16, True, "relu"), (7, False, "gelu")]
    if dtype != torch.float32:
        kinds += [(64, True, "gelu"), (41, False, "")]
    for batch, has_bias, activation in kinds:
        x, weights, bias = operands(chain, batch, dtype)
        bias = bias if has_bias else None
        plan = cluster_plan(*chain, batch, NAMES[dtype], has_bias, activation, limits(0))
        assert plan is not None
        check((plan,), x, weights, bias, activation, batch % 2)


@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
@pytest.mark.parametrize("chain", CHAINS.values(), ids=CHAINS)
def test_a_chain_of_more_rows_is_two_launches(chain, dtype) -> None:
    kinds = [(5, True, ""), (17, False, ""), (64, True, "gelu"), (100, False, "relu"), (256, True, "")]
    for batch, has_bias, activation in kinds:
        x, weights, bias = operands(chain, batch, dtype)
        plans = apart_plans(*chain, batch, NAMES[dtype], has_bias, activation, limits(0))
        assert plans is not None
        check(plans, x, weights, bias if has_bias else None, activation, batch % 2)


def test_rows_may_lie_apart_and_what_does_not_fit_takes_another_way() -> None:
    chain = CHAINS["several"]
    x, weights, bias = operands(chain, 5, torch.bfloat16)
    apart = torch.cat([x, torch.full_like(x[:, :8], math.nan)], 1)[:, : x.shape[1]]
    out = torch.empty(5, bias.numel(), dtype=x.dtype, device="cuda")
    plan = cluster_plan(*chain, 5, "bf16", True, "", limits(0))
    assert cluster.plan_of(apart[None], weights, bias, "", "", out[None]) is not None
    for plans in ((plan,), apart_plans(*chain, 5, "bf16", True, "", limits(0))):
        check(plans, apart, weights, bias, "", 0)
    odd = torch.cat([x, x[:, :3]], 1)[:, : x.shape[1]]
    assert cluster.plan_of(odd[None], weights, bias, "", "", out[None]) is None
    assert cluster.plan_of(x[None], [weights[0], weights[1].mT], bias, "", "", out[None]) is None
    assert cluster.plan_of(x.repeat(52, 1)[None], weights, bias, "", "", out[None]) is None


@pytest.mark.parametrize("packed", [False, True], ids=["layer", "packed"])
def test_layers_of_single_tokens_take_it(packed, monkeypatch) -> None:
    monkeypatch.setattr(chain_training, "plans_seconds", lambda *_: 0.0)
    layer = km.KSLinear(4096, 4096, patterns=CHAINS["monarch"], device="cuda", dtype=torch.bfloat16).requires_grad_(
        False
    )
    own = layer.pack() if packed else layer
    for shape in ((1,), (2, 3), (3, 43)):
        x = torch.randn(*shape, 4096, device="cuda").bfloat16()
        found = own(x)
        assert ("in clusters" if math.prod(shape) < 16 else "the first and the second") in own.info
        assert found.shape == x.shape
        wanted, terms = exact(x.reshape(-1, 4096), list(layer.weights), layer.bias)
        assert_close(found.reshape(-1, 4096), wanted, depth=256, magnitude=terms)


def test_packed_layers_that_follow_one_another_read_what_the_last_one_gives() -> None:
    layers = [
        km.KSLinear(4096, 4096, patterns=CHAINS["monarch"], device="cuda", dtype=torch.bfloat16).requires_grad_(False)
        for _ in range(6)
    ]
    packed, device = [layer.pack() for layer in layers], torch.device("cuda", 0)
    parts = [own._packed.parts[-1] for own in packed]
    x = torch.randn(3, 4096, device="cuda").bfloat16()
    captured = torch.cuda.CUDAGraph()
    packed[0](x)
    torch.cuda.synchronize()
    with torch.cuda.graph(captured, capture_error_mode="thread_local"):
        whole = packed[1](packed[0](x))
        assert parts[0].is_complete(device)
        assert not parts[1].is_complete(device)
    before = [packed[0](x)]
    for own in packed[1:]:
        before.append(own(before[-1]))
    torch.cuda.synchronize()
    values = [x]
    for own in packed:
        values.append(own(values[-1]))
    assert "by mma" in packed[0].info
    for layer, value, found, first in zip(layers, values[:-1], values[1:], before, strict=True):
        assert torch.equal(found, first)
        wanted, terms = exact(value, list(layer.weights), layer.bias)
        assert_close(found, wanted, depth=256, magnitude=terms)
    captured.replay()
    assert torch.equal(whole, values[2])
    assert all(part.is_complete(device) for part in parts)


def test_graphs_take_two_launches_and_eager_calls_one() -> None:
    layer = km.KSLinear(4096, 4096, patterns=CHAINS["monarch"], device="cuda", dtype=torch.bfloat16).requires_grad_(
        False
    )
    x = torch.randn(32, 4096, device="cuda").bfloat16()
    eager = layer(x)
    assert "in clusters" in layer.info
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured, capture_error_mode="thread_local"):
        found = layer(x)
    assert "the first and the second" in layer.info
    captured.replay()
    wanted, terms = exact(x, list(layer.weights), layer.bias)
    for value in (eager, found):
        assert_close(value, wanted, depth=256, magnitude=terms)
