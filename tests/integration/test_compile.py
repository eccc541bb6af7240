"""torch.compile without graph breaks, the operator's registration, and that numbers never compile anew."""

from __future__ import annotations

import inspect
import shutil
from contextvars import Context

import pytest
import torch
from torch._dynamo.testing import CompileCounter

import kernmantle as km
from kernmantle.ir.program import Program
from kernmantle.runtime.dispatch import PLANS, CallKey
from kernmantle.testing import assert_close
from kernmantle.torch_ops import execute
from kernmantle.torch_ops.torch_private import in_callers_context

from ..arrays import Module
from .conftest import BACKENDS

HANDED = "copy_context" in inspect.getsource(torch.autograd.graph._engine_run_backward)
"""Whether torch hands the threads that compute gradients the context of their caller, as 2.11 does not."""
TRACES = pytest.mark.skipif(
    tuple(map(int, torch.__version__.split("+")[0].split(".")[:2])) < (2, 12),
    reason="torch 2.11 raises an error where its compiler meets this, as SUPPORT.md says",
)
WITH_KERNELS = pytest.mark.parametrize("backend", BACKENDS[1:], indirect=True)
"""Backends but the reference: what torch.compile traces is the same on all of them."""
COMPILERS = ["aot_eager", *(["inductor"] if shutil.which("g++") else [])]


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()


def inputs(device, m=4, n=6, dtype=torch.float64):
    torch.manual_seed(0)
    return [torch.randn(rows, 5, dtype=dtype, device=device, requires_grad=True) for rows in (m, n)]


@pytest.mark.parametrize("compiler", COMPILERS)
def test_forward_and_first_order(compiler, backend, device):
    contraction = km.Contraction(
        "mk,nk->mn", lambda a, b, p: abs(a - b) ** p, epilogue=lambda s, p, h: km.exp(-(s ** (1 / p)) / h)
    )
    h = torch.tensor(2.0, dtype=torch.float64, device=device, requires_grad=True)
    x, y = inputs(device)

    def function(x, y, h):
        return contraction(2 * x, y, p=1.3, h=h).sin() + 1

    compiled = torch.compile(function, fullgraph=True, backend=compiler)
    with torch.no_grad():
        assert_close(compiled(x, y, h), function(x, y, h), depth=5)
    found, wanted = compiled(x, y, h), function(x, y, h)
    assert_close(found, wanted, depth=5)
    cotangent = torch.randn_like(found)
    for got, want in zip(*(torch.autograd.grad(out, (x, y, h), cotangent) for out in (found, wanted)), strict=True):
        assert_close(got, want, depth=30)


@pytest.mark.parametrize("reduce", ["sum", "prod", "min", "logsumexp", "argmin", "any"])
def test_reductions(reduce, backend, device):
    contraction = km.Contraction("mk,nk->mn", lambda a, b: a * b + a, reduce=reduce)
    x, y = (value.detach() for value in inputs(device))
    compiled = torch.compile(contraction, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x, y), contraction(x, y))
    if reduce in ("argmin", "any"):
        return
    x.requires_grad_()
    found, wanted = (torch.autograd.grad(f(x, y).sum(), x)[0] for f in (compiled, contraction))
    assert_close(found, wanted, depth=6)


def test_one_array_for_both(backend, device):
    contraction = km.Contraction("mk,nk->mn", lambda a, b: abs(a - b) ** 1.5)
    x = inputs(device)[0]
    compiled = torch.compile(lambda x: contraction(x, x), fullgraph=True, backend="aot_eager")
    assert_close(compiled(x), contraction(x, x), depth=5)
    found, wanted = (torch.autograd.grad(f(x).sum(), x)[0] for f in (compiled, lambda x: contraction(x, x)))
    assert_close(found, wanted, depth=10)


def test_several_results(backend, device):
    contraction = km.Contraction("mk,nk->mn", lambda a, b: (abs(a - b), abs(a - b)), reduce=("min", "argmin"))
    x, y = (value.detach() for value in inputs(device))
    compiled = torch.compile(contraction, fullgraph=True, backend="aot_eager")
    for found, wanted in zip(compiled(x, y), contraction(x, y), strict=True):
        assert torch.equal(found, wanted)


def graphs():
    """Number of graphs that were traced so far."""
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


