"""KSLinear, its batch-last companions, model surgery, and the stand-in for KSMM."""

from __future__ import annotations

import copy
import importlib
import inspect
import pickle
import subprocess
import sys
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize, prune

import kernmantle as km
from kernmantle import compat, errors
from kernmantle.compat import ksmm
from kernmantle.kronsparse import KSPattern, project
from kernmantle.runtime.dispatch import PLANS
from kernmantle.structured.kronsparse import chain_execute, linear
from kernmantle.structured.kronsparse.matmul import STORED
from kernmantle.structured.mode_product import execute, pack
from kernmantle.structured.mode_product.chain_plan import Step
from kernmantle.structured.mode_product.pack import PackedWeights
from kernmantle.testing import assert_close

PATTERNS = [(6, 8, 8, 1), (1, 12, 24, 2)]


def factors(layer):
    total = torch.eye(layer.in_features, dtype=torch.float64)
    for pattern, weight in zip(layer.patterns, layer.weights, strict=True):
        total = pattern.to_dense(weight.detach().double()) @ total
    return total


@pytest.mark.parametrize("algorithm", ["auto", "kernel", "bmm", "dense"])
@pytest.mark.parametrize("batch_last", [False, True], ids=["first", "last"])
def test_layer_is_its_matrix(algorithm, batch_last):
    torch.manual_seed(0)
    layer = km.KSLinear(48, 24, PATTERNS, batch_last=batch_last, algorithm=algorithm)
    x = torch.randn(2, 5, 48)
    wanted = x.double() @ factors(layer).T + layer.bias.double()
    found = layer(x.movedim(-1, 0)).movedim(0, -1) if batch_last else layer(x)
    assert_close(found.detach(), wanted.detach(), dtype="float32", depth=32)
    assert_close(layer.to_dense().detach(), factors(layer), dtype="float32", depth=32)
    assert algorithm == "auto" or algorithm in layer.info or algorithm == "kernel"
    assert layer.info in repr(layer)
    gelu = layer(x.movedim(-1, 0), "gelu").movedim(0, -1) if batch_last else layer(x, activation="gelu")
    assert_close(gelu.detach(), nn.functional.gelu(found).detach(), depth=32)


@pytest.mark.parametrize("algorithm", ["auto", "kernel", "bmm", "einsum", "dense"])
@pytest.mark.parametrize("batch_last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("batch", [(5,), (2, 5), (), (40,)], ids=str)
def test_the_third_call_is_as_good_as_the_first(batch, batch_last, algorithm):
    torch.manual_seed(0)
    layer = km.KSLinear(48, 24, PATTERNS, batch_last=batch_last, algorithm=algorithm, dtype=torch.float64)
    shape = (48, *batch) if batch_last else (*batch, 48)
    read = list(layer.parameters())

    def formula(x):
        matrix = layer.patterns[1].to_dense(layer.weights[1]) @ layer.patterns[0].to_dense(layer.weights[0])
        rows = (x.movedim(0, -1) if batch_last else x) @ matrix.T + layer.bias
        return rows.movedim(-1, 0) if batch_last else rows

    def same(found, wanted):
        for one, other in zip(found, wanted, strict=True):
            assert_close(one, other, depth=2000)

    for _ in range(3):
        x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
        found, wanted = layer(x), formula(x)
        same([found.detach()], [wanted.detach()])
        cotangent = torch.randn(found.shape[::-1], dtype=torch.float64).permute(*reversed(range(found.dim())))
        same(*(torch.autograd.grad(value, (x, *read), cotangent, retain_graph=True) for value in (found, wanted)))
        many = torch.randn(3, *found.shape, dtype=torch.float64)
        batched = [torch.autograd.grad(value, (x, *read), many, is_grads_batched=True) for value in (found, wanted)]
        same(*batched)
        slopes = [torch.autograd.grad(f(x).square().sum(), (x, *read), create_graph=True) for f in (layer, formula)]
        same(*(torch.autograd.grad(sum(own.square().sum() for own in each), (x, *read)) for each in slopes))
        result = layer(x)
        result += 1
        result.sum().backward()
        assert all(own.grad.stride() == own.stride() for own in read)


def test_state_dict_is_stable():
    layer = km.KSLinear(48, 24, PATTERNS)
    shapes = {name: tuple(value.shape) for name, value in layer.state_dict().items()}
    assert shapes == {"weights.0": (6, 8, 8, 1), "weights.1": (1, 12, 24, 2), "bias": (24,)}
    other = km.KSLinear(48, 24, PATTERNS, batch_last=True, algorithm="bmm")
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other.to_dense(), layer.to_dense())
    assert set(km.KSLinear(48, 24, PATTERNS, bias=False).state_dict()) == {"weights.0", "weights.1"}


def test_variance_is_preserved():
    torch.manual_seed(0)
    chain = [(4, 64, 64, 1), (1, 64, 64, 4), (2, 256, 128, 1)]
    layer = km.KSLinear(256, 512, chain, bias=False)
    x = torch.randn(512, 256)
    for weight, pattern in zip(layer.weights, layer.patterns, strict=True):
        assert abs(float(weight.var()) * pattern.c - 1) < 0.05
    assert 0.8 < float(layer(x).var()) < 1.25


def test_given_weights():
    weights = [torch.randn(pattern) for pattern in PATTERNS]
    layer = km.KSLinear(48, 24, PATTERNS, weights=weights, dtype=torch.float64)
    for own, given in zip(layer.weights, weights, strict=True):
        assert own.dtype == torch.float64
        assert torch.equal(own.detach(), given.double())
        assert own.data_ptr() != given.data_ptr()


