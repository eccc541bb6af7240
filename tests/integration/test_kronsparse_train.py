"""Training steps in few launches, what kernels are told computed here as they would, against one factor at a time."""

from __future__ import annotations

import ctypes
import itertools
import weakref
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd
from torch.nn import functional

from kernmantle import KSLinear, config, kron_sparse_matmul
from kernmantle.runtime.dispatch import PLANS
from kernmantle.structured.kronsparse import (
    chain_batched,
    chain_cpu,
    chain_launches,
    chain_matrix,
    chain_op,
    chain_products,
    chain_step,
    chain_training,
)
from kernmantle.structured.mode_product import grouped
from kernmantle.structured.mode_product.transpose_plan import padded
from kernmantle.torch_ops.blas_handles import HANDLES

CHAINS = {
    "one": ((2, 3, 4, 2),),
    "two": ((6, 4, 3, 1), (1, 5, 12, 2)),
    "apart": ((2, 3, 2, 1), (2, 4, 3, 1)),
    "three": ((4, 2, 2, 1), (2, 2, 2, 2), (1, 2, 2, 4)),
}
BATCHED = {
    "square": ((4, 16, 24, 1), (1, 40, 8, 8)), "narrow": ((8, 8, 8, 1), (1, 16, 32, 2)),
    "wide": ((2, 24, 16, 1), (1, 8, 24, 2)), "odd": ((4, 16, 24, 1), (1, 13, 8, 8)),
}  # fmt: skip
"""Chains that also go by batched products with the batch last between the factors."""
STEPS = [
    pytest.param(kind, chain, last, id=f"{kind}-{name}-{'last' if last else 'first'}")
    for kind in ("grouped", "matrix", "long matrix", "matrix on addresses", "factors on addresses")
    for name, chain in CHAINS.items() for last in (False, True)
] + [
    pytest.param(kind, chain, False, id=f"{kind}-{name}")
    for kind in ("batched", "batched summing", "batched on addresses", "batched summing on addresses")
    for name, chain in BATCHED.items()
] + [
    pytest.param("blocks", CHAINS["one"], last, id=f"blocks-{'last' if last else 'first'}") for last in (False, True)
]  # fmt: skip


launched = []


def viewed(address, view, sizes, extents):
    if view is None:
        return torch.ones((*sizes, *extents), dtype=torch.float64)
    return seen(address, (*sizes, *extents), (*view.batch, view.first, view.second))


def computed(products, *_):
    """What computes as a launch does."""
    products = tuple(products)

    def launch(addresses):
        for number, product in enumerate(products):
            left, right, out, bias = addresses[4 * number : 4 * number + 4]
            one = viewed(left, product.left, product.sizes, (product.p, product.r))
            other = viewed(right, product.right, product.sizes, (product.q, product.r))
            value = torch.einsum("abcdpr,abcdqr->abcdpq", one, other)
            if product.bias is not None:
                value += viewed(bias, product.bias, product.sizes, (product.q, 1)).mT
            viewed(out, product.out, product.sizes, (product.p, product.q)).copy_(value)
        launched.append(len(products))
        assert len(addresses) == 4 * len(products)

    return grouped.BoundProducts("grouped", products, launch)


def planned(products, *_):
    """The plan of a launch that :func:`computed_each` takes."""
    return grouped.PlannedProducts(None, tuple(products), 0)


def computed_each(launches):
    """The same of launches that follow one another, as one."""
    return [computed([product for each in launches for product in each.products])]


class Matmul:
    """Products of matrices on addresses by torch."""

    @staticmethod
    def bind_matmul(left, right, out, bias=None, sums=None, added=None):
        layouts = [(each.shape, each.stride()) for each in (left, right, out)]

        def launch(addresses):
            one, other, target = (
                seen(address, *layout) for address, layout in zip(addresses[:3], layouts, strict=True)
            )
            target.copy_(one @ other if bias is None else one @ other + seen(addresses[3], bias.shape, (1,)))
            if added is not None:
                target.add_(seen(addresses[4], added.shape, added.stride()))
            if sums is not None:
                seen(addresses[3], sums.shape, (1,)).copy_(one.sum(1))
            launched.append(1)

        return launch


