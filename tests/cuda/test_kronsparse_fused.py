"""Two Kronecker-sparse products as one, and chains whose neighbours are joined, on the GPU against float64."""

from __future__ import annotations

import itertools

import pytest
import torch

import kernmantle as km
from kernmantle.kronsparse import butterfly, dft
from kernmantle.structured.kronsparse import chain_execute
from kernmantle.structured.mode_product import fused
from kernmantle.structured.mode_product.chain_plan import Step
from kernmantle.testing import assert_close

from .harness import Machine, limits
from .kronsparse_fused_harness import CHAINS, PairCase, cases, check, run

pytestmark = pytest.mark.cuda

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
MONARCH = (6, 64, 64, 1), (1, 768, 192, 2)
PAIR = (Step("back-to-back", 0, 1, 2),)


def exact(x, weights, bias=None):
    """Rows times the chain, and the size of the terms, in float64."""
    found = []
    for own in (lambda value: value, torch.abs):
        value = own(x.double())
        for weight in weights:
            a, _, c, d = weight.shape
            value = torch.einsum("nikl,ijkl->nijl", value.reshape(-1, a, c, d), own(weight.double())).flatten(1)
        found.append(value if bias is None else value + own(bias.double()))
    return found


@pytest.mark.parametrize("case", list(cases()), ids=lambda case: case.name)
def test_every_kind_of_plan(case: PairCase) -> None:
    machine = Machine()
    for chosen in case.plans(limits()):
        check(case, run(machine, case, chosen))


def test_the_comparison_can_fail() -> None:
    case = next(iter(cases()))
    found = run(Machine(), case, case.plans(limits())[0]).copy()
    found.flat[0] += 1
    with pytest.raises(AssertionError):
        check(case, found)


@pytest.mark.parametrize("batch_last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("chain", [MONARCH, *CHAINS[:2]], ids=str)
def test_packed_layers(chain, dtype, batch_last, monkeypatch) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(chain_execute, "plan", lambda x, *_: (PAIR, x.shape[1]))
    (a, _, c, d), (p, q, _, r) = chain
    layer = km.KSLinear(a * c * d, p * q * r, chain, batch_last=batch_last, device="cuda", dtype=dtype)
    layer.requires_grad_(False)
    for batch, activation in itertools.product((1, 17, 300), (None, "gelu")):
        x = torch.randn(batch, a * c * d, device="cuda").to(dtype)
        wanted, terms = exact(x, layer.weights, layer.bias)
        wanted = torch.nn.functional.gelu(wanted) if activation else wanted
        packed = layer.pack()
        for _ in range(2):
            found = packed(x.T.contiguous() if batch_last else x, activation)
            assert "back-to-back" in packed.info
            assert_close(found.T if batch_last else found, wanted, dtype=dtype, depth=chain[1][2] + c, magnitude=terms)
        layer.weights[0].neg_()


def test_infinities_and_nan_stay_where_they_are() -> None:
    torch.manual_seed(0)
    weights = [torch.randn(pattern, device="cuda") for pattern in ((4, 21, 33, 1), (2, 19, 14, 3))]
    x = torch.randn(70, 132, device="cuda")
    x[3, 5], x[17, 41], x[64, 0] = float("inf"), float("nan"), float("-inf")
    weights[1][1, 7, 3, 0] = float("inf")
    out = torch.empty(1, 70, 114, device="cuda")
    assert fused.product(x[None], weights, None, "", "", out)
    assert_close(out[0], exact(x, weights)[0], depth=47)


def test_small_batches_go_as_one_and_replays_follow(monkeypatch) -> None:
    monkeypatch.setattr(chain_execute, "plan", lambda x, *_: (PAIR, x.shape[1]))
    layer = km.KSLinear(384, 1536, MONARCH, device="cuda").requires_grad_(False).pack()
    x = torch.randn(16, 384, device="cuda")
    layer(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = layer(x)
    x.normal_()
    graph.replay()
    assert torch.equal(found, layer(x))


@pytest.mark.parametrize("batch_last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
def test_levels_of_a_butterfly_run_as_fewer(dtype, batch_last) -> None:
    torch.manual_seed(0)
    levels = butterfly(1024)
    layer = km.KSLinear(1024, 1024, levels, batch_last=batch_last, device="cuda", dtype=dtype)
    layer.requires_grad_(False)
    packed = layer.pack()
    for batch in (5, 4096):
        x = torch.randn((1024, batch) if batch_last else (batch, 1024), device="cuda").to(dtype)
        steps, _ = chain_execute.plan((x.T if batch_last else x)[None], list(layer.weights), "auto", True)
        assert len(steps) <= 4
        wanted, terms = exact(x.T if batch_last else x, layer.weights, layer.bias)
        found = packed(x)
        assert_close(found.T if batch_last else found, wanted, dtype=dtype, depth=64, magnitude=terms)


def test_a_transform_in_one_layer() -> None:
    chain = dft(256, device="cuda")
    layer = km.KSLinear(256, 512, chain.patterns, False, chain.weights).requires_grad_(False).pack()
    x = torch.randn(300, 256, device="cuda")
    wanted = torch.fft.fft(x.double())
    found = layer(x[:, chain.permutation]).double()
    assert float((torch.complex(*found.chunk(2, -1)) - wanted).norm() / wanted.norm()) < 2e-6