@pytest.mark.parametrize(
    ("message", "arguments", "options"),
    [
        ("patterns map 48 features to 24, the layer 48 to 25", (48, 25, PATTERNS), {}),
        ("patterns 0 and 1 do not chain", (48, 24, [PATTERNS[1], PATTERNS[0]]), {}),
        ("weight 0 has shape", (48, 24, PATTERNS), {"weights": [torch.ones(1), torch.ones(1)]}),
        ("2 patterns but 1 weights", (48, 24, PATTERNS), {"weights": [torch.ones(6, 8, 8, 1)]}),
    ],
)
def test_layers_that_do_not_fit(message, arguments, options):
    with pytest.raises(errors.ShapeError, match=message):
        km.KSLinear(*arguments, **options)


def layer_of(*dtypes):
    """With weights of ones, each of a type of its own."""
    ones = [torch.ones(pattern).to(dtype) for pattern, dtype in zip(PATTERNS, dtypes, strict=True)]
    return km.KSLinear(48, 24, PATTERNS, weights=ones)


@pytest.mark.parametrize(
    ("error", "message", "build"),
    [
        (errors.DtypeError, "floating-point", lambda: km.KSLinear(48, 24, PATTERNS, dtype=torch.int64)),
        (errors.DtypeError, "floating-point", lambda: km.KSLinear(48, 24, PATTERNS, dtype=torch.complex64)),
        (errors.DtypeError, "weight 0 must be", lambda: km.KSLinear(48, 24, PATTERNS, weights=[None, None])),
        (errors.ShapeError, "2 patterns but 0 weights", lambda: km.KSLinear(48, 24, PATTERNS, weights=[])),
        (errors.ParameterError, "sequence of patterns", lambda: km.KSLinear(48, 24, None)),
        (errors.ParameterError, "in_features must be", lambda: km.KSLinear(48.0, 24, PATTERNS)),
        (errors.ParameterError, "not a tensor", lambda: km.KSLinear(48, 24, PATTERNS, bias=torch.ones(24))),
        (errors.DtypeError, "float32 and float64; pass dtype=", lambda: layer_of(torch.float32, torch.float64)),
        (errors.DtypeError, "a layer takes torch tensors", lambda: km.KSLinear(48, 24, PATTERNS)(np.ones((3, 48)))),
        (errors.DtypeError, "x has layout", lambda: km.KSLinear(48, 24, PATTERNS)(torch.ones(3, 48).to_sparse())),
        (errors.DtypeError, "x has layout", lambda: km.KSLinear(48, 24, PATTERNS)(torch.ones(3, 48).to_sparse_csr())),
        (errors.ParameterError, "linear layer", lambda: km.KSLinear.from_linear(torch.ones(24, 48), PATTERNS)),
        (errors.ShapeError, "is a matrix", lambda: km.KSLinear.from_linear(nn.Conv2d(48, 24, 3), PATTERNS)),
        (errors.ShapeError, "first axis", lambda: km.LayerNormBatchLast(1)(torch.ones(3, 2))),
    ],
)
def test_layers_that_make_no_sense(error, message, build):
    with pytest.raises(error, match=message):
        build()


@pytest.mark.parametrize("shape", [(3, 16, 16, 1), (6, 8, 9, 1), (1, 1, 1, 1)], ids=str)
def test_weights_that_are_no_longer_of_their_pattern(shape):
    x = torch.randn(5, 48)
    for change in ("parameter", "data", "more"):
        layer = km.KSLinear(48, 24, PATTERNS).eval()
        with torch.no_grad():
            layer(x)
        if change == "parameter":
            layer.weights[0] = nn.Parameter(torch.ones(shape))
        elif change == "data":
            layer.weights[0].data = torch.ones(shape)
        else:
            layer.weights.append(nn.Parameter(torch.ones(shape)))
        for _ in range(2):
            with pytest.raises(errors.ShapeError, match="3 weights" if change == "more" else "weight 0 has shape"):
                layer(x)
        with pytest.raises(errors.ShapeError, match="3 weights" if change == "more" else "weight 0 has shape"):
            layer.pack()


def test_the_options_of_a_layer_may_be_set():
    torch.manual_seed(0)
    layer = km.KSLinear(48, 24, PATTERNS).eval()
    x = torch.randn(5, 48)
    wanted = (x.double() @ factors(layer).T + layer.bias).detach()
    with torch.no_grad():
        for algorithm in ("dense", "bmm", "kernel", "auto", "dense"):
            layer.algorithm = algorithm
            for batch_last in (False, True):
                layer.batch_last = batch_last
                packed = layer.pack()
                for own in (
                    *map(pickle.loads, map(pickle.dumps, (layer, packed))),
                    copy.deepcopy(layer),
                    layer,
                    packed,
                ):
                    assert (own.algorithm, own.batch_last) == (algorithm, batch_last)
                    for _ in range(3):
                        found = own(x.T).T if batch_last else own(x)
                        assert_close(found, wanted, dtype="float32", depth=64)
                        assert algorithm in own.info or algorithm in ("kernel", "auto")
    with pytest.raises(errors.ParameterError, match="algorithm must be"):
        layer.algorithm = "fast"


def test_given_arrays():
    weights = [np.random.default_rng(0).normal(size=pattern) for pattern in PATTERNS]
    layer = km.KSLinear(48, 24, PATTERNS, weights=weights)
    assert layer.weights[0].dtype == torch.float64
    assert np.array_equal(layer.weights[1].detach().numpy(), weights[1])