def seen(address, shape, strides):
    numbers = 1 + sum((size - 1) * step for size, step in zip(shape, strides, strict=True))
    memory = (ctypes.c_double * numbers).from_address(address)
    return torch.frombuffer(memory, dtype=torch.float64).as_strided(shape, strides)


class Product:
    """A product with a factor by torch, of a weight that may lie transposed: at once, or as two launches."""

    def __init__(self, x, weight, bias, out):
        self.layouts = [(each.shape, each.stride()) for each in (x, weight, *([] if bias is None else [bias]), out)]

    def __call__(self, x, weight, bias, out, packed):
        a, b, c, d = self.layouts[1][0]
        source = x.reshape(-1, a, c, d)
        own = weight.as_strided((a, b, c, d), self.layouts[1][1])
        value = torch.einsum("nikl,ijkl->nijl", source, own).reshape(out.shape)
        out.copy_(value if bias is None else value + bias)

    def on_addresses(self, x, weight, bias, out, part):
        """The weight is copied to a part first."""
        numbers = self.layouts[1][0].numel()

        def prepare(addresses):
            seen(addresses[1], (numbers,), (1,)).copy_(seen(addresses[0], (numbers,), (1,)))

        def launch(addresses):
            each = [each for each in addresses if each]
            found = [seen(address, *layout) for address, layout in zip(each, self.layouts, strict=True)]
            self(found[0], found[1], found[2] if len(found) == 4 else None, found[-1], None)
            launched.append(1)

        image = part(8 * numbers)
        return [(prepare, (weight, image)), (launch, (x, image, bias, out))]


class Sums:
    """The gradient of a weight by torch: at once, or as one launch."""

    def __init__(self, x, grad, pattern):
        self.layouts, self.pattern = [(each.shape, each.stride()) for each in (x, grad)], pattern

    def __call__(self, x, grad):
        a, b, c, d = self.pattern
        return torch.einsum("nikl,nijl->ijkl", x.reshape(-1, a, c, d), grad.reshape(-1, a, b, d))[None]

    def on_addresses(self, x, grad, out, part):
        def launch(addresses):
            x, grad = (seen(address, *layout) for address, layout in zip(addresses[:2], self.layouts, strict=True))
            seen(addresses[2], self.pattern, torch.empty(self.pattern).stride()).copy_(self(x, grad)[0])

        return [(launch, (x, grad, out))]


def launched_product(x, weight, bias, activation, options, out, packed):
    """Return a product that is launched."""
    shape = tuple((out[0].mT if options.batch_last else out[0]).shape)
    run = Product(x, weight, bias, out)
    return partial(chain_products._launched, run, "launched", shape, options)


class Passes:
    """Passes over transposed rows by torch."""

    @staticmethod
    def rows_of_blocks(rows, a, extent, d):
        rows = rows.view(-1, a, extent, d).mT
        return functional.pad(rows, (0, padded(extent, rows.element_size()) - extent)).flatten(1)

    @classmethod
    def rows_and_sums(cls, rows, extent, d):
        sums = torch.stack([rows[:1].sum(0), rows[1:].sum(0)])
        return cls.rows_of_blocks(rows, 1, extent, d), sums

    @classmethod
    def bind_rows_and_sums(cls, rows, extent, d):
        """Two parts of float32 have the memory of one in float64."""
        shape = tuple(rows.shape)

        def launch(addresses):
            own, made, sums = (
                seen(at, each, (each[1], 1)) for at, each in zip(addresses, (shape, shape, (1, shape[1])), strict=True)
            )
            made.copy_(cls.rows_of_blocks(own, 1, extent, d))
            sums.copy_(own.sum(0))
            launched.append(1)

        return launch, 2

    @staticmethod
    def bind_parts(parts, count, dtype, index):
        def launch(addresses):
            sums, found = (seen(address, (count,), (1,)) for address in addresses)
            found.copy_(sums)
            launched.append(1)

        return launch

    @staticmethod
    def add_parts(parts, dtype):
        return parts.sum(0).to(dtype)

    @staticmethod
    def bring_back(rows, out, a, extent, d, bias=None):
        out.copy_(rows.view(len(rows), a, d, -1)[..., :extent].mT.reshape(out.shape))
        if bias is not None:
            out += bias

    @classmethod
    def bind_transpose(cls, source, target, a, high, l, pads, bias=None):
        shapes = source.shape, target.shape

        def launch(addresses):
            each = zip(addresses, shapes if bias is None else (*shapes, bias.shape), strict=True)
            rows, out, *offset = (seen(at, shape, torch.empty(shape).stride()) for at, shape in each)
            if pads:
                out.copy_(cls.rows_of_blocks(rows, a, high, l))
            else:
                cls.bring_back(rows, out, a, high, l, *offset)
            launched.append(1)

        return launch