@WITH_KERNELS
def test_dynamic_shapes(backend, device):
    contraction = km.Contraction("mk,nk->mn", lambda a, b: abs(a - b), epilogue=lambda s: km.exp(-s))
    counter = CompileCounter()
    compiled = torch.compile(contraction, fullgraph=True, dynamic=True, backend=counter)
    for m, n in ((4, 6), (7, 3), (9, 11), (30, 5)):
        x, y = (value.detach() for value in inputs(device, m, n))
        assert_close(compiled(x, y), contraction(x, y), depth=5)
    assert counter.frame_count == 1


@WITH_KERNELS
def test_dynamic_shapes_with_a_gradient(backend, device):
    contraction = km.Contraction("mk,nk->mn", lambda a, b: abs(a - b), epilogue=lambda s: km.exp(-s))
    compiled = torch.compile(contraction, fullgraph=True, dynamic=True, backend="aot_eager")
    for m, n in ((4, 6), (7, 3)):
        x, y = inputs(device, m, n)
        found, wanted = (torch.autograd.grad(f(x, y).sum(), (x, y)) for f in (compiled, contraction))
        for got, want in zip(found, wanted, strict=True):
            assert_close(got, want, depth=10)


INSIDE = {
    "contraction": lambda x, y: km.Contraction("mk,nk->mn", lambda a, b: abs(a - b), epilogue=lambda s: s + 1)(-x, y),
    "scores": lambda x, y: km.contract(
        "mn,nc->mc", lambda s, v: km.exp(-s) * v, km.Contraction("mk,nk->mn", lambda a, b: abs(a - b)).lazy(x, y), y
    ),
    "distances": lambda x, y: km.cdist(x, y, p=1.5, w=y[0].abs()),
    "kernel": lambda x, y: km.Laplace(y[0, 0].exp()).matmul(x, y, y),
    "option": lambda x, y: km.Matern(y[0, 0].exp())(x, y),
    "lengthscales": lambda x, y: km.Gaussian(1.3, lengthscales=y[0].abs() + 1)(x, y),
    "defaults": lambda x, y: 2 * km.Polynomial()(x, y),
    "sum": lambda x, y: (0.5 * km.Gaussian(1.3) + km.Matern(y[0, 0].exp(), nu=2.5)).matmul(x, y, y),
    "product": lambda x, y: ((km.Laplace(2.0) * km.Gaussian(y[0, 0].exp()) - 1) ** 2 / 3)(x, y),
    "scaled": lambda x, y: (y[0, 0].exp() * km.Gaussian(1.3) + km.Laplace(2.0) * y[0, 1]).matmul(x, y, y),
    "own": lambda x, y: (
        km.Kernel(lambda a, b, w: w * abs(a - b), lambda s: km.exp(-s), w=y[0, 0].exp()) + km.Linear()
    )(x, y),
}  # fmt: skip


@WITH_KERNELS
@pytest.mark.parametrize("name", [pytest.param(name, marks=[TRACES] * (name == "lengthscales")) for name in INSIDE])
@pytest.mark.parametrize("dynamic", [None, True], ids=["static", "dynamic"])
def test_what_is_made_inside_a_graph_compiles_whole(name, dynamic, backend, device):
    torch.compiler.reset()
    compiled = torch.compile(INSIDE[name], fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for m, n in ((4, 6), (7, 3), (2, 5)):
        x, y = inputs(device, m, n)
        assert_close(compiled(x, y).detach(), INSIDE[name](x, y).detach(), depth=10)
        found, wanted = (torch.autograd.grad(f(x, y).square().sum(), (x, y)) for f in (compiled, INSIDE[name]))
        for got, want in zip(found, wanted, strict=True):
            assert_close(got, want, depth=100)


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64])
def test_new_numbers_do_not_trace_again(dtype, backend, device):
    contraction = km.Contraction("mk,nk->mn", lambda a, b, c: c * abs(a - b), epilogue=lambda s, d: s + d)
    compiled = torch.compile(contraction, fullgraph=True, backend="aot_eager")
    x, y = ((10 * value.detach()).to(dtype) for value in inputs(device))
    for number in range(3, 13):
        c, d = (number, number + 1) if dtype == torch.int64 else (number + 0.25, number - 0.25)
        assert_close(compiled(x, y, c=c, d=d), contraction(x, y, c=c, d=d), depth=5)
    assert graphs() <= 2


def test_new_exponents_do_not_trace_again(backend, device):
    contraction = km.Contraction("mk,nk->mn", lambda a, b, p: abs(a - b) ** p)
    compiled = torch.compile(contraction, fullgraph=True, backend="aot_eager")
    x, y = inputs(device)
    for place in range(10):
        p = 1.1 + place / 32
        found, wanted = (torch.autograd.grad(f(x, y, p=p).sum(), (x, y)) for f in (compiled, contraction))
        for got, want in zip(found, wanted, strict=True):
            assert_close(got, want, depth=10)
    assert graphs() <= 2


