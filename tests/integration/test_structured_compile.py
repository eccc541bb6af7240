"""Compiled products with Kronecker and Kronecker-sparse matrices, and the routes of operators."""

from __future__ import annotations

import warnings

import pytest
import torch

import kernmantle as km
from kernmantle.structured.kron import execute as kron_execute
from kernmantle.structured.mode_product import execute as kronsparse_run
from kernmantle.testing import assert_close

SIZES = ((5, 2, 3, 4, 2), (5, 3, 4, 2, 2), (6, 3, 4, 5, 2), (9, 4, 2, 3, 5))


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("dynamic", [None, True])
def test_kronecker_products_of_further_sizes_compile_whole(dynamic, recorded):
    torch._dynamo.reset()
    graphs = []

    def backend(module, _):
        graphs.append(module)
        return module.forward

    compiled = torch.compile(
        lambda x, f, g: km.kron_matmul(x, [f, 2, g, f]), fullgraph=True, dynamic=dynamic,
        backend="aot_eager" if recorded else backend,
    )  # fmt: skip
    two = torch.eye(2, dtype=torch.float64)
    for rows, a, b, p, q in SIZES:
        shapes = (rows, a * 2 * p * a), (a, b), (p, q)
        x, f, g = given = [torch.randn(shape, dtype=torch.float64, requires_grad=recorded) for shape in shapes]
        found, wanted = compiled(*given), x @ torch.kron(torch.kron(torch.kron(f, two), g), f)
        assert_close(found.detach(), wanted.detach(), depth=200)
        if recorded:
            slopes = [torch.autograd.grad(value.square().sum(), given) for value in (found, wanted)]
            for one, other in zip(*slopes, strict=True):
                assert_close(one, other, depth=20000)
    assert recorded or not dynamic or len(graphs) <= 2


STRIDED = {
    "as they are": lambda: [torch.randn(4, 2), torch.randn(5, 3)],
    "transposed": lambda: [torch.randn(2, 4).mT, torch.randn(3, 5).mT],
    "one transposed": lambda: [torch.randn(2, 4).mT, torch.randn(5, 3)],
    "with gaps": lambda: [torch.randn(2, 8)[:, ::2].mT, torch.randn(5, 3)],
    "a batch": lambda: [torch.randn(5, 4, 2), torch.randn(5, 3)],
    "expanded": lambda: [torch.randn(1, 1).expand(4, 2), torch.randn(5, 3)],
}


@pytest.mark.parametrize(
    "needed", [[True] * 3, [False, True, False], [True, False, False], [False, False, True]], ids=str
)
@pytest.mark.parametrize("layout", STRIDED)
def test_the_operator_of_gradients_is_registered_properly(layout, needed):
    assert km.kron_matmul  # which loads it
    x, grad, factors = torch.randn(5, 6, 1), torch.randn(5, 20, 1), STRIDED[layout]()
    arguments = x, factors, grad, 2.0, "0 1", "default fused", needed
    checks = ("test_schema", "test_faketensor")
    torch.library.opcheck(torch.ops.kernmantle.kron_backward.default, arguments, test_utils=checks)
    own = [each.detach().clone().requires_grad_() for each in (x, *factors)]
    (2 * km.kron_matmul(own[0].mT, [factor.mT for factor in own[1:]]).mT).backward(grad)
    wanted = [each.grad for each, needs in zip(own, needed, strict=True) if needs]
    for one, other in zip(torch.ops.kernmantle.kron_backward(*arguments), wanted, strict=True):
        assert_close(one, other, depth=100)


def test_compiled_products_see_the_configuration(monkeypatch):
    torch._dynamo.reset()
    seen, prepared, product = [], kron_execute.bind, kronsparse_run.product

    def noted_prepared(text, options, *rest):
        seen.append(options)
        return prepared(text, options, *rest)

    def noted_product(own, *rest, **named):
        seen.append(own.precision)
        return product(own, *rest, **named)

    monkeypatch.setattr(kron_execute, "bind", noted_prepared)
    monkeypatch.setattr(kronsparse_run, "product", noted_product)
    f, x = torch.randn(4, 4), torch.randn(3, 16)
    layer = km.KSLinear(16, 16, [(4, 4, 4, 1)], algorithm="kernel")
    compiled = [
        torch.compile(call, fullgraph=True, backend="eager")
        for call in (lambda x: km.kron_matmul(x, [f, f]), layer, layer.pack(), km.kronsparse.hadamard(16))
    ]
    for precision in ("ieee", None, "tf32"):
        with torch.no_grad(), km.config(precision=precision):
            for call in compiled:
                seen.clear()
                call(x)
                assert {option.split(" ")[0] for option in seen} <= {precision or "default", precision or ""}
                assert seen