def gradients(function, given):
    given = [tensor.detach().requires_grad_(tensor.requires_grad) for tensor in given]
    result = function(*given)
    wanted = [tensor for tensor in given if tensor.requires_grad]
    weight = torch.linspace(-1, 1, result.numel(), dtype=result.dtype).view(result.shape)
    return [result.detach(), *torch.autograd.grad(result, wanted, weight)]


@pytest.fixture
def steps(monkeypatch):
    """Use steps of a kind; calls that were bound before are forgotten, and none goes to kernels of the CPU."""
    monkeypatch.setattr(grouped, "bind_products", computed)
    monkeypatch.setattr(grouped, "plan_products", planned)
    monkeypatch.setattr(grouped, "bind_each", computed_each)
    monkeypatch.setattr(chain_batched.execute, "transposing", lambda: Passes)
    monkeypatch.setattr(chain_batched.execute, "sums", lambda: Passes)
    monkeypatch.setattr(chain_batched, "_passes", lambda: Passes)
    monkeypatch.setattr(chain_cpu, "bind", lambda *_: None)

    def any_device(weights, _):
        return chain_matrix.has_matrix(tuple(tuple(weight.shape) for weight in weights))

    monkeypatch.setattr(chain_matrix, "makes_matrix", any_device)

    def use(kind):
        PLANS.clear()
        launched.clear()
        own = Matmul if "on addresses" in kind else SimpleNamespace(bind_matmul=lambda *_, **__: None)
        monkeypatch.setattr(chain_products, "matmul", lambda: own)
        if kind == "factors on addresses":
            monkeypatch.setattr(chain_step, "bind_product", launched_product)
            monkeypatch.setattr(chain_step, "bind_gradient", lambda x, grad, pattern, _: Sums(x, grad, pattern))
        kind = kind.removesuffix(" on addresses")
        if kind == "long matrix":
            kind = "matrix"
            monkeypatch.setattr(chain_matrix, "_LONG", 0.0)
        if kind == "batched summing":
            kind = "batched"
            monkeypatch.setattr(chain_batched, "_LEAST_SUMMED", 0)
        monkeypatch.setattr(chain_training, "kind_of", lambda *_, **__: kind)
        monkeypatch.setattr(chain_training, "kind_for", lambda *_, **__: kind)

    yield use
    PLANS.clear()


def operands(chain, batch, batch_last):
    (a, _, c, d), (p, q, _, r) = chain[0], chain[-1]
    source = torch.Generator().manual_seed(1)
    shape = (a * c * d, *batch) if batch_last else (*batch, a * c * d)
    options = {"generator": source, "dtype": torch.float64}
    return [torch.randn(shape, **options), *(torch.randn(each, **options) for each in (*chain, (p * q * r,)))]


@pytest.mark.parametrize(("kind", "chain", "batch_last"), STEPS)
def test_every_subset_of_gradients(kind, chain, batch_last, steps):
    for batch in ((8,), (2, 12)) if "batched" in kind else ((3,), (2, 2)):
        given = operands(chain, batch, batch_last)

        def function(x, *rest):
            return kron_sparse_matmul(x, list(rest[:-1]), bias=rest[-1], activation="silu", batch_last=batch_last)

        for wanted in itertools.product((False, True), repeat=len(given)):
            if not any(wanted):
                continue
            for tensor, needed in zip(given, wanted, strict=True):
                tensor.requires_grad_(needed)
            steps("factors")
            expected = gradients(function, given)
            steps(kind)
            for one, other in zip(gradients(function, given), expected, strict=True):
                torch.testing.assert_close(one, other)
            is_launched = kind not in ("batched", "batched summing")
            made = is_launched and len(chain) > 1 and chain_matrix.has_matrix(chain)
            if kind != "factors on addresses":
                assert launched if kind == "grouped" else bool(launched) == made


