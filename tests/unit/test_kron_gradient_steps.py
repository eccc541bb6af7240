"""The steps of gradients of Kronecker products, followed by torch's operations, against torch's own gradients."""

import math
import random
from types import SimpleNamespace

import pytest
import torch

from kernmantle.backends.cuda.tiles import CARDS
from kernmantle.structured.kron import bound_gradients, gradient
from kernmantle.structured.kron.bound_gradients import BoundGradients, Operand, PassStep, SumStep
from kernmantle.structured.kron.factor_sums import outer, parts_of, separated
from kernmantle.structured.kron.gradient_cost import GpuPrice
from kernmantle.structured.kron.gradient_steps import gradient_steps, seconds_of_steps
from kernmantle.structured.kron.modes import Mode, parse
from kernmantle.structured.kron.tensor_plan import Tensor
from kernmantle.structured.kron.torch_products import product
from kernmantle.testing import assert_close


class AnyPrice:
    """Prices that are drawn, so that all orders and groups are taken."""

    def __init__(self, seed):
        self.source, self.prices = random.Random(seed), {}

    def may_join(self, group):
        return self.prices.setdefault(("joint", tuple(group)), self.source.random() < 0.7)

    def product(self, *step):
        return self.prices.setdefault(step, self.source.random())

    def sum(self, group, left, right):
        return self.prices.setdefault((tuple(group), left, right), self.source.random())

    def applying_sum(self, group, left, right):
        own = (math.inf, 1.5 * self.source.random())[self.source.random() < 0.7]
        return self.prices.setdefault(("applying", tuple(group), left, right), own)

    def passing(self, group, left, right):
        own = (math.inf, 2.5 * self.source.random())[self.source.random() < 0.5]
        return self.prices.setdefault(("pass", tuple(group), left, right), own)


def _drawn(source):
    """Text, sizes of factors, and some positions that the product could have applied between its passes."""
    entries, shapes = [], []
    while not shapes:
        entries = []
        for _ in range(source.randint(1, 5)):
            if source.random() < 0.15:
                entries.append(f"i{source.randint(1, 3)}")
            else:
                entries.append(str(len(shapes)))
                shapes.append((source.randint(1, 4), source.randint(1, 4)))
    order = [position for position, entry in enumerate(entries) if not entry.startswith("i")]
    source.shuffle(order)
    stops = sorted(source.sample(range(1, len(order)), min(len(order) - 1, source.randint(0, 2))))
    return " ".join(entries), tuple(shapes), tuple(tuple(sorted(order[:stop])) for stop in stops)


def _applied(modes, positions):
    """The modes with identities at all other positions."""
    return [mode if i in positions else Mode(mode.columns, mode.columns) for i, mode in enumerate(modes)]