def test_inputs_that_do_not_fit():
    layer = km.KSLinear(48, 24, PATTERNS)
    with pytest.raises(errors.ShapeError, match="47 features"):
        layer(torch.ones(3, 47))
    with pytest.raises(errors.DtypeError, match=r"x is float64 but weights.0 is float32"):
        layer(torch.ones(3, 48).double())
    with pytest.raises(errors.ParameterError, match="activation"):
        layer(torch.ones(3, 48), "softmax")
    with pytest.raises(errors.ParameterError, match="algorithm"):
        km.KSLinear(48, 24, PATTERNS, algorithm="best")


@pytest.mark.parametrize("batch_last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("algorithm", ["dense", "sparse", "auto"])
def test_packed_layers_make_their_images_once(algorithm, batch_last, monkeypatch):
    torch.manual_seed(0)
    layer = km.KSLinear(8, 12, [(2, 3, 4, 1), (1, 6, 3, 2)], batch_last=batch_last, algorithm=algorithm)
    filled = dict(execute.MADE)
    made = []
    for name, make in filled.items():
        monkeypatch.setitem(execute.MADE, name, lambda weight, make=make: made.append(1) or make(weight))
    x = torch.randn((8, 5) if batch_last else (5, 8))
    packed = layer.pack()
    assert not [*packed.parameters(), *packed.buffers()]
    with torch.no_grad():
        wanted = layer(x)
        made.clear()
        for _ in range(3):
            assert_close(packed(x), wanted, depth=12)
        assert algorithm == "auto" or len(made) == 2
        twin = pickle.loads(pickle.dumps(copy.deepcopy(packed)))
        for weight in layer.parameters():
            weight.mul_(2)
        assert_close(packed(x), wanted, depth=12)
        assert_close(twin.to(torch.float64)(x.double()), wanted, dtype="float32", depth=12)
        assert_close(layer.pack()(x), layer(x), depth=12)


def test_packed_layers_record_gradients_of_x_alone():
    torch.manual_seed(0)
    layer = km.KSLinear(8, 12, [(2, 3, 4, 1), (1, 6, 3, 2)], dtype=torch.float64)
    packed, matrix = layer.pack(), factors(layer)
    for _ in range(3):
        x = torch.randn(5, 8, dtype=torch.float64, requires_grad=True)
        (found,) = torch.autograd.grad(packed(x).square().sum(), x)
        assert_close(found, 2 * (x @ matrix.T + layer.bias).detach() @ matrix, depth=64)
    assert not packed(x.detach()).requires_grad
    assert_close(torch.func.vmap(packed)(x[:, None])[:, 0], packed(x), depth=12)
    with torch.inference_mode():
        made = layer.pack()
        made(x)
    assert torch.autograd.grad(made(x).sum(), x)[0].shape == x.shape


def test_state_of_packed_layers():
    layer = km.KSLinear(48, 24, PATTERNS).eval()
    packed = nn.Sequential(layer.pack())
    state = packed.state_dict()
    assert {name.removeprefix("0.") for name in state} == set(layer.state_dict())
    assert all(torch.equal(state[f"0.{name}"], own) for name, own in layer.state_dict().items())
    x = torch.randn(5, 48)
    wanted = packed(x)
    for value in (*state.values(), packed[0].bias, packed[0].weight):
        value.zero_()
    assert torch.equal(packed(x), wanted)
    for given in (state, {}):
        with pytest.raises(errors.ParameterError, match=r"packed layer, which never changes: .* call pack\(\) again"):
            packed.load_state_dict(given)
    with pytest.raises(AttributeError):
        packed[0].algorithm = "dense"
    assert not packed[0].training
    assert layer.train().pack().training
    assert "PackedKSLinear(in_features=48, out_features=24" in repr(packed)
    layer.register_forward_hook(lambda module, args, result: result + 1)
    assert_close(layer.pack()(x), wanted + 1, depth=2)


def test_packed_images_that_nothing_computed_are_not_kept():
    layer = km.KSLinear(48, 24, PATTERNS, algorithm="kernel").eval()
    packed, x = layer.pack(), torch.randn(700, 48)
    with torch.no_grad():
        km.precompile([lambda: packed(x)], workers=1)
        assert_close(packed(x), x.double() @ factors(layer).T + layer.bias.double(), dtype="float32", depth=64)


class FakeEvent:
    """As an event of a GPU, done when told."""

    done = False

    def record(self, stream):
        self.stream = stream

    def query(self):
        return FakeEvent.done


class FakeStream:
    def __init__(self):
        self.waited = []

    def wait_event(self, event):
        self.waited.append(event)


def test_images_are_packed_on_a_stream_and_others_wait_for_it_there(monkeypatch):
    capturing, streams = [False], [FakeStream(), FakeStream()]
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing[0])
    monkeypatch.setattr(pack, "relaxed_capture", nullcontext)
    current = [streams[0]]
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: current[0])
    packed, made, device = PackedWeights(), [], torch.device("cuda", 0)

    def get():
        return packed.get_or_pack("key", lambda: made.append(torch.zeros(1)) or made[-1], device)

    first = get()
    current[0] = streams[1]
    assert get() is first
    assert len(streams[1].waited) == 1
    assert packed.get("key") is None
    assert packed._pending
    capturing[0] = True
    assert get() is not first
    capturing[0], FakeEvent.done = False, True
    assert get() is first
    assert not packed._pending
    capturing[0] = True
    assert get() is first is packed.get("key")
    assert len(streams[1].waited) == 1
    assert len(made) == 2
    FakeEvent.done = False