@pytest.mark.parametrize("kind", ["grouped", "matrix", "matrix on addresses", "batched", "batched on addresses"])
def test_second_derivatives_and_many_cotangents(kind, steps):
    steps(kind)
    chain, batch = (BATCHED["square"], (8,)) if "batched" in kind else (CHAINS["two"], (3,))
    given = [tensor.requires_grad_() for tensor in operands(chain, batch, False)]

    def function(x, first, second, bias):
        return kron_sparse_matmul(x, [first, second], bias=bias, activation="silu")

    torch.autograd.gradcheck(function, given, fast_mode=True)
    torch.autograd.gradgradcheck(function, given, fast_mode=True)
    found = function(*given)
    cotangents = torch.randn(2, *found.shape, dtype=torch.float64)
    many = torch.autograd.grad(found, given, cotangents, is_grads_batched=True, retain_graph=True)
    for place, each in enumerate(cotangents):
        for own, whole in zip(torch.autograd.grad(found, given, each, retain_graph=True), many, strict=True):
            torch.testing.assert_close(own, whole[place])


@pytest.mark.parametrize(
    "kind",
    ["factors", "factors on addresses", "grouped", "matrix", "matrix on addresses", "batched", "batched on addresses"],
)
def test_saved_tensors_that_hooks_bring_back_in_another_layout(kind, steps):
    chain, batch = (BATCHED["square"], (8,)) if "batched" in kind else (CHAINS["two"], (3,))
    given = [tensor.requires_grad_() for tensor in operands(chain, batch, False)]

    def slopes():
        x, first, second, bias = given
        return torch.autograd.grad(kron_sparse_matmul(x, [first, second], bias=bias).square().sum(), given)

    def moved(own):
        return own.mT.contiguous().mT if own.dim() > 1 else own.clone()

    steps("factors")
    wanted = slopes()
    steps(kind)
    for _ in range(2):
        torch.testing.assert_close(slopes(), wanted)
        with torch.autograd.graph.saved_tensors_hooks(moved, moved):
            torch.testing.assert_close(slopes(), wanted)


def ready_passes(monkeypatch):
    """Count backward passes that were prepared in the forward pass, and those that ran so."""
    counted, own = {"prepared": 0, "ran": 0}, chain_launches.BothPasses
    for name, run in (("prepared", own.run), ("ran", own.run_backward)):

        def counting(*arguments, name=name, run=run):
            counted[name] += 1
            return run(*arguments)

        monkeypatch.setattr(own, run.__name__, counting)
    return counted


def layer_of(chain, rows):
    layer = KSLinear(18, 10, CHAINS[chain], dtype=torch.float64)
    x = torch.randn(rows, 18, dtype=torch.float64, requires_grad=True)
    return layer, x, [x, *layer.parameters()]


@pytest.mark.parametrize("kind", ["grouped", "matrix on addresses", "factors on addresses"])
def test_a_backward_pass_that_was_prepared_gives_the_same(kind, steps, monkeypatch):
    layer, x, leaves = layer_of("two", 5)
    cotangents = [torch.randn(5, 10, dtype=torch.float64) for _ in range(3)]
    steps("factors")
    expected = [torch.autograd.grad(layer(x), leaves, each) for each in cotangents]
    steps(kind)
    counted = ready_passes(monkeypatch)
    found = [torch.autograd.grad(layer(x), leaves, each) for each in cotangents]
    assert counted == {"prepared": 2, "ran": 2}
    torch.testing.assert_close(found, expected)
    first, second = layer(x), layer(x)  # two at once, in the other order
    torch.testing.assert_close(torch.autograd.grad(second, leaves, cotangents[1]), expected[1])
    torch.testing.assert_close(torch.autograd.grad(first, leaves, cotangents[0]), expected[0])
    assert counted == {"prepared": 4, "ran": 4}
    assert len({gradient.data_ptr() for step in found for gradient in step}) == 3 * len(leaves)