def test_routes_belong_to_operators():
    used, other = km.KroneckerProduct([torch.randn(8, 8)] * 3), km.KroneckerProduct([torch.randn(5, 5)] * 2)
    for _ in range(3):
        used @ torch.randn(512, 4)
        assert used.info.startswith("llvm: ")
        assert f"ran as {used.info}" in repr(used)
    assert other.info == ""
    assert "ran as" not in repr(other)
    assert "ran as" not in repr(used.T)
    recorded = km.KroneckerProduct([torch.randn(8, 8, requires_grad=True)] * 3)
    (torch.randn(4, 512) @ recorded).sum().backward()
    assert recorded.info.startswith("llvm: ")
    torch.func.vmap(other.matmul)(torch.randn(2, 25, 3))
    assert other.info == "under a transform"
    with warnings.catch_warnings(record=True):
        integers = km.KroneckerProduct([torch.ones(2, 2, dtype=torch.int64)])
        integers @ torch.ones(2, dtype=torch.int64)
    assert integers.info == "torch"


def test_layers_show_their_own_route_alone():
    layers = [km.KSLinear(16, 16, [(4, 4, 4, 1)], algorithm=name) for name in ("bmm", "dense", "kernel")]
    x = torch.randn(3, 16)
    with torch.no_grad():
        layers[0](x)
        layers[1](x)
        assert [layer.info for layer in layers] == ["torch bmm", "torch dense", ""]
        layers[2](x)
        assert layers[2].info.startswith("llvm: ")
    torch.func.vmap(layers[0])(x)
    assert layers[0].info.startswith("under a transform")
    chain = km.kronsparse.hadamard(16)
    assert chain.info == ""
    chain(x, algorithm="einsum")
    assert chain.info == "torch einsum"


class Trained(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.left = torch.nn.Parameter(torch.randn(3, 4, dtype=torch.float64))
        self.right = torch.nn.Parameter(torch.randn(2, 5, dtype=torch.float64))

    def forward(self, x):
        return km.kron_matmul(x, [self.left, self.right])


def test_an_exported_product_trains_its_factors():
    module, x = Trained(), torch.randn(7, 6, dtype=torch.float64)
    exported = torch.export.export(module, (x,)).module()
    result = exported(x)
    wanted = x @ torch.kron(module.left, module.right)
    assert_close(result.detach(), wanted.detach(), depth=6)
    cotangent = torch.randn_like(wanted)
    found = torch.autograd.grad(result, list(exported.parameters()), cotangent)
    expected = torch.autograd.grad(wanted, [module.left, module.right], cotangent)
    for own, other in zip(found, expected, strict=True):
        assert_close(own, other, depth=60)


def _guards(module):
    (entry,) = torch._C._dynamo.eval_frame._debug_get_cache_entry_list(type(module).forward.__code__)
    return str(entry.guard_manager)


@pytest.mark.parametrize("activation", [None, "gelu"])
@pytest.mark.parametrize("bias", [True, False])
def test_the_checks_of_a_layer_are_not_among_its_guards(bias, activation):
    torch._dynamo.reset()
    layer, x = km.KSLinear(12, 12, km.kronsparse.monarch((12, 12), p=3, q=4), bias=bias), torch.randn(5, 12)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    found = [torch.autograd.grad(each(x, activation).sum(), layer.weights) for each in (compiled, layer)]
    for own, wanted in zip(*found, strict=True):
        assert_close(own, wanted, depth=144)
    assert_close(compiled(x, activation), layer(x, activation), depth=12)
    guards = _guards(layer)
    assert "step_of_layer" in guards
    for traced in ("check_types", "CompiledChain", "torch_ops.operator"):
        assert traced not in guards
    torch._dynamo.reset()


@pytest.mark.parametrize("given", [torch.randn(5, 11), torch.randn(5, 12).double(), torch.randn(12, 5).mT.to_sparse()])
def test_a_compiled_layer_says_what_an_eager_one_does(given):
    torch._dynamo.reset()
    layer = km.KSLinear(12, 12, km.kronsparse.monarch((12, 12), p=3, q=4))
    with pytest.raises(km.errors.KernmantleError) as said:
        layer(given)
    with pytest.raises(type(said.value)) as compiled:
        torch.compile(layer, backend="aot_eager")(given)
    assert str(compiled.value) == str(said.value)
    torch._dynamo.reset()


def test_a_compiled_layer_refuses_an_activation_as_an_eager_one_does():
    torch._dynamo.reset()
    layer = km.KSLinear(12, 12, km.kronsparse.monarch((12, 12), p=3, q=4))
    with pytest.raises(km.errors.ParameterError, match="activation must be None or one of"):
        torch.compile(layer, backend="aot_eager")(torch.randn(5, 12), "tanh")
    torch._dynamo.reset()


def test_a_compiled_layer_is_of_weights_that_fit_its_patterns():
    torch._dynamo.reset()
    layer = km.KSLinear(12, 12, km.kronsparse.monarch((12, 12), p=3, q=4))
    layer.weights[0] = torch.nn.Parameter(torch.randn(3, 4, 4, 2))
    with pytest.raises(km.errors.ShapeError, match="its pattern"):
        torch.compile(layer, backend="aot_eager")(torch.randn(5, 12))
    torch._dynamo.reset()