def test_new_values_of_a_tensor_do_not_trace_again(backend, device):
    contraction = km.Contraction("mk,nk->mn", lambda a, b, p: abs(a - b) ** p)
    counter = CompileCounter()
    compiled = torch.compile(contraction, fullgraph=True, backend=counter)
    x, y = (value.detach() for value in inputs(device))
    for place in range(5):
        p = torch.tensor(1.1 + place / 32, dtype=x.dtype, device=device)
        assert_close(compiled(x, y, p=p), contraction(x, y, p=p), depth=5)
    assert counter.frame_count == 1


@pytest.mark.parametrize("reduce", ["sum", "argmin"])
def test_the_operator_is_registered_properly(reduce, backend, device):
    contraction = km.Contraction("mk,nk->mn", lambda a, b, c: abs(a - b) * c, reduce=reduce)
    x, y = (value.detach() for value in inputs(device))
    types = execute.Types("f64", ("i64" if reduce == "argmin" else "f64",)).text
    operator = torch.ops.kernmantle.contract.default
    torch.library.opcheck(operator, ([x, y], [1.5], [], contraction.program.text, types))
    mixed = [x.expand(2, 4, 5), y.mT.contiguous().mT]
    value = torch.tensor(0.5, dtype=torch.float64)
    torch.library.opcheck(operator, (mixed, [], [value], contraction.program.text, types))
    if reduce == "sum":
        moving = [tensor.clone().requires_grad_() for tensor in (x, y)]
        torch.library.opcheck(operator, (moving, [2.0], [], contraction.program.text, types))


@pytest.mark.parametrize(
    "how", [*(pytest.param(how, marks=TRACES) for how in ("grad", "grad of vmap", "vmap of grad")), "vmap"]
)
def test_transforms_inside_what_is_compiled(how, device):
    x, y = (torch.stack([value, 2 * value]).detach() for value in inputs(device))
    v = y[..., :2] + 1
    kernel = km.Laplace(1.5)

    def value(x, y, v):
        return km.cdist(x, y, p=1.3).sum() + kernel.matmul(x, y, v).sum()

    total = {
        "grad": torch.func.grad(lambda x: value(x[0], y[0], v[0])),
        "grad of vmap": torch.func.grad(lambda x: torch.func.vmap(value)(x, y, v).sum()),
        "vmap of grad": torch.func.vmap(torch.func.grad(lambda x: value(x, y[0], v[0]))),
        "vmap": lambda x: torch.func.vmap(value)(x, y, v),
    }[how]
    found = torch.compile(total, backend="aot_eager", fullgraph=True)(x)
    assert_close(found, total(x), depth=16)
    assert found.abs().max() > 0.1