@pytest.mark.parametrize("kind", ["grouped", "matrix on addresses", "factors on addresses"])
def test_a_prepared_pass_runs_once_and_where_it_fits(kind, steps, monkeypatch):
    layer, x, leaves = layer_of("two", 5)
    cotangent = torch.randn(5, 10, dtype=torch.float64)
    steps("factors")
    expected = torch.autograd.grad(layer(x), leaves, cotangent)
    summed = torch.autograd.grad(layer(x).sum(), leaves)
    steps(kind)
    torch.autograd.grad(layer(x), leaves, cotangent)
    counted = ready_passes(monkeypatch)
    kept = layer(x)
    for _ in range(3):
        torch.testing.assert_close(torch.autograd.grad(kept, leaves, cotangent, retain_graph=True), expected)
    assert counted == {"prepared": 1, "ran": 1}
    torch.testing.assert_close(torch.autograd.grad(layer(x).sum(), leaves), summed)  # a gradient of one number
    assert counted["ran"] == 1 + (kind != "grouped")  # products of matrices take it in one piece
    torch.testing.assert_close(torch.autograd.grad(layer(x), [x], cotangent), expected[:1])
    counted["ran"] = 0
    with torch.autograd.graph.saved_tensors_hooks(torch.clone, torch.clone):
        torch.testing.assert_close(torch.autograd.grad(layer(x), leaves, cotangent), expected)
    again = torch.autograd.grad(layer(x), leaves, cotangent, create_graph=True)
    torch.testing.assert_close(again, expected)
    assert counted["ran"] == 0
    with torch.no_grad():
        layer.weights[0].mul_(2)
    moved = layer(x)
    with torch.no_grad():
        layer.weights[0].mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        moved.backward(cotangent)


def test_a_prepared_pass_lives_as_long_as_its_result(steps):
    layer, x, _ = layer_of("two", 5)
    steps("grouped")
    layer(x).sum().backward()
    layer(x).backward(torch.ones(5, 10, dtype=torch.float64))
    result = layer(x)
    graph = weakref.ref(result.grad_fn)
    assert result.grad_fn.ready
    del result
    assert graph() is None


@pytest.mark.parametrize("kind", ["grouped", "matrix", "matrix on addresses"])
def test_strided_operands(kind, steps):
    chain = CHAINS["two"]
    x, *rest = operands(chain, (5,), False)
    wide = torch.zeros(10, 2 * x.shape[1], dtype=torch.float64)
    wide[::2, 1::2] = x
    strided = [
        wide[::2, 1::2],
        *(weight.transpose(1, 2).contiguous().transpose(1, 2) for weight in rest[:-1]),
        rest[-1],
    ]

    def function(x, first, second, bias):
        return kron_sparse_matmul(x, [first, second], bias=bias).T

    results = []
    for each, given in (("factors", [x, *rest]), (kind, strided)):
        steps(each)
        results.append(gradients(function, [tensor.requires_grad_() for tensor in given]))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other)


def test_frozen_layers_and_steps_of_an_optimizer(steps):
    for kind in ("grouped", "matrix", "matrix on addresses"):
        torch.manual_seed(0)
        layers = [KSLinear(18, 10, CHAINS["two"], dtype=torch.float64) for _ in range(2)]
        layers[1].load_state_dict(layers[0].state_dict())
        x = torch.randn(4, 18, dtype=torch.float64)
        for layer, each in zip(layers, ("factors", kind), strict=True):
            layer.weights[0].requires_grad_(False)
            descent = torch.optim.SGD(layer.parameters(), 0.1)
            steps(each)
            for _ in range(3):
                descent.zero_grad()
                layer(x).square().sum().backward()
                descent.step()
        for one, other in zip(*(layer.state_dict().values() for layer in layers), strict=True):
            torch.testing.assert_close(one, other)