def test_a_graph_takes_what_was_packed_by_one_call_before(monkeypatch):
    capturing, stream = [False], FakeStream()
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing[0])
    monkeypatch.setattr(pack, "relaxed_capture", nullcontext)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: stream)
    packed, device = PackedWeights(), torch.device("cuda", 0)
    first = packed.get_or_pack("key", lambda: torch.zeros(1), device)
    capturing[0], FakeEvent.done = True, True
    assert packed.get_or_pack("key", lambda: pytest.fail("packed again"), device) is first
    assert packed.get("key") is first
    assert not packed._pending
    FakeEvent.done = False


def test_layers_under_transforms_of_their_weights():
    layer = km.KSLinear(8, 12, [(2, 3, 4, 1), (1, 6, 3, 2)])
    x, named = torch.randn(5, 8), {name: own.detach() for name, own in layer.named_parameters()}
    several = {name: torch.stack([own, 2 * own]) for name, own in named.items()}
    with torch.no_grad():
        layer(x)
    found = torch.func.vmap(lambda own: torch.func.functional_call(layer, own, (x,)))(several)
    wanted = [torch.func.functional_call(layer, {name: own[i] for name, own in several.items()}, (x,)) for i in (0, 1)]
    assert_close(found, torch.stack(wanted), depth=24)
    slopes = torch.func.grad(lambda own: torch.func.functional_call(layer, own, (x,)).sum())(named)
    layer(x).sum().backward()
    for name, own in layer.named_parameters():
        assert_close(slopes[name], own.grad, depth=60)


def test_layers_see_another_weight_at_the_same_address():
    memory = np.ones((2, 3, 4, 1), np.float32)
    layer = km.KSLinear(8, 6, [(2, 3, 4, 1)], bias=False, algorithm="dense")
    x = torch.randn(5, 8)
    with torch.no_grad():
        for value in (1.0, 2.0):
            memory[...] = value
            layer.weights[0] = torch.nn.Parameter(torch.from_numpy(memory))
            for found in (layer, layer.pack()):
                assert_close(found(x), x @ layer.to_dense().T, depth=12)


@pytest.mark.parametrize("batch_last", [False, True], ids=["first", "last"])
def test_packed_chains_may_be_one_matrix(batch_last, monkeypatch):
    torch.manual_seed(0)
    layer = km.KSLinear(8, 12, [(2, 3, 4, 1), (1, 6, 3, 2)], batch_last=batch_last)
    x = torch.randn((8, 5, 2) if batch_last else (2, 5, 8))
    wanted = layer(x, "gelu").detach()
    monkeypatch.setattr(chain_execute, "plan", lambda x, *_: ((Step("dense", 0, 2),), x.shape[1]))
    packed = layer.pack()
    with torch.no_grad():
        for _ in range(2):
            assert_close(packed(x, "gelu"), wanted, depth=24)
            assert packed.info == "torch dense"
        layer.weights[1].zero_()
        layer.bias.zero_()
        assert_close(packed(x, "gelu"), wanted, depth=24)
    monkeypatch.undo()
    many, _ = chain_execute.plan(torch.empty(1, 4, 8), [torch.empty(1, 8, 8, 1)] * 30, "auto", True)
    assert [str(step) for step in many] in (["factor 0..29"], ["dense 0..29"])
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    wide = [torch.empty(64, 2, 64, 1), torch.empty(1, 64, 2, 64)]
    assert chain_execute.plan(torch.empty(1, 4096, 4096), wide, "auto", True) is None


