"""What torch.export, torch.compile and AOTInductor make of calls: it runs, and is trained, as eager calls are."""

from __future__ import annotations

import shutil

import pytest
import torch

import kernmantle as km
from kernmantle.errors import GradientError
from kernmantle.testing import assert_close
from kernmantle.torch_ops import blocks, row_reduce_one_block

from ..arrays import Module

WIDTH = 1.3
KERNEL = km.Gaussian(WIDTH)


def inputs(dtype=torch.float64):
    torch.manual_seed(0)
    return [torch.randn(*shape, dtype=dtype) for shape in ((7, 4), (9, 4), (9, 2))]


def matrix(x, y, width):
    return torch.exp(-(x[:, None] - y).square().sum(-1) / (2 * width**2))


TRAINED = {
    "matmul": (lambda k, x, y, v: k.matmul(x, y, v), lambda w, v: w @ v),
    "sum": (lambda k, x, y, _: k.sum(x, y), lambda w, _: w.sum(-1)),
    "max": (lambda k, x, y, _: k.max(x, y), lambda w, _: w.amax(-1)),
    "min": (lambda k, x, y, _: k.min(x, y), lambda w, _: w.amin(-1)),
    "logsumexp": (lambda k, x, y, _: k.logsumexp(x, y), lambda w, _: w.logsumexp(-1)),
    "argkmax": (lambda k, x, y, _: k.argkmax(x, y, 3, return_values=True)[0], lambda w, _: w.topk(3).values),
}


class Trained(torch.nn.Module):
    """A kernel whose centres and bandwidth are trained; torch.compile takes those made beforehand."""

    def __init__(self, function, y, beforehand=True):
        super().__init__()
        self.function = function
        self.y = torch.nn.Parameter(y)
        self.width = torch.nn.Parameter(torch.tensor(WIDTH, dtype=y.dtype))
        self.kernel = km.Gaussian(self.width) if beforehand else None

    def forward(self, x, v):
        return self.function(self.kernel or km.Gaussian(self.width), x, self.y, v)


def expected(name, module, x, v, cotangent):
    result = TRAINED[name][1](matrix(x, module.y, module.width), v)
    return result, torch.autograd.grad(result, [module.y, module.width, v], cotangent, allow_unused=True)


def check_trained(name, module, call, x, v):
    v = v.requires_grad_()
    found = call(x, v)
    cotangent = torch.randn_like(found)
    gradients = torch.autograd.grad(found, [*call.parameters(), v], cotangent, allow_unused=True)
    result, wanted = expected(name, module, x, v, cotangent)
    assert_close(found, result, depth=16)
    for own, other in zip(gradients, wanted, strict=True):
        assert (own is None) == (other is None)
        if other is not None:
            assert_close(own, other, depth=128)


@pytest.fixture(params=["one block", "blocks of both"])
def small_blocks(request, monkeypatch):
    if request.param != "one block":
        monkeypatch.setattr(blocks, "LARGEST", row_reduce_one_block.COPIES * 8 * 5)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("name", TRAINED)
def test_what_is_exported_is_trained(name, strict, small_blocks, reference):
    x, y, v = inputs()
    module = Trained(TRAINED[name][0], y, beforehand=strict)
    exported = torch.export.export(module, (x, v), strict=strict)
    assert "kernmantle.apply" in str(exported.graph)
    check_trained(name, module, exported.module(), x, v)


@pytest.mark.parametrize("name", TRAINED)
def test_what_is_compiled_is_trained_in_one_graph(name, small_blocks, device):
    torch._dynamo.reset()
    x, y, v = (value.to(device) for value in inputs())
    module = Trained(TRAINED[name][0], y)
    check_trained(name, module, torch.compile(module, fullgraph=True, backend="aot_eager"), x, v)


def test_a_compiled_backward_pass_is_one_operator(monkeypatch):
    """However many blocks it takes."""
    torch._dynamo.reset()
    monkeypatch.setattr(blocks, "LARGEST", row_reduce_one_block.COPIES * 8 * 5)
    graphs = []

    def written(graph, _):
        graphs.append([node.target for node in graph.graph.nodes if "kernmantle" in str(node.target)])
        return graph.forward

    backend = torch._dynamo.backends.common.aot_autograd(fw_compiler=written, bw_compiler=written)
    x, y, v = inputs()
    torch.compile(KERNEL.matmul, fullgraph=True, backend=backend)(x, y.requires_grad_(), v).sum().backward()
    operators = torch.ops.kernmantle
    assert graphs == [[operators.apply.default], [operators.apply_backward.default]]