@pytest.mark.parametrize("kind", ["factors", "grouped", "matrix"])
def test_steps_of_frozen_weights_keep_nothing_between_factors(kind, steps):
    steps(kind)
    x, first, second, bias = operands(CHAINS["two"], (7,), False)
    kept = []

    def save(tensor):
        kept.append(tensor.shape)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor):
        kron_sparse_matmul(x.requires_grad_(), [first, second], bias=bias)
    assert all(7 not in shape for shape in kept), kept


@pytest.mark.parametrize("batch_last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("kind", ["factors", "grouped", "matrix"])
def test_compiled_steps_are_one_operator_each_way(kind, batch_last, steps, monkeypatch):
    torch._dynamo.reset()
    graphs = []

    def backend(module, _):
        called = [str(node.target) for node in module.graph.nodes if node.op == "call_function"]
        graphs.extend(name for name in called if "kron_sparse" in name)
        return make_boxed_func(module.forward)

    def function(x, *rest):
        chain, bias = (rest[:-1], rest[-1]) if len(rest) == 3 else (rest, None)
        return kron_sparse_matmul(x, list(chain), bias=bias, activation="silu", batch_last=batch_last)

    compiled = torch.compile(function, fullgraph=True, backend=aot_autograd(fw_compiler=backend))
    for wanted in ((True,) * 4, (False, True, True, True), (True, False, True, False), (True, False, True)):
        given = operands(CHAINS["two"], (2, 2), batch_last)[: len(wanted)]
        for tensor, needed in zip(given, wanted, strict=True):
            tensor.requires_grad_(needed)
        steps("factors")
        expected = gradients(function, given)
        steps(kind)
        graphs.clear()
        for one, other in zip(gradients(compiled, given), expected, strict=True):
            torch.testing.assert_close(one, other)
            assert one.stride() == other.stride() or not batch_last
        assert graphs == ["kernmantle.kron_sparse_chain.default", "kernmantle.kron_sparse_chain_backward.default"]
        assert bool(launched) == (kind != "factors")
        launched.clear()
        with config(precision="ieee"):  # which no kernel that takes several products in a launch has
            found = gradients(compiled, given)
        assert not launched
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other)
        with monkeypatch.context() as captured:  # single products may be quicker where nothing waits for the host
            captured.setattr(chain_op, "splits_streams", lambda _: True)
            captured.setattr(chain_training, "is_quicker_by_factors", lambda *_: True)
            found = gradients(compiled, given)
        assert bool(launched) == (kind == "matrix")
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other)


@pytest.mark.parametrize("wanted", [True, False], ids=["step", "forward"])
def test_a_graph_that_is_captured_has_a_plan_of_its_own(wanted, steps, monkeypatch):
    layer, x, leaves = layer_of("two", 5)
    for each in leaves:
        each.requires_grad_(wanted)
    cotangent = torch.randn(5, 10, dtype=torch.float64)

    def values():
        result = layer(x)
        return [result.detach(), *(torch.autograd.grad(result, leaves, cotangent) if wanted else ())]

    steps("factors")
    expected = values()
    assert not launched
    steps("grouped")
    monkeypatch.setattr(chain_training, "kind_of", lambda *given: "factors" if given[-1] is True else "grouped")
    monkeypatch.setattr(chain_training, "forward_kind", chain_training.kind_of)
    handles = []  # which an eager call leaves to what is captured
    monkeypatch.setattr(HANDLES, "take", handles.append)
    for captures in (False, True, False, True):
        launched.clear()
        with monkeypatch.context() as graph:
            graph.setattr(torch.cuda, "is_current_stream_capturing", lambda captures=captures: captures)
            found = values()
        assert bool(launched) != captures
        torch.testing.assert_close(found, expected)
    assert len(handles) == 2


@pytest.mark.parametrize(("kind", "chain"), [("matrix", CHAINS["two"]), ("batched", BATCHED["square"])])
def test_what_a_graph_binds_leaves_products_to_torch(kind, chain, steps, monkeypatch):
    """To choose an algorithm may load kernels, which a stream that is captured does not allow."""
    given = [tensor.requires_grad_() for tensor in operands(chain, (8,), False)]

    def function(x, first, second, bias):
        return kron_sparse_matmul(x, [first, second], bias=bias)

    steps("factors")
    expected = gradients(function, given)
    steps(f"{kind} on addresses")
    asked = []
    bind = Matmul.bind_matmul
    monkeypatch.setattr(Matmul, "bind_matmul", lambda *each: asked.append(1) or bind(*each))
    with monkeypatch.context() as captured:
        captured.setattr(chain_products, "splits_streams", lambda _: True)
        torch.testing.assert_close(gradients(function, given), expected)
    assert not asked
    steps(f"{kind} on addresses")
    torch.testing.assert_close(gradients(function, given), expected)
    assert asked