@pytest.mark.parametrize("batch_last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_packed_chains_may_join_their_neighbours(dtype, batch_last, monkeypatch):
    torch.manual_seed(0)
    patterns = [(8, 3, 2, 1), (4, 4, 2, 3), (2, 5, 4, 6), (1, 2, 2, 30)]
    layer = km.KSLinear(16, 60, patterns, batch_last=batch_last, dtype=dtype)
    x = torch.randn((16, 7) if batch_last else (7, 16), dtype=dtype)
    rows = x.double().T if batch_last else x.double()
    exact = torch.relu(rows @ factors(layer).T + layer.bias.detach().double())
    sizes = copy.deepcopy(layer)
    for weight in sizes.weights:
        weight.data.abs_()
    terms = rows.abs() @ factors(sizes).T + layer.bias.detach().double().abs()
    for found in (
        (Step("factor", 0, 2), Step("factor", 2, 4)),
        (Step("factor", 0, 1), Step("factor", 1, 3), Step("factor", 3, 4)),
        (Step("factor", 0, 3), Step("factor", 3, 4)),
    ):
        monkeypatch.setattr(chain_execute, "plan", lambda x, *_, found=found: (found, x.shape[1]))
        packed = layer.pack()  # whose calls are bound anew
        with torch.no_grad():
            for _ in range(2):
                own = packed(x, "relu")
                assert "as one" in packed.info or found[-1].end - found[-1].begin == 1
                assert_close(own.T if batch_last else own, exact, dtype=dtype, depth=64, magnitude=terms)
            layer.weights[1].neg_()
            layer.weights[2].neg_()
            assert_close(layer.pack()(x, "relu"), own, depth=1)


@pytest.mark.parametrize("batch_last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_chains_run_some_rows_at_a_time(dtype, batch_last, monkeypatch):
    torch.manual_seed(0)
    layer = km.KSLinear(48, 24, PATTERNS, batch_last=batch_last, dtype=dtype)
    x = torch.randn((48, 5, 7) if batch_last else (5, 7, 48), dtype=dtype)
    with torch.no_grad():
        wanted = layer(x, "silu")
        assert "at a time" not in layer.info
        steps = Step("factor", 0, 1), Step("factor", 1, 2)
        for rows in (1, 12, 34):
            PLANS.clear()
            monkeypatch.setattr(chain_execute, "plan", lambda *_, rows=rows: (steps, rows))
            for own in (layer, layer.pack()):
                assert_close(own(x, "silu"), wanted, depth=32)
                assert own.info.startswith(f"{rows} rows at a time")
    found = layer(x)
    assert "at a time" not in layer.info
    found.sum().backward()


def test_rows_at_a_time_are_those_that_a_cache_holds(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)

    def rows(batch, patterns, last=False):
        weights = [torch.empty(pattern) for pattern in patterns]
        features = km.KSPattern(*patterns[0]).in_features
        x = torch.empty(1, features, batch).mT if last else torch.empty(1, batch, features)
        found = chain_execute.plan(x, weights, "kernel", False)
        return batch if found is None else found[1]

    square = [(32, 32, 32, 1), (1, 32, 32, 32)]
    assert rows(8192, square) == 256
    assert rows(300, square) == 300
    assert rows(8192, square, True) == 2048
    assert rows(8192, [(6, 64, 64, 1), (1, 768, 192, 2)]) == 8192
    assert rows(65536, [(8, 8, 8, 1), (1, 8, 8, 8)], True) == 65536


@pytest.mark.parametrize("batch_last", [False, True], ids=["first", "last"])
def test_calls_that_look_like_one_through_the_matrix_go_through_it(batch_last, monkeypatch):
    torch.manual_seed(0)
    layer = km.KSLinear(8, 12, [(2, 3, 4, 1), (1, 6, 3, 2)], batch_last=batch_last)
    x, other = (torch.randn((8, n) if batch_last else (n, 8)) for n in (5, 7))
    twice = km.KSLinear(8, 12, [(2, 3, 4, 1), (1, 6, 3, 2)], weights=list(layer.weights), batch_last=batch_last)
    twice.bias.data = layer.bias.data.clone()
    whole = (Step("dense", 0, 2),)
    monkeypatch.setattr(chain_execute, "plan", lambda x, *_: (whole, x.shape[1]))
    packed = layer.pack()
    with torch.no_grad():
        packed(x)
        monkeypatch.undo()
        monkeypatch.setattr(chain_execute, "plan", lambda *_: None)
        assert_close(packed(x), twice(x), depth=24)
        assert packed.info == "torch dense"
        assert_close(packed(other), twice(other), depth=24)
        assert_close(packed(x, "relu"), twice(x, "relu"), depth=24)
        with torch.autocast("cpu", torch.bfloat16):
            assert packed(x).dtype == torch.bfloat16
    assert packed(x.requires_grad_()).requires_grad


def test_a_precision_that_is_asked_for_does_not_go_through_the_matrix(monkeypatch):
    layer = km.KSLinear(8, 12, [(2, 3, 4, 1), (1, 6, 3, 2)], algorithm="kernel").pack()
    x = torch.randn(5, 8)
    monkeypatch.setattr(chain_execute, "plan", lambda x, *_: ((Step("dense", 0, 2),), x.shape[1]))
    with torch.no_grad():
        layer(x)
        assert layer.info == "torch dense"
        monkeypatch.undo()
        for _ in range(3):
            with km.config(precision="ieee"):
                layer(x)
            assert layer.info != "torch dense"


def test_a_packed_factor_that_is_dense_goes_through_one_matrix():
    layer = km.KSLinear(6, 9, [(3, 3, 2, 1)], algorithm="dense")
    packed, x = layer.pack(), torch.randn(4, 6)
    with torch.no_grad():
        wanted = packed(x)
        image = packed._packed.parts[0].get(("dense", x.dtype))
        assert image.shape == (9, 6)
        assert torch.equal(packed(x), wanted)
        assert packed._packed.parts[0].get(("dense", x.dtype)) is image
        assert_close(packed(x[:3]), x[:3] @ layer.to_dense().T + layer.bias, depth=12)
        assert packed.info == "torch dense"


@pytest.mark.parametrize("options", [{"fused": True}, {"foreach": True}, {"foreach": False}], ids=str)
@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
def test_layers_follow_every_optimizer(optimizer, options):
    torch.manual_seed(0)
    layer = km.KSLinear(8, 12, [(2, 3, 4, 1), (1, 6, 3, 2)], dtype=torch.float64)
    x = torch.randn(5, 8, dtype=torch.float64)
    steps = optimizer(layer.parameters(), lr=0.1, **options)
    for _ in range(3):
        with torch.no_grad():
            for _ in range(2):
                assert_close(layer(x), x @ factors(layer).T + layer.bias, depth=64)
        steps.zero_grad()
        layer(x).square().mean().backward()
        steps.step()


def test_weights_are_taken_in_their_order():
    torch.manual_seed(0)
    square = [(2, 2, 2, 2), (2, 2, 2, 2), (4, 2, 2, 1)]
    x = torch.randn(5, 8, dtype=torch.float64)

    def wanted(layer):
        total = torch.eye(8, dtype=torch.float64)
        for place, pattern in enumerate(layer.patterns):
            total = pattern.to_dense(layer.weights[place].detach()) @ total
        return x @ total.T

    for place in ("0", "1"):
        layer = km.KSLinear(8, 8, square, bias=False, dtype=torch.float64)
        before = layer(x)
        parametrize.register_parametrization(layer.weights, place, nn.Identity())
        assert torch.equal(layer(x), before)
        parametrize.remove_parametrizations(layer.weights, place)
        assert_close(layer(x), before, depth=8)
        prune.l1_unstructured(layer.weights, place, amount=0.5)
        steps = torch.optim.SGD(layer.parameters(), lr=0.1)
        for _ in range(2):
            layer(x).sum().backward()
            steps.step()
            with torch.no_grad():
                found = layer(x)
                assert (layer.weights[int(place)] == 0).sum() >= 8
                assert_close(found, wanted(layer), depth=8)
                assert_close(layer.eval().pack()(x), found, depth=8)


@pytest.mark.parametrize("stored", STORED, ids=str)
def test_layers_with_weights_in_float8(stored):
    torch.manual_seed(0)
    weights = [torch.randn(pattern).to(stored) for pattern in PATTERNS]
    layer = km.KSLinear(48, 24, PATTERNS, weights=weights)
    drawn = km.KSLinear(48, 24, PATTERNS, dtype=stored)
    x = torch.randn(5, 48, requires_grad=True)
    for own in (layer, drawn):
        assert {weight.dtype for weight in own.weights} == {stored}
        assert not any(weight.requires_grad for weight in own.weights)
        found = own(x)
        assert_close(
            found.detach(), x.detach().double() @ factors(own).T + own.bias.detach(), dtype="float32", depth=99
        )
        (of_x, of_bias) = torch.autograd.grad(found.sum(), (x, own.bias))
        assert_close(of_x[0], factors(own).sum(0), dtype="float32", depth=99)
        assert torch.equal(of_bias, torch.full((24,), 5.0))
        packed = own.eval().pack()
        with torch.no_grad():
            assert_close(packed(x), found.detach(), depth=99)
            own.reset_parameters()
            assert_close(packed(x), found.detach(), depth=99)
            wanted = x.detach().double() @ factors(own).T + own.bias
            assert_close(own(x), wanted, dtype="float32", depth=99)
        assert_close(own.to_dense(), factors(own), dtype="float32", depth=99)
    assert drawn.weights[0].float().std() > 0.1


def test_precision_is_that_of_the_call(monkeypatch):
    seen = []
    with km.config(precision="ieee"):
        layer = km.KSLinear(48, 24, PATTERNS, dtype=torch.float64)
    bind = linear.bind_chain
    monkeypatch.setattr(linear, "bind_chain", lambda *given: seen.append(given[5].precision) or bind(*given))
    x = torch.randn(3, 48, dtype=torch.float64)
    PLANS.clear()
    layer(x)
    with km.config(precision="tf32"):
        layer(x)
    assert seen == ["", "tf32"]


def test_the_weight_that_models_read():
    layer = km.KSLinear(48, 24, PATTERNS)
    assert torch.equal(layer.weight, layer.to_dense())
    assert layer.weight.dtype == torch.float32
    assert "weight" not in layer.state_dict()
    layer.weight.sum().backward()
    assert layer.weights[0].grad is not None


class Transposed(nn.Module):
    def __init__(self, rows, columns):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(columns, rows)), nn.Parameter(torch.randn(rows))


Transposed.__name__ = "Conv1D"


def test_from_layers_of_transformers():
    linear, chain = Transposed(24, 12), km.kronsparse.monarch((24, 12), 2, 2)
    layer = km.KSLinear.from_linear(linear, chain)
    assert (layer.in_features, layer.out_features) == (12, 24)
    assert_close(layer.projection_error, project(linear.weight.detach().T, chain).error, depth=24)
    best = km.choose_patterns(linear, 0.9, count=1)[0]
    assert (best.patterns[0].in_features, best.patterns[-1].out_features) == (12, 24)


def test_from_linear_keeps_what_it_can():
    torch.manual_seed(0)
    linear = nn.Linear(48, 24)
    layer = km.KSLinear.from_linear(linear, PATTERNS)
    assert torch.equal(layer.bias, linear.bias)
    best = project(linear.weight.detach().double(), PATTERNS).error
    assert_close(layer.projection_error, best, dtype="float32", depth=48)
    exact = nn.Linear(48, 24, bias=False, dtype=torch.float64)
    exact.weight.data = factors(layer)
    again = km.KSLinear.from_linear(exact, PATTERNS)
    x = torch.randn(5, 48, dtype=torch.float64)
    assert again.bias is None
    assert_close(again(x).detach(), exact(x).detach(), depth=100)


def test_batch_last_companions():
    torch.manual_seed(0)
    linear, norm = nn.Linear(7, 5), nn.LayerNorm(7)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    linear_last, norm_last = km.LinearBatchLast(7, 5), km.LayerNormBatchLast(7)
    linear_last.load_state_dict(linear.state_dict())
    norm_last.load_state_dict(norm.state_dict())
    x = torch.randn(3, 2, 7)
    turned = x.movedim(-1, 0)
    assert_close(linear_last(turned).movedim(0, -1).detach(), linear(x).detach(), depth=7)
    assert_close(norm_last(turned).movedim(0, -1).detach(), norm(x).detach(), depth=7)
    bare = km.LayerNormBatchLast(7, elementwise_affine=False)
    assert_close(bare(turned).movedim(0, -1), nn.functional.layer_norm(x, (7,)), depth=7)
    half = km.LayerNormBatchLast(7, bias=False).half()(turned.half())
    assert half.dtype == torch.float16
    assert km.LinearBatchLast(7, 5, bias=False)(turned[:, 0, 0]).shape == (5,)


README = """
from ksmm_py.layer.kronecker_sparse.interface import KSLinear
import torch

patterns = [(6, 64, 64, 1), (1, 768, 192, 2)]
dim_in = patterns[0][0] * patterns[0][2] * patterns[0][3]
x = torch.randn((dim_in, 40) if last else (40, dim_in), dtype=torch.float32)
weights = [torch.ones(*pattern) for pattern in patterns]
ksl = KSLinear(patterns=patterns, weights=weights, algo="kernel", dtype=x.dtype, bs_last=last, device="cpu")
y = ksl(x)
ksl.bias = None
other = KSLinear(patterns, weights, False, "dense", dtype=x.dtype, bs_last=last, device="cpu")
z = other(x)
assert torch.linalg.norm(ksl(x) - z) / torch.linalg.norm(z) < 1e-5
assert y.shape == z.shape == ((1536, 40) if last else (40, 1536))
"""


@pytest.mark.parametrize("last", [False, True])
def test_the_program_of_their_readme(last):
    program = f"import kernmantle.compat\nkernmantle.compat.install('ksmm_py')\nlast = {last}\n{README}"
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("algo", ksmm.ALGORITHMS)
@pytest.mark.parametrize("bs_last", [False, True], ids=["first", "last"])
def test_their_layer(algo, bs_last):
    torch.manual_seed(0)
    weights = [torch.randn(pattern) for pattern in PATTERNS]
    layer = ksmm.KSLinear(PATTERNS, weights, algo=algo, dtype=torch.float32, bs_last=bs_last, vsize=2)
    wanted = torch.eye(48, dtype=torch.float64)
    for pattern, weight in zip(PATTERNS, weights, strict=True):
        wanted = KSPattern(*pattern).to_dense(weight.double()) @ wanted
    assert_close(layer.get_dense_product().detach(), wanted, dtype="float32", depth=32)
    x = torch.randn(48, 9)
    bias = layer.bias.detach().double().reshape(24, 1)
    found = layer(x if bs_last else x.T).detach()
    assert_close(found if bs_last else found.T, wanted @ x.double() + bias, dtype="float32", depth=32)
    assert layer.get_weights_size() == sum(weight.numel() for weight in weights)


@pytest.mark.parametrize("algo", ksmm.ALGORITHMS)
@pytest.mark.parametrize("pattern", [(2, 3, 5, 4), (1, 4, 6, 1), (3, 4, 2, 1)], ids=str)
def test_their_storage_formats(algo, pattern):
    weight = torch.randn(pattern)
    factor = ksmm.generate_factor(*pattern, algo, weight, torch.float32)
    assert torch.equal(ksmm.weights_of(factor, pattern, algo), weight)
    drawn = ksmm.weights_of(ksmm.generate_factor(*pattern, algo, dtype=torch.float64), pattern, algo)
    assert drawn.abs().max() <= pattern[2] ** -0.5
    dense = KSPattern(*pattern).to_dense(weight)
    assert torch.equal(ksmm.from_abcd_to_dense(weight), dense)
    assert torch.equal(
        ksmm.from_kernel_format_to_dense(ksmm.generate_factor(*pattern, "kernel", weight, torch.float32), pattern),
        dense,
    )
    assert torch.equal(
        ksmm.from_bmm_format_to_dense(ksmm.generate_factor(*pattern, "bmm", weight, torch.float32), pattern), dense
    )


@pytest.mark.parametrize("bs_last", [False, True], ids=["first", "last"])
def test_their_dense_layers(bs_last):
    torch.manual_seed(0)
    own = torch.randn(5, 3)
    x = torch.randn((3, 4, 2) if bs_last else (4, 2, 3))
    for weights in (None, [own], own, [own.view(1, 5, 3, 1)]):
        # Their order of arguments: patterns, algo, dtype, bs_last, vsize, bias, weights, device.
        layer = ksmm.get_linear_layer([(1, 5, 3, 1)], "unfused_linear", torch.float32, bs_last, 2, True, weights, "cpu")
        assert type(layer) is (ksmm.LinearBsl if bs_last else ksmm.UnfusedLinear)
        assert layer.bias.shape == ((5, 1) if bs_last else (5,))
        matrix = layer.weight if weights is None else own
        rows = x.movedim(0, -1) if bs_last else x
        found = layer(x).movedim(0, -1) if bs_last else layer(x)
        assert_close(found.detach(), (rows @ matrix.T + layer.bias.flatten()).detach(), depth=4)
    kept = ksmm.get_linear_layer(PATTERNS, "kernel", vsize=2, bias=True)
    assert (kept.vsize, kept.bias.shape, kept.weights) == (2, (24,), [None, None])
    with pytest.raises(errors.ShapeError, match=r"weights have shape \(3, 5\)"):
        ksmm.get_linear_layer([(1, 5, 3, 1)], "nn_linear", weights=[own.T])


@pytest.mark.parametrize("algo", ksmm.ALGORITHMS)
def test_their_layers_train(algo):
    torch.manual_seed(0)
    weights = [torch.randn(pattern) for pattern in PATTERNS]
    layer = ksmm.KSLinear(PATTERNS, weights, algo=algo, dtype=torch.float32)
    x, own = torch.randn(5, 48, requires_grad=True), km.KSLinear(48, 24, PATTERNS, weights=weights)
    wanted = torch.autograd.grad(own(x).sum(), (x, *own.weights))
    if algo == "bsr":
        with pytest.raises(errors.GradientError, match="block-sparse rows"):
            layer(x).sum().backward()
        layer.factors.requires_grad_(False)
        x.grad = None
    layer(x).sum().backward()
    assert_close(x.grad, wanted[0], depth=64)
    if algo != "bsr":
        for factor, pattern, gradient in zip(layer.factors, PATTERNS, wanted[1:], strict=True):
            assert_close(ksmm.weights_of(factor.grad, pattern, algo), gradient, depth=64)


def test_their_sparse_factors_are_read_where_they_lie(monkeypatch):
    torch.manual_seed(0)
    weights = [torch.randn(pattern) for pattern in PATTERNS]
    weights[0][0, 1] = 0  # entries as any other, which are trained too
    layer = ksmm.KSLinear(PATTERNS, weights, algo="sparse", dtype=torch.float32)
    dense = [torch.nn.Parameter(factor.detach().to_dense().to_sparse_csr()) for factor in layer.factors]
    for factor, pattern, weight, fewer in zip(layer.factors, PATTERNS, weights, dense, strict=True):
        stored = factor.detach()
        found = ksmm.weights_of(stored, pattern, "sparse")
        assert torch.equal(found, weight)
        assert found.data_ptr() == stored.values().data_ptr()
        assert torch.equal(stored.to_dense(), KSPattern(*pattern).to_dense(weight))
        assert torch.equal(ksmm.weights_of(fewer.detach(), pattern, "sparse"), weight)
    assert dense[0].detach().values().numel() < layer.factors[0].detach().values().numel()
    x, copies = torch.randn(5, 48), []
    make = execute.MADE["sparse"]

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            copies.append(function)
            return function(*args, **(kwargs or {}))

    with Watch(), torch.no_grad():
        layer._weights()
    assert not {torch.ops.aten.to_dense.default, torch.ops.aten._to_dense.default, torch.ops.aten.clone.default} & {
        *copies
    }
    with torch.no_grad():
        made = make(ksmm.weights_of(layer.factors[0], PATTERNS[0], "sparse")[None])[0]
    assert made.values().data_ptr() == layer.factors[0].detach().values().data_ptr()
    own = km.KSLinear(48, 24, PATTERNS, weights=weights)
    assert_close(layer(x).detach() - layer.bias.detach(), (own(x) - own.bias).detach(), depth=64)


def test_their_batched_products():
    weight, x = torch.randn(2, 3, 4, 5), torch.randn(7, 40)
    factor = ksmm.generate_factor(2, 3, 4, 5, "bmm", weight, torch.float32)
    wanted = x @ KSPattern(2, 3, 4, 5).to_dense(weight).T
    assert_close(ksmm.bmm_bs_first(x, factor, (2, 3, 4, 5)), wanted, depth=4)
    assert_close(ksmm.bmm_bs_last(x.T, factor, (2, 3, 4, 5)), wanted.T, depth=4)
    assert_close(ksmm.forward_bmm_bs_first(factor, x, (2, 3, 4, 5)), wanted, depth=4)
    assert_close(ksmm.forward_bmm_bs_last(factor, x.T, (2, 3, 4, 5)), wanted.T, depth=4)


@pytest.mark.parametrize("stored", STORED, ids=str)
def test_their_layers_in_float8(stored):
    layer = ksmm.KSLinear(PATTERNS, algo="kernel", dtype=stored)
    x = torch.randn(5, 48)
    assert {value.dtype for value in layer.state_dict().values()} == {stored}
    wanted = x @ layer.get_dense_product().T + layer.bias.float()
    assert_close(layer(x), wanted, depth=64)


def test_functions_named_as_their_files_stay_functions(monkeypatch):
    for name in ("ksmm_py", *(f"ksmm_py.{part}" for part in ksmm.SUBMODULES)):
        monkeypatch.setitem(sys.modules, name, ksmm)  # taken away again afterwards
    for _ in range(2):
        module = compat.install("ksmm_py")
        assert inspect.isfunction(module.get_linear_layer)
        assert importlib.import_module("ksmm_py.layer.get_linear_layer").get_linear_layer is module.get_linear_layer


def test_their_other_layers_and_errors():
    assert ksmm.get_in_size_out_size(PATTERNS) == (48, 24)
    assert isinstance(ksmm.get_linear_layer([(1, 5, 3, 1)], "nn_linear"), nn.Linear)
    last = ksmm.get_linear_layer([(1, 5, 3, 1)], "unfused_linear", torch.float32, True)
    assert last(torch.ones(3, 4)).shape == (5, 4)
    with pytest.raises(errors.ParameterError, match="algo must be"):
        ksmm.KSLinear(PATTERNS, algo="fast")
    with pytest.raises(errors.ParameterError, match="one dense pattern"):
        ksmm.get_linear_layer(PATTERNS, "nn_linear")
    with pytest.raises(errors.ShapeError, match="pattern is"):
        ksmm.generate_factor(2, 3, 4, 5, "bmm", torch.ones(2, 3, 4, 4))


@pytest.mark.parametrize("batch_last", [False, True], ids=["first", "last"])
def test_transforms_join_their_levels(batch_last):
    chain = km.kronsparse.hadamard(64, torch.float64)
    x = torch.randn((64, 300) if batch_last else (300, 64), dtype=torch.float64)
    rows = x.T if batch_last else x
    for _ in range(2):
        found = chain(x, batch_last)
        assert "as one" in chain.info or "dense" in chain.info
        assert_close(found.T if batch_last else found, rows @ chain.to_dense().T, depth=64)
    twin = pickle.loads(pickle.dumps(copy.deepcopy(chain)))
    assert_close(twin(x, batch_last, activation="relu"), torch.relu(found), depth=64)
    assert_close(chain(x, batch_last, out=torch.empty_like(found)), found, depth=64)


def test_transforms_never_change():
    weights, order = [torch.randn(4, 2, 2, 1), torch.randn(2, 2, 2, 2)], torch.randperm(8)
    chain, x = km.kronsparse.Chain(weights, order), torch.randn(5, 8)
    matrix = chain.to_dense()
    wanted = chain(x)
    assert_close(wanted, x @ matrix.T, depth=8)
    for own in (*weights, *chain.weights, chain.to_dense()):
        own.detach().numpy()[...] = 0
    for own in (order, chain.permutation):
        own.zero_()
    for _ in range(2):
        assert torch.equal(chain(x), wanted)
    assert torch.equal(chain.to_dense(), matrix)
    with pytest.raises(errors.GradientError, match="a chain never changes"):
        km.kronsparse.Chain([weights[0].requires_grad_()])