def test_the_choice_of_entries_has_no_derivative():
    """Where detached tensors of an exported selection were replaced by trained ones."""
    x, y, _ = inputs()
    exported = torch.export.export(Trained(TRAINED["argkmax"][0], y), (x, y))
    (node,) = [node for node in exported.graph.nodes if node.target == torch.ops.kernmantle.apply.default]
    with pytest.raises(GradientError, match="argkmax"):
        node.target([x.requires_grad_(), y, torch.tensor(WIDTH, dtype=x.dtype)], [], None, *node.args[3:])


def test_halves_are_trained_in_float32():
    """Against the bandwidth as the module holds it: 1.3 is 1.296875 in bfloat16."""
    x, y, v = inputs(torch.bfloat16)
    module = Trained(TRAINED["matmul"][0], y.detach()).requires_grad_(False)
    rows = x.clone().requires_grad_()
    found = torch.export.export(module, (x, v)).module()(rows, v)
    (gradient,) = torch.autograd.grad(found.float().sum(), rows)
    wide, centres, width = x.double().requires_grad_(), y.double(), module.width.double()
    weights = matrix(wide, centres, width)
    (wanted,) = torch.autograd.grad((weights @ v.double()).sum(), wide)
    sizes = weights.detach() * v.double().abs().sum(1)
    terms = torch.einsum("mn,mnk->mk", sizes, (x.double()[:, None] - centres).abs()) / width**2
    assert gradient.dtype == torch.bfloat16
    assert_close(gradient, wanted, depth=len(y), magnitude=terms)


COMPILED = {
    "cdist": (lambda x, y, _: km.cdist(x, y, p=1.3), lambda x, y, _: torch.cdist(x, y, p=1.3)),
    "kernel": (lambda x, y, _: KERNEL(x, y), lambda x, y, _: matrix(x, y, WIDTH)),
    "matmul": (KERNEL.matmul, lambda x, y, v: matrix(x, y, WIDTH) @ v),
    "contract": (
        lambda x, y, _: km.contract("mk,nk->mn", lambda a, b, c: abs(a - b) * c, x, y, c=1.5),
        lambda x, y, _: 1.5 * torch.cdist(x, y, p=1),
    ),
    "no numbers": (
        lambda x, y, _: km.contract("mk,nk->mn", lambda a, b: abs(a - b), x, y),
        lambda x, y, _: torch.cdist(x, y, p=1),
    ),
    "values of rows": (
        lambda x, y, _: KERNEL.argkmax(x, y, 2, return_values=True)[0],
        lambda x, y, _: matrix(x, y, WIDTH).topk(2).values,
    ),
    "kron_matmul": (
        lambda x, y, v: km.kron_matmul(x, [y[:2], v[:2]]),
        lambda x, y, v: x @ torch.kron(y[:2], v[:2]),
    ),
}  # fmt: skip


PACKAGED = ("cdist", "matmul", "contract", "values of rows", "kron_matmul")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="AOTInductor needs a C++ compiler")
def test_aot_inductor(tmp_path):
    """One package with a call of each operator: its C++ takes as long to compile for one as for all."""
    own, oracles = zip(*(COMPILED[name] for name in PACKAGED), strict=True)
    arrays = inputs(torch.float32)
    with torch.no_grad():
        exported = torch.export.export(Module(lambda *given: tuple(each(*given) for each in own)), tuple(arrays))
        package = torch._inductor.aoti_compile_and_package(exported, package_path=str(tmp_path / "model.pt2"))
        found = torch._inductor.aoti_load_package(package)(*arrays)
    for name, result, oracle in zip(PACKAGED, found, oracles, strict=True):
        exact = oracle(*(value.double() for value in arrays))
        assert result.shape == exact.shape, name
        assert_close(result, exact, depth=16)