def test_compiled_steps_by_batched_products(steps):
    torch._dynamo.reset()
    given = [tensor.requires_grad_() for tensor in operands(BATCHED["square"], (8,), False)]

    def function(x, *rest):
        return kron_sparse_matmul(x, list(rest[:-1]), bias=rest[-1], activation="silu")

    steps("factors")
    expected = gradients(function, given)
    steps("batched")
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    for one, other in zip(gradients(compiled, given), expected, strict=True):
        torch.testing.assert_close(one, other)


def test_batched_steps_take_whole_vectors_of_halves_with_the_batch_in_front():
    assert all(chain_batched.is_batched(BATCHED[name], 8, "bf16", False) for name in ("square", "odd"))
    others = (
        ((24, 16, 24, 1), (8, 40, 48, 1)), ((4, 16, 24, 1), (1, 40, 64, 1)), ((4, 12, 24, 1), (1, 40, 24, 2)),
        ((4, 16, 28, 1), (1, 40, 8, 8)),
    )  # fmt: skip
    assert not any(chain_batched.is_batched(chain, 8, "bf16", False) for chain in others)
    for rest in ((9, "bf16", False), (8, "f32", False), (8, "bf16", True), (1 << 27, "f16", False)):
        assert not chain_batched.is_batched(BATCHED["square"], *rest)
    assert not chain_batched.is_batched(BATCHED["square"][:1], 8, "bf16", False)


@pytest.mark.parametrize("batch_last", [False, True])
def test_compiled_steps_of_any_batch_are_chosen_by_their_rows(batch_last, steps):
    torch._dynamo.reset()

    def function(x, *rest):
        return kron_sparse_matmul(x, list(rest[:-1]), bias=rest[-1], batch_last=batch_last)

    compiled = torch.compile(function, fullgraph=True, dynamic=True, backend="aot_eager")
    for rows, kind in ((3, "factors"), (5, "grouped"), (7, "factors"), (5, "grouped")):
        given = [tensor.requires_grad_() for tensor in operands(CHAINS["two"], (rows,), batch_last)]
        steps("factors")
        expected = gradients(function, given)
        steps(kind)
        for one, other in zip(gradients(compiled, given), expected, strict=True):
            torch.testing.assert_close(one, other)
        assert bool(launched) == (kind == "grouped")


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("shape", [(1,), (5,), (2, 3)], ids=str)
@pytest.mark.parametrize("wanted", [(True, True, True, True), (False, True, False, True), (True, False, False, False)])
def test_compiled_steps_on_a_cpu_launch_the_kernels_of_eager_ones(shape, wanted, dynamic, monkeypatch):
    torch._dynamo.reset()
    taken = []
    own = chain_cpu.KernelStep.forward
    monkeypatch.setattr(chain_cpu.KernelStep, "forward", lambda *args: taken.append(args[0].route) or own(*args))
    torch.manual_seed(0)
    x, first, second, bias = (torch.randn(each) for each in ((*shape, 24), (2, 4, 4, 3), (1, 6, 6, 4), (24,)))
    for tensor, needed in zip((x, first, second, bias), wanted, strict=True):
        tensor.requires_grad_(needed)

    def function(x, first, second, bias):
        return kron_sparse_matmul(x, [first, second], bias=bias)

    compiled = torch.compile(function, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    eager = [kron_sparse_matmul(x, [first, second], bias=bias)]
    found = [compiled(x, first, second, bias)]
    for results in (eager, found):
        tensors = [each for each in (x, first, second, bias) if each.requires_grad]
        results += torch.autograd.grad(results[0].square().sum(), tensors)
    for one, other in zip(found, eager, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    assert taken
    assert "kernel" in taken[0] or "llvm" in taken[0]
