"""Training steps in few launches on the GPU against float64."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

import kernmantle as km
from kernmantle.backends.cuda import launch
from kernmantle.runtime.dispatch import PLANS
from kernmantle.runtime.kernel_store import KERNELS
from kernmantle.structured.kronsparse import chain_matrix, chain_products, chain_training
from kernmantle.structured.mode_product import grouped, grouped_plan
from kernmantle.testing import assert_close
from kernmantle.torch_ops import cuda, cuda_launches
from kernmantle.torch_ops.dtypes import NAMES

from .harness import Machine, limits
from .kronsparse_grouped_harness import FewCase, cases, check, run

driver = pytest.importorskip("cuda.bindings.driver")
pytestmark = pytest.mark.cuda

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
CHAINS = {
    "monarch": ((6, 64, 64, 1), (1, 768, 192, 2)), "apart": ((6, 31, 24, 1), (2, 77, 93, 1)),
    "square": ((32, 32, 32, 1), (1, 32, 32, 32)), "three": ((16, 16, 16, 1), (4, 16, 16, 4), (1, 16, 16, 16)),
    "one": ((1, 96, 48, 4),),
}  # fmt: skip


@pytest.fixture(autouse=True)
def no_plans():
    """What a test binds by a kind of its own choice is no other test's."""
    PLANS.clear()
    yield
    PLANS.clear()


@pytest.mark.parametrize("case", list(cases()), ids=lambda case: case.name)
def test_every_kind_of_launch(case: FewCase) -> None:
    check(case, run(Machine(), case, limits()))


def test_the_comparison_can_fail() -> None:
    case = next(iter(cases()))
    found = [result.copy() for result in run(Machine(), case, limits())]
    found[0].flat[0] += 1
    with pytest.raises(AssertionError):
        check(case, found)


def exact(layer, x, grad):
    """Result and gradients in float64, and the sizes of the terms of each."""
    found = []
    for own in (lambda value: value, torch.abs):
        given = [own(tensor.detach().double()).requires_grad_() for tensor in (x, *layer.weights, layer.bias)]
        value, *weights, bias = given
        for weight in weights:
            a, _, c, d = weight.shape
            value = torch.einsum("nikl,ijkl->nijl", value.reshape(-1, a, c, d), weight).flatten(1)
        value = value + bias
        found.append([value.detach(), *torch.autograd.grad(value, given, own(grad.double()))])
    return found