def _followed(steps, modes, x, factors, grad, saved):
    """Gradients of x and the factors by the steps."""
    values, through, found = [x, grad, *saved], None, [None] * len(factors)
    shapes = tuple(tuple(factor.shape) for factor in factors)
    for kind, *step, released in steps:
        if kind == "product":
            source, text, is_adjoint, is_last = step
            own = [factor.mT if is_adjoint else factor for factor in factors]
            values.append(product(values[source], own, parse(text, tuple(tuple(factor.shape) for factor in own))))
            through = values[-1] if is_last else through
        else:
            of_x, of_grad, group, left, size, *others = step
            own = [factors[modes[position].factor] for position in group]
            if kind == "pass":  # of x as it is
                now = parse(others.pop(), shapes)
                assert math.prod(mode.columns for mode in now) == values[of_x].shape[-2]
                assert [place for place, mode in enumerate(now) if mode.factor is not None] == list(group)
            joint = outer(values[of_x], values[of_grad], left, size)
            parts = [joint] if len(own) == 1 else separated(joint, own)
            for position, part in zip(group, parts, strict=True):
                found[modes[position].factor] = part
            if kind != "sum":
                text, is_last = others
                own = [factor.mT for factor in factors]
                values.append(product(values[of_grad], own, parse(text, tuple(tuple(factor.shape) for factor in own))))
                through = values[-1] if is_last else through
        for number in released:
            values[number] = None
    return through, found


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("is_priced", [False, True])
def test_steps_find_what_autograd_does(seed, is_priced):
    source = random.Random(seed)
    text, shapes, done = _drawn(source)
    modes = parse(text, shapes)
    x = torch.randn(3, math.prod(mode.columns for mode in modes), 2, dtype=torch.float64, requires_grad=True)
    factors = [torch.randn(*shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    out = product(x, factors, modes)
    grad = torch.randn_like(out)
    exact = torch.autograd.grad(out, [x, *factors], grad)
    wanted, of_x = tuple(source.random() < 0.8 for _ in shapes), source.random() < 0.7
    price = AnyPrice(seed) if is_priced else None
    with torch.no_grad():
        saved = [
            product(
                x, factors, [mode if i in own else Mode(mode.columns, mode.columns) for i, mode in enumerate(modes)]
            )
            for own in done
        ]
        steps = gradient_steps(text, shapes, wanted, (False,) * len(shapes), of_x, done, price)
        through, found = _followed(steps, modes, x, factors, grad, saved)
    assert (through is not None) == of_x
    if through is not None:
        assert_close(through, exact[0], depth=4**5)
    for part, right, is_wanted in zip(found, exact[1:], wanted, strict=True):
        if is_wanted:
            assert_close(part, right, depth=4**5 * 6)


def test_what_lies_between_passes_is_not_made_again():
    shapes = ((3, 3), (4, 4), (5, 5))

    def products(done, price=None):
        steps = gradient_steps("0 1 2", shapes, (True,) * 3, (False,) * 3, True, done, price)
        return sum(step[0] == "product" for step in steps)

    price = GpuPrice(((300, 300),) * 3, 4, 1, "f32", CARDS["sm_90"], Tensor("f16", 3), True)
    shapes = ((300, 300),) * 3
    assert products(()) == products((), price) == 5
    assert products(((2,), (1, 2)), price) == 3


def test_saved_values_make_steps_no_slower():
    shapes = ((77, 77), (108, 108), (51, 51), (2, 2))
    price = GpuPrice(shapes, 158, 1, "bf16", CARDS["sm_90"], Tensor("bf16", 1), True)
    seconds = [
        seconds_of_steps("0 1 2 3", shapes, (True,) * 4, True, done, price) for done in ((), ((2, 3), (1, 2, 3)))
    ]
    assert seconds[1] < 0.9 * seconds[0]


def test_many_small_factors_share_few_gradients():
    shapes = ((2, 2), (7, 7), (20, 20), (9, 9), (15, 15))
    for stored, products in (("f16", 1), ("bf16", 1), ("f32", 3)):
        half = "f16" if stored == "f32" else stored
        price = GpuPrice(shapes, 3550, 1, stored, CARDS["sm_90"], Tensor(half, products), True)
        steps = gradient_steps("0 1 2 3 4", shapes, (True,) * 5, (False,) * 5, True, (), price)
        groups = [step[3] for step in steps if step[0] != "product"]
        assert sorted(sum(groups, ())) == [0, 1, 2, 3, 4]
        assert len(groups) <= 4


def test_a_frozen_factor_shares_a_gradient_where_that_costs_less():
    shapes, wanted = ((4, 4),) * 5, (True, True, False, True, True)
    price = GpuPrice(shapes, 3550, 1, "f16", CARDS["sm_90"], Tensor("f16", 1), True)
    for own, most in ((price, 3), (None, 4)):
        steps = gradient_steps("0 1 2 3 4", shapes, wanted, (False,) * 5, True, (), own)
        groups = [step[3] for step in steps if step[0] != "product"]
        assert set(sum(groups, ())) >= {0, 1, 3, 4}
        assert len(groups) <= most
    assert 2 not in sum(groups, ())


def test_what_is_found_of_a_frozen_factor_is_not_given():
    factors = [torch.randn(2, 3), torch.randn(4, 2)]
    joint, x = torch.randn(8, 6), torch.randn(2, 6, 1)
    operand = Operand(0, None, lambda value: value)
    launch = BoundGradients("", (SumStep(lambda u, v: joint, operand, operand, (0, 1), ()),), 0, (True, False))
    _, (first, second) = launch((x, factors, x, ()), 1.0)
    assert_close(first, separated(joint.double(), [factor.double() for factor in factors])[0], depth=8)
    assert second is None


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_gradients_of_halves_feel_no_rounding_of_the_one_they_share(dtype):
    """The gradient of 2 x 2 from one of 280 x 280 that was rounded to float16 was 1 % off."""
    generator = torch.Generator().manual_seed(3)
    sizes = ((2, 2), (7, 7), (20, 20))
    factors = [torch.randn(*size, generator=generator).to(dtype) for size in sizes]
    joint = torch.randn(280, 280, generator=generator)
    exact = separated(joint.double(), [factor.double() for factor in factors])
    for part, factor, right in zip(separated(joint, factors), factors, exact, strict=True):
        assert part.dtype == dtype
        assert part.shape == factor.shape
        assert_close(part, right, depth=1, magnitude=right.abs().max())


def test_long_sums_of_halves_have_parts_for_all_multiprocessors():
    assert parts_of(1 << 15, 84, 84) == 1
    assert parts_of(101640, 84, 84) == 264
    assert parts_of(480000, 264, 8) == 80
    assert parts_of(999983, 84, 84) == 264
    assert parts_of(10**6, 2000, 2000) == 31


class FakePass:
    """Both gradients of x (count, p, p') by two factors, and the product, by torch."""

    numbers = (0, 1)

    def __call__(self, grad, x, factors, slope):
        first, second = factors
        x, grad = x.view(-1, first.shape[1], second.shape[1]), grad.view(-1, first.shape[0], second.shape[0])
        of_x = torch.einsum("nqs,qp,sr->npr", grad, first, second)
        parts = torch.einsum("nqs,npr,sr->qp", grad, x, second), torch.einsum("nqs,npr,qp->sr", grad, x, first)
        return slope * of_x, lambda: parts


class FakeStream:
    """Does the work behind all others, as a stream beside them may."""

    def __init__(self):
        self.waiting, self.found, self.joined = [], [], False

    def __call__(self, work):
        self.waiting.append(work)
        self.found.append([torch.empty(0), torch.empty(0)])
        return self.found[-1]

    def join(self):
        for work, found in zip(self.waiting, self.found, strict=True):
            found[:] = work()
        self.joined = True


def test_steps_that_nothing_waits_for_may_end_behind_all_others(monkeypatch):
    factors = [torch.randn(2, 3, dtype=torch.float64), torch.randn(4, 2, dtype=torch.float64)]
    x, grad = (torch.randn(5, size, 1, dtype=torch.float64) for size in (6, 8))
    stream = FakeStream()
    monkeypatch.setattr(bound_gradients, "gpu", lambda: SimpleNamespace(side_stream=lambda _: stream))
    u, v = (Operand(number, None, lambda value: value) for number in (0, 1))
    joint = SumStep(lambda u, v: torch.einsum("nqr,npr->qp", v, u), u, v, (0, 1), (0, 1))
    one = PassStep(FakePass(), 0, 1, (5, 6, 1), True, (0, 1))
    for step in (joint, one):
        launch = BoundGradients("", (step,), 0, (True, True), forks=True)
        _, found = launch((x, factors, grad, ()), -2.0)
        for part, exact in zip(found, separated(torch.einsum("nqr,npr->qp", grad, x), factors), strict=True):
            assert_close(part, -2 * exact, depth=40)
        assert stream.joined
        stream.joined = False
        stream.waiting.clear(), stream.found.clear()


@pytest.mark.parametrize("is_forked", [True, False])
def test_a_long_sum_of_the_vendors_is_no_work_of_the_side_stream(monkeypatch, is_forked):
    """Only what follows it is; both leave the same."""
    factors = [torch.randn(2, 3, dtype=torch.float64), torch.randn(4, 2, dtype=torch.float64)]
    x, grad = (torch.randn(5, size, 1, dtype=torch.float64) for size in (6, 8))
    stream, called = FakeStream(), list[int]()
    monkeypatch.setattr(bound_gradients, "gpu", lambda: SimpleNamespace(side_stream=lambda _: stream))

    def summed(u, v):
        called.append(len(stream.waiting))
        return torch.einsum("nqr,npr->qp", v, u)

    u, v = (Operand(number, None, lambda value: value) for number in (0, 1))
    step = SumStep(summed, u, v, (0, 1), (0, 1), is_forked=is_forked)
    _, found = BoundGradients("", (step,), 0, (True, True), forks=True)((x, factors, grad, ()), 1.0)
    assert called == [1 if is_forked else 0]
    for part, exact in zip(found, separated(torch.einsum("nqr,npr->qp", grad, x), factors), strict=True):
        assert_close(part, exact, depth=40)


@pytest.mark.parametrize("count", [1000, 5084 * 37])
def test_what_the_cache_has_room_for_is_summed_beside_other_steps(count):
    """5084 x 37 rows of 160 and of 7 halves are 63 MB."""
    shapes = (count, 160, 1), (count, 7, 1)
    values = [torch.empty(shape, dtype=torch.float16, device="meta") for shape in shapes]
    u, v = (Operand(number, (shape, (shape[1], 1, 1)), lambda value: value) for number, shape in enumerate(shapes))
    assert gradient._bind_sum(u, v, values, "default", (0,), ()).is_forked == (count == 1000)


@pytest.mark.parametrize("alpha", [1.0, -2.5])
@pytest.mark.parametrize("wanted", [(True, True), (True, False)])
def test_a_step_that_applies_factors_leaves_the_next_value(alpha, wanted):
    double = torch.float64
    factors = [torch.randn(2, 3, dtype=double), torch.randn(4, 2, dtype=double)]
    x, grad = torch.randn(5, 6, 1, dtype=double), torch.randn(5, 8, 1, dtype=double)
    whole, seen = torch.kron(*factors), []

    def applying(u, v, own, slope):
        seen.append(slope)
        joint = torch.einsum("nqr,npr->qp", v.view(5, 8, 1), u.view(5, 6, 1))
        return lambda: joint, slope * torch.einsum("nqr,qp->npr", v.view(5, 8, 1), torch.kron(*own)).reshape(-1)

    u, v = (Operand(number, None, lambda value: value) for number in (0, 1))
    kernel = SimpleNamespace(started=applying)
    one = SumStep(lambda *_: None, u, v, (0, 1), (0, 1), applying=kernel, shape=(5, 6, 1), is_last=True)
    for step in (one, PassStep(FakePass(), 0, 1, (5, 6, 1), True, (0, 1))):
        launch = BoundGradients("", (step,), 0, wanted)
        of_x, (first, second) = launch((x, factors, grad, ()), alpha, (5, 6))
        assert of_x.shape == (5, 6)
        assert_close(of_x, alpha * torch.einsum("nqr,qp->npr", grad, whole).view(5, 6), depth=8)
        exact = separated(torch.einsum("nqr,npr->qp", grad, x), factors)
        assert_close(first, alpha * exact[0], depth=40)
        assert (second is None) == (not wanted[1])
        assert not launch.reads_saved
        assert launch.steps[0].reads == {0, 1}
    assert seen == [alpha]