GAUSSIAN = km.Gaussian(1.5)
KERNEL, CONTRACTION = km.Laplace(1.5), km.Contraction("mk,nk->mn", lambda a, b: abs(a - b))
FAMILIES = {
    "contraction": CONTRACTION,
    "contract": lambda x, y: km.contract("mk,nk->mn", lambda a, b, c: abs(a - b) * c, x, y, c=1.5),
    "cdist": lambda x, y: km.cdist(x, y, p=1.3),
    "kernel": KERNEL,
    "matmul": lambda x, y: KERNEL.matmul(x, y, y),
    "logsumexp": KERNEL.logsumexp,
    "max": KERNEL.max,
    "gradient": lambda x, y: KERNEL.gradient(x, y, y[:, :1]),
    "argkmin": lambda x, y: km.argkmin(x, y, 2, p=1.3),
    "kron_matmul": lambda x, y: km.kron_matmul(x, [y[:1, :2], y[:5, :3]]),
    "kron_sparse_matmul": lambda x, y: km.kron_sparse_matmul(x, y[:5].reshape(1, 5, 5, 1), (1, 5, 5, 1)),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_export_and_what_is_saved_of_it(name, tmp_path, device):
    x, y = (value.detach() for value in inputs(device))
    exported = torch.export.export(Module(FAMILIES[name]), (x, y))
    assert "kernmantle." in str(exported.graph)
    torch.export.save(exported, tmp_path / "saved.pt2")
    found = torch.export.load(tmp_path / "saved.pt2").module()(x, y)
    assert_close(found, FAMILIES[name](x, y), depth=5)


SLICED = ("gradient", "kron_matmul", "kron_sparse_matmul")
"""A torch without CUDA cannot slice tensors that are said to be there."""


@pytest.mark.parametrize("name", sorted(set(FAMILIES) - set(SLICED)))
def test_export_and_compile_for_a_gpu_that_is_not_here(name):
    """As torch traces them: with tensors that have a device and no memory."""
    with torch._subclasses.fake_tensor.FakeTensorMode() as mode:
        x, y = (torch.empty(rows, 5, device="cuda") for rows in (4, 6))
    exported = torch.export.export(Module(FAMILIES[name]), (x, y), strict=False)
    nodes = [node for node in exported.graph.nodes if "kernmantle." in str(node.target)]
    assert nodes
    results = [value for node in nodes for value in torch.utils._pytree.tree_leaves(node.meta["val"])]
    assert {value.device.type for value in results} == {"cuda"}
    with mode:
        compiled = torch.compile(FAMILIES[name], backend="eager", fullgraph=True)(x, y)
    assert compiled.device.type == "cuda"


CONFIGURED = {
    "contraction": lambda x, y: km.contract("mk,nk->mn", lambda a, b: a * b, x, y),
    "kernel": GAUSSIAN,
    "matmul": lambda x, y: GAUSSIAN.matmul(x, y, y),
}


@pytest.fixture
def precisions(monkeypatch):
    """Precisions of the kernels that are looked up."""
    seen = []
    configured = execute.Types.configured

    def watch(self, precision):
        seen.append(configured(self, precision).precision)
        return configured(self, precision)

    monkeypatch.setattr(execute.Types, "configured", watch)
    return seen


@pytest.mark.parametrize("name", CONFIGURED)
def test_compiled_calls_see_the_configuration_in_force(name, precisions, device):
    """The one that is in force when they are called, without compiling again."""
    x, y = (value.detach().float() for value in inputs(device))
    graphs = []
    compiled = torch.compile(
        CONFIGURED[name], backend=lambda graph, _: graphs.append(graph) or graph.forward, fullgraph=True
    )
    for precision in (None, "ieee", "tf32", None):
        precisions.clear()
        PLANS.clear()
        with km.config(precision=precision):
            compiled(x, y)
        assert precisions
        assert set(precisions) == {precision or "default"}
    assert len(graphs) == 1


@pytest.mark.parametrize("name", CONFIGURED)
def test_compiled_backward_passes_see_the_configuration_in_force(name, precisions, device):
    """That around ``backward``, which torch runs in a thread of its own for tensors on a GPU."""
    if torch.device(device).type == "cuda" and not HANDED:
        pytest.skip("this torch hands its threads no context")
    x, y = (value.detach().float() for value in inputs(device))
    compiled = torch.compile(CONFIGURED[name], backend="aot_eager", fullgraph=True)
    for precision in (None, "ieee", "tf32", None):
        result = compiled(x.requires_grad_(), y)
        precisions.clear()
        PLANS.clear()
        with km.config(precision=precision):
            result.sum().backward()
        assert precisions
        assert set(precisions) == {precision or "default"}


def texts(contraction, calls):
    """Texts of the programs that were bound."""
    PLANS.clear()
    for operands, named in calls:
        contraction(*operands, **named)
    keys = [key for key in PLANS if isinstance(key, CallKey)]
    return {key.operation[1] for key in keys if key.operation[0] == "program"}


def test_a_sweep_over_numbers_makes_one_program(backend, device):
    general = km.Contraction(
        "mk,nk->mn", lambda a, b, p, w: w * abs(a - b) ** p, epilogue=lambda s, p, h: km.exp(-(s ** (1 / p)) / h)
    )
    x, y = (value.detach() for value in inputs(device))
    calls = [((x, y), {"p": 1.1 + i / 64, "h": 0.5 + i, "w": 3.0 + i / 8}) for i in range(50)]
    assert len(texts(general, calls)) == 1


def test_a_sweep_over_literals_makes_one_program():
    found = {
        km.Contraction("mk,nk->mn", lambda a, b, i=i: (0.3 + i / 64) * abs(a - b) ** (1.1 + i / 64)).program.text
        for i in range(50)
    }
    captured = set()
    for i in range(50):
        bandwidth, p = 0.3 + i / 64, 1.1 + i / 64
        contraction = km.Contraction(
            "mk,nk->mn",
            lambda a, b: abs(a - b) ** p,  # noqa: B023
            epilogue=lambda s: km.exp(-s / bandwidth) + 3.5 * bandwidth,  # noqa: B023
        )
        captured.add(contraction.program.text)
    assert len(found) == len(captured) == 1


def test_power_classes_have_a_program_each(backend, device):
    contraction = km.Contraction("mk,nk->mn", lambda a, b, p: abs(a - b) ** p)
    x, y = (value.detach() for value in inputs(device))
    classes = texts(contraction, [((x, y), {"p": p}) for p in (0.5, 1, 1.5, 2, 2.0, 2.5, 3, 4, 1.3, 1.7)])
    assert len(classes) == 8
    assert all(isinstance(Program.parse(text), Program) for text in classes)


SCALE = 3.0


def distance(a, b):
    return abs(a - b)


WRITTEN = {
    "lambda": lambda x, y: km.contract("mk,nk->mn", lambda a, b: abs(a - b), x, y),
    "function": lambda x, y: km.contract("mk,nk->mn", distance, x, y),
    "reduction": lambda x, y: km.contract("mk,nk->mn", lambda a, b: a + b, x, y, reduce="max"),
    "epilogue": lambda x, y: km.contract("mk,nk->mn", lambda a, b: abs(a - b), x, y, epilogue=lambda s: torch.exp(-s)),
    "parameter": lambda x, y: km.contract("mk,nk->mn", lambda a, b, p: abs(a - b) ** p, x, y, p=1.3),
    "several": lambda x, y: km.contract("mk,nk->mn", lambda a, b: (a + b, a * b), x, y, reduce=("max", "sum"))[1],
}


@WITH_KERNELS
@pytest.mark.parametrize("name", WRITTEN)
def test_contractions_written_on_the_spot(name, backend, device):
    x, y = inputs(device)
    call = WRITTEN[name]
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    assert_close(compiled(x, y), call(x, y).detach(), depth=5)
    found, wanted = (torch.autograd.grad(function(x, y).sum(), (x, y)) for function in (compiled, call))
    for one, other in zip(found, wanted, strict=True):
        assert_close(one, other, depth=5)


def test_a_captured_constant(backend, device):
    x, y = (value.detach() for value in inputs(device))

    def call(x, y):
        scale = 2.5
        return km.contract("mk,nk->mn", lambda a, b: scale * abs(a - b), x, y)

    assert_close(torch.compile(call, fullgraph=True, backend="eager")(x, y), call(x, y), depth=5)


def test_what_torch_compile_would_not_see_is_refused(backend, device):
    x, y = (value.detach() for value in inputs(device))
    largest = km.Semiring(km.maximum, float("-inf"))
    for call, problem in (
        (lambda x, y: km.contract("mk,nk->mn", lambda a, b: SCALE * abs(a - b), x, y), "global number 'SCALE'"),
        (lambda x, y: km.contract("mk,nk->mn", lambda a, b: a + b, x, y, reduce=largest), "Contraction beforehand"),
    ):
        torch._dynamo.reset()
        with pytest.raises(Exception, match=problem):
            torch.compile(call, fullgraph=True, backend="eager")(x, y)


@pytest.mark.skipif(not HANDED, reason="this torch hands its threads no context")
def test_a_thread_that_computes_gradients_has_the_configuration_of_its_caller():
    """As a compiled backward pass on a GPU has it, which starts without a block."""
    seen = []
    run = in_callers_context(lambda: seen.append(km.get_config().precision))

    class Elsewhere(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return 2 * x

        @staticmethod
        def backward(ctx, grad):
            Context().run(run)
            with km.config(precision="ieee"):
                run()
            return 2 * grad

    x = torch.ones(2, requires_grad=True)
    with km.config(precision="tf32"):
        Elsewhere.apply(x).sum().backward()
    Elsewhere.apply(x).sum().backward()
    run()
    assert seen == ["tf32", "ieee", None, "ieee", None]


@TRACES
@pytest.mark.parametrize("compiler", COMPILERS)
def test_kernels_with_lengthscales_are_made_while_compiling(compiler):
    x, y = inputs("cpu")
    lengths = torch.tensor([0.5, 1.0, 2.0, 1.5, 0.75], dtype=torch.float64, requires_grad=True)

    def function(x, y, lengths):
        kernel = km.Laplace(lengthscales=2 * lengths)
        return km.Gaussian(lengthscales=lengths)(x, y), kernel.matmul(x, y, y)

    found = torch.compile(function, backend=compiler, fullgraph=True)(x, y, lengths)
    for got, want in zip(found, function(x, y, lengths), strict=True):
        assert_close(got, want, depth=9)
        own, eager = (
            torch.autograd.grad(value.square().sum(), (x, y, lengths), retain_graph=True) for value in (got, want)
        )
        for one, other in zip(own, eager, strict=True):
            assert_close(one, other, depth=60)