@pytest.mark.parametrize("batch_last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("chain", CHAINS.values(), ids=CHAINS)
@pytest.mark.parametrize("kind", ["grouped", "matrix"])
def test_layers_are_trained(kind, chain, dtype, batch_last, monkeypatch) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(chain_training, "kind_of", lambda *_: kind)
    (a, _, c, d), (p, q, _, r) = chain[0], chain[-1]
    layer = km.KSLinear(a * c * d, p * q * r, chain, batch_last=batch_last, device="cuda", dtype=dtype)
    for batch in (1, 17, 150):
        x = torch.randn(batch, a * c * d, device="cuda").to(dtype).requires_grad_()
        grad = torch.randn(batch, p * q * r, device="cuda").to(dtype)
        value = layer(x.mT.contiguous() if batch_last else x)
        value = value.mT if batch_last else value
        found = [value.detach(), *torch.autograd.grad(value, [x, *layer.weights, layer.bias], grad)]
        depth = sum(max(pattern[1:3]) for pattern in chain) + batch
        for one, wanted, terms in zip(found, *exact(layer, x, grad), strict=True):
            assert_close(one, wanted, dtype=dtype, depth=depth, magnitude=terms)


@pytest.mark.parametrize("batch_last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_sums_over_rows(dtype, batch_last) -> None:
    torch.manual_seed(0)
    for batch in (1, 300, 2500):
        grad = torch.randn(batch, 96, device="cuda").to(dtype)
        laid = grad.mT.contiguous().mT if batch_last else grad
        found = chain_products.bind_bias(laid[None])(laid[None])
        assert_close(found, grad.double().sum(0), depth=batch, magnitude=grad.double().abs().sum(0))


def test_infinities_and_nan_stay_where_they_are() -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(1, 21, 132, device="cuda"), torch.randn(4, 21, 33, 1, device="cuda")
    x[0, 3, 5], x[0, 17, 41], x[0, 20, 0] = float("inf"), float("nan"), float("-inf")
    weight[1, 7, 3, 0] = 3.0e38
    out = torch.empty(1, 21, 84, device="cuda")
    (bound,) = grouped.bind_each([grouped.plan_forward(x, weight, None, "", out)])
    bound.run((x, weight, out, None))
    wanted = torch.einsum("nikl,ijkl->nijl", x[0].double().view(21, 4, 33, 1), weight.double()).flatten(1)
    assert_close(out[0], wanted, depth=33)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("batch", [16, 3000])
@pytest.mark.parametrize("kind", ["grouped", "matrix", "long matrix", "factors", "batched"])
def test_steps_are_captured_and_replays_follow(kind, batch, dtype, monkeypatch) -> None:
    """In a graph what does not wait for each other lies on two streams, which a replay must not mix up."""
    monkeypatch.setattr(chain_training, "kind_of", lambda *_: kind.removeprefix("long "))
    if kind == "long matrix":
        monkeypatch.setattr(chain_matrix, "_LONG", 0.0)
    options = {"device": "cuda", "dtype": dtype}
    narrow = torch.nn.Linear(1536, 384, **options)
    chain = ((6, 64, 64, 1), (1, 192, 48, 8)) if kind == "batched" else CHAINS["monarch"]  # of whole vectors
    layer = km.KSLinear(384, 1536, chain, **options)
    model = torch.nn.Sequential(layer, narrow, km.KSLinear(384, 1536, chain, **options))
    x = torch.randn(batch, 384, **options).requires_grad_()
    grad = torch.randn(batch, 1536, **options)

    def step():
        return torch.autograd.grad(model(x), [x, *model.parameters()], grad)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = step()
    with torch.no_grad():
        x.normal_()
        layer.weights[1].normal_()
    for _ in range(3):
        graph.replay()
    for one, other in zip(found, step(), strict=True):
        if kind == "grouped" or (kind == "factors" and (batch < 2048 or dtype == torch.float32)):
            assert torch.equal(one, other)
        else:  # eager products of matrices, and sums over many rows of halves, are others of the vendor's
            error = (one.double() - other.double()).norm() / other.double().norm()
            assert error <= 2 * torch.finfo(dtype).eps


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("recorded", [True, False], ids=["step", "forward"])
@pytest.mark.parametrize("kind", ["factors", "matrix"])
def test_a_graph_loads_the_kernels_of_a_plan_that_no_eager_call_had(kind, recorded, dtype, monkeypatch) -> None:
    monkeypatch.setattr(chain_training, "kind_of", lambda *given: kind if given[-1] is True else "grouped")
    monkeypatch.setattr(chain_training, "forward_kind", chain_training.kind_of)
    batch = 333 + recorded + 2 * (kind == "matrix")  # plans of their own
    layer = km.KSLinear(384, 1536, CHAINS["monarch"], device="cuda", dtype=dtype).requires_grad_(recorded)
    x = torch.randn(batch, 384, device="cuda", dtype=dtype).requires_grad_(recorded)
    grad = torch.randn(batch, 1536, device="cuda", dtype=dtype)

    def step():
        value = layer(x)
        leaves = [x, *layer.weights, layer.bias]
        return [value.detach(), *(torch.autograd.grad(value, leaves, grad) if recorded else ())]

    step()
    KERNELS.clear()
    monkeypatch.setattr(launch, "_LIBRARIES", {})
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = step()
    assert launch._LIBRARIES or dtype == torch.bfloat16 or not recorded  # vendor's products need none of ours
    with torch.no_grad():
        x.normal_()
    graph.replay()
    depth = 256 + batch
    for one, wanted, terms in zip(found, *exact(layer, x, grad), strict=False):
        assert_close(one, wanted, dtype=dtype, depth=depth, magnitude=terms)


def test_many_launches_in_a_row_wait_for_each_other(monkeypatch) -> None:
    monkeypatch.setattr(chain_training, "kind_of", lambda *_: "grouped")
    torch.manual_seed(0)
    chain = CHAINS["three"]
    layer = km.KSLinear(256, 256, chain, device="cuda")
    x = torch.randn(64, 256, device="cuda", requires_grad=True)
    grad = torch.randn(64, 256, device="cuda")
    results = [torch.autograd.grad(layer(x), [x, *layer.parameters()], grad) for _ in range(200)]
    for one in results:
        assert all(torch.equal(own, first) for own, first in zip(one, results[0], strict=True))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast_trains_weights_of_float32(dtype, monkeypatch) -> None:
    for kind, wanted in itertools.product(("grouped", "matrix", "batched"), (True, False)):
        monkeypatch.setattr(chain_training, "kind_of", lambda *_, kind=kind: kind)
        layer = km.KSLinear(384, 1536, CHAINS["monarch"], device="cuda")
        layer.weights[0].requires_grad_(wanted)
        x = torch.randn(16, 384, device="cuda")
        with torch.autocast("cuda", dtype):
            value = layer(x)
        assert value.dtype == dtype
        value.float().square().sum().backward()
        assert (layer.weights[0].grad is not None) == wanted
        assert layer.weights[1].grad.dtype == torch.float32


def counted():
    """What the counters of all streams are."""
    torch.cuda.synchronize()
    found = np.zeros(len(cuda._COUNTERS), np.uint32)
    for number, address in enumerate(cuda._COUNTERS.values()):
        (status,) = driver.cuMemcpyDtoH(found[number:].ctypes.data, address, 4)
        assert not status
    return set(found.tolist())


def steps_of(chain, batch, dtype):
    """What runs a step of a layer of its own, and gives the result and all gradients."""
    (a, _, c, d), (p, q, _, r) = chain[0], chain[-1]
    layer = km.KSLinear(a * c * d, p * q * r, chain, device="cuda", dtype=dtype)
    x = torch.randn(batch, a * c * d, device="cuda").to(dtype).requires_grad_()
    grad = torch.randn(batch, p * q * r, device="cuda").to(dtype)
    leaves = [x, *layer.weights, layer.bias]

    def step():
        value = layer(x)
        return [value.detach(), *torch.autograd.grad(value, leaves, grad)]

    return step


@pytest.mark.parametrize("batch", [16, 256, 1024])
@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
@pytest.mark.parametrize("chain", ["monarch", "three"])
def test_launches_that_follow_one_another_are_one(chain, dtype, batch, monkeypatch) -> None:
    """Blocks wait for those before them: every repetition gives the same, and leaves no block counted."""
    torch.manual_seed(0)
    monkeypatch.setattr(chain_training, "kind_of", lambda *_: "grouped")
    step, launched, start = steps_of(CHAINS[chain], batch, dtype), [], cuda_launches.NativeLaunches.start
    first = step()
    for _ in range(50):
        for one, other in zip(step(), first, strict=True):
            assert torch.equal(one, other)
    monkeypatch.setattr(cuda_launches.NativeLaunches, "start", lambda *own: (launched.append(1), start(*own))[1])
    step()
    joins = (
        grouped_plan.grouped_seconds(CHAINS[chain], batch, NAMES[dtype], False, limits()) < grouped_plan._MOST_JOINED
    )
    assert len(launched) == 2 or not joins
    assert counted() == {0}
    monkeypatch.setattr(grouped, "joined_plan", lambda *_: None)
    PLANS.clear()
    depth = sum(max(pattern[1:3]) for pattern in CHAINS[chain]) + batch
    for one, other in zip(step(), first, strict=True):  # sums over rows by more warps are added in another order
        assert_close(other, one.double(), dtype=dtype, depth=depth, magnitude=one.double().abs().max())


def test_streams_count_their_blocks_apart(monkeypatch) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(chain_training, "kind_of", lambda *_: "grouped")
    steps = [steps_of(CHAINS["monarch"], 256, torch.bfloat16) for _ in range(2)]
    wanted, streams = [step() for step in steps], [torch.cuda.Stream() for _ in range(2)]
    torch.cuda.synchronize()

    def run(step, stream, wanted):
        with torch.cuda.stream(stream):
            for _ in range(100):
                for one, other in zip(step(), wanted, strict=True):
                    assert torch.equal(one, other)
            assert counted() == {0}
        return True

    with ThreadPoolExecutor(2) as pool:
        assert all(pool.map(run, steps, streams, wanted))
    assert len({cuda._COUNTERS[0, stream.cuda_stream] for stream in streams}) == 2
    assert counted() == {0}


@pytest.mark.parametrize("bias", [False, True])
def test_an_activation_needs_no_bias(bias, monkeypatch) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(chain_training, "forward_kind", lambda *_: "grouped")
    layer = km.KSLinear(384, 1536, CHAINS["monarch"], bias=bias, device="cuda").requires_grad_(False)
    x = torch.randn(100, 384, device="cuda")
    value = layer(x, "relu")
    assert "grouped" in layer.info
    assert bool((value >= 0).all())
    assert torch.equal(value, layer(x).relu())
