"""Patterns, named chains, exact transforms, fusing and projection, against dense linear algebra."""

from __future__ import annotations

import itertools
import math
from functools import cache

import numpy as np
import pytest
import scipy.fft
import scipy.linalg
import torch
from sklearn.datasets import load_digits

import kernmantle as km
from kernmantle import errors
from kernmantle.kronsparse import (
    KSPattern,
    block_diagonal,
    butterfly,
    choose_patterns,
    dct,
    dft,
    fuse_weights,
    hadamard,
    low_rank_like,
    monarch,
    project,
)
from kernmantle.testing import assert_close

CHAINS = {
    "monarch": monarch((24, 36), 3, 4, 2),
    "square": [(4, 4, 4, 1), (1, 4, 4, 4)],
    "two": [(6, 8, 8, 1), (1, 12, 24, 2)],
    "butterfly": butterfly(16),
    "ternary": butterfly(27, 3),
    "tall": [(4, 6, 2, 1), (2, 4, 4, 3), (1, 3, 2, 12)],
    "low rank": low_rank_like((10, 14), 3),
}


def matrix(rows, columns, seed=0):
    return torch.randn(rows, columns, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def random_chain(patterns, seed=0):
    source = torch.Generator().manual_seed(seed)
    return [torch.randn(tuple(pattern), dtype=torch.float64, generator=source) for pattern in patterns]


def product(weights):
    total = torch.eye(KSPattern(*weights[0].shape).in_features, dtype=torch.float64)
    for weight in weights:
        total = KSPattern(*weight.shape).to_dense(weight) @ total
    return total


def test_sizes():
    pattern = KSPattern(2, 3, 4, 5)
    assert tuple(pattern) == (2, 3, 4, 5) == pattern
    assert (pattern.out_features, pattern.in_features, pattern.nnz) == (30, 40, 120)
    assert pattern.density == pattern.nnz / (30 * 40)
    assert pattern.T == (2, 4, 3, 5)
    assert str(pattern) == "(2, 3, 4, 5)"
    weight = torch.randn(pattern)
    assert torch.equal(pattern.to_dense(weight).T, pattern.T.to_dense(weight.transpose(1, 2)))
    assert KSPattern.of([2, np.int64(3), 4, 5]) == pattern


def test_support_is_a_kronecker_product():
    for shape in itertools.product((1, 2, 3), repeat=4):
        a, b, c, d = shape
        wanted = torch.kron(torch.kron(torch.eye(a), torch.ones(b, c)), torch.eye(d))
        assert torch.equal(KSPattern(*shape).mask(), wanted.bool())


@pytest.mark.parametrize("bad", [(1, 2, 3, 0), (1, -2, 3, 1), (1.5, 2, 3, 1), (True, 2, 3, 1), ("2", 2, 3, 1)])
def test_bad_entries(bad):
    with pytest.raises(errors.ParameterError, match="positive integer"):
        KSPattern(*bad)


def test_patterns_stay_checked():
    pattern = KSPattern(2, 3, 4, 5)
    assert pattern._replace(a=7) == (7, 3, 4, 5)
    with pytest.raises(errors.ParameterError, match="a of the pattern"):
        pattern._replace(a=0)
    weight = np.arange(120.0).reshape(2, 3, 4, 5)
    dense = pattern.to_dense(weight)
    assert isinstance(dense, np.ndarray)
    assert np.array_equal(pattern.from_dense(dense), weight)


@pytest.mark.parametrize("bad", [3, (1, 2, 3), None, "pattern"])
def test_what_is_no_pattern(bad):
    with pytest.raises(errors.ParameterError, match="four entries"):
        KSPattern.of(bad)


@pytest.mark.parametrize("name", CHAINS)
def test_fusing(name):
    weights = random_chain(CHAINS[name])
    first, second = weights[:2]
    fused = fuse_weights(second, first)
    pattern = KSPattern(*second.shape).fuse(KSPattern(*first.shape))
    assert tuple(fused.shape) == pattern
    assert_close(pattern.to_dense(fused), product(weights[:2]), depth=200)


def test_what_cannot_be_fused():
    with pytest.raises(errors.ShapeError, match=r"do not chain.*a b d = 24.*a c d = 36"):
        KSPattern(1, 4, 36, 1).fuse(KSPattern(2, 12, 3, 1))
    with pytest.raises(errors.ShapeError, match="on no pattern"):
        KSPattern(2, 2, 2, 1).fuse(KSPattern(1, 2, 2, 2))
    assert KSPattern(2, 2, 2, 1).rank(KSPattern(1, 2, 2, 2)) is None
    assert KSPattern(1, 768, 192, 2).rank(KSPattern(6, 64, 64, 1)) == 32
    assert KSPattern(1, 768, 192, 2).rank((6, 64, 64, 1)) == 32
    assert KSPattern(1, 2, 2, 4).fuse((2, 2, 2, 2)) == (1, 4, 4, 2)
    with pytest.raises(errors.ParameterError, match="four entries"):
        fuse_weights(torch.ones(2, 2, 2), torch.ones(2, 2, 2))


def test_a_name_is_no_chain():
    with pytest.raises(errors.ParameterError, match=r"not 'monarch': km\.kronsparse\.monarch\("):
        km.KSLinear(8, 8, "monarch")


@pytest.mark.parametrize("alone", [(6, 8, 8, 1), KSPattern(6, 8, 8, 1)])
@pytest.mark.parametrize(
    "use",
    [
        lambda pattern: km.KSLinear(48, 48, pattern),
        lambda pattern: project(torch.ones(48, 48), pattern),
        lambda pattern: km.replace_linears(torch.nn.Sequential(torch.nn.Linear(48, 48)), pattern),
    ],
)
def test_a_chain_of_one_is_a_sequence(use, alone):
    with pytest.raises(errors.ParameterError, match=r"a chain of one is \[\(6, 8, 8, 1\)\]"):
        use(alone)


def test_named_chains():
    assert monarch((1536, 384), p=6, q=2, rank=32) == [(6, 64, 64, 1), (1, 768, 192, 2)]
    assert butterfly(8) == [(4, 2, 2, 1), (2, 2, 2, 2), (1, 2, 2, 4)]
    assert butterfly(32, levels=2) == [(8, 4, 4, 1), (2, 4, 4, 4), (1, 2, 2, 16)]
    assert block_diagonal((6, 9), 3) == [(3, 2, 3, 1)]
    assert low_rank_like((6, 9), 2) == [(1, 2, 9, 1), (1, 6, 2, 1)]
    for call, name in (
        (lambda: monarch((10, 10), 3, 2), "p = 3 must divide columns = 10"),
        (lambda: monarch((10, 10), 2, 4), "q = 4 must divide rows = 10"),
        (lambda: butterfly(12), "a power of 2 above 1"),
        (lambda: butterfly(8, radix=1), "radix must be at least 2"),
        (lambda: butterfly(8, levels=0), "levels must be a positive integer, not 0"),
        (lambda: butterfly(8.0), "n must be a positive integer, not 8.0"),
        (lambda: hadamard(12), "power of 2"),
        (lambda: hadamard(0), "n must be a positive integer"),
        (lambda: dft(-3), "n must be a positive integer"),
        (lambda: dct("8"), "n must be a positive integer"),
        (lambda: block_diagonal((6, 9), 0), "blocks must be a positive integer, not 0"),
        (lambda: monarch((6, 9), 3, 2, 0), "rank must be a positive integer, not 0"),
        (lambda: low_rank_like((6, 9), 1.5), "rank must be a positive integer, not 1.5"),
        (lambda: hadamard(4).fused(0), "levels must be a positive integer"),
    ):
        with pytest.raises(errors.ParameterError, match=name):
            call()
    for shape in (6, (6,), (6, 0), (6.5, 9), (-6, 9), ("6", 9)):
        with pytest.raises(errors.ShapeError, match="out_features, in_features"):
            low_rank_like(shape, 2)
    with pytest.raises(errors.DtypeError, match="int64"):
        hadamard(4, torch.int64)
    assert low_rank_like(torch.nn.Linear(9, 6), 2) == low_rank_like((6, 9), 2)


@pytest.mark.parametrize("n", [2, 4, 8, 32])
@pytest.mark.parametrize("levels", [1, 2, 3])
def test_exact_transforms(n, levels):
    x = matrix(5, n)
    wanted = {
        hadamard: x @ torch.from_numpy(scipy.linalg.hadamard(n).astype(float)),
        dct: torch.from_numpy(scipy.fft.dct(x.numpy(), norm="ortho")),
        dft: torch.cat([torch.fft.fft(x).real, torch.fft.fft(x).imag], -1),
    }
    for transform, expected in wanted.items():
        chain = transform(n, torch.float64).fused(levels)
        assert_close(chain(x), expected, depth=8 * n)
        assert_close(chain(x.T, batch_last=True), expected.T, depth=8 * n)
        assert_close(x @ chain.to_dense().T, expected, depth=8 * n)
        assert len(chain.weights) == math.ceil(math.log2(n) / levels)
    assert hadamard(n).nnz == 2 * n * math.log2(n)


@pytest.mark.parametrize("n", [1, 3, 5, 6, 7, 9, 12, 15, 30, 49, 100])
def test_exact_transforms_of_any_length(n):
    x = matrix(5, n)
    fourier = torch.cat([torch.fft.fft(x).real, torch.fft.fft(x).imag], -1)
    cosines = torch.from_numpy(scipy.fft.dct(x.numpy(), norm="ortho"))
    for transform, expected in ((dft, fourier), (dct, cosines)):
        chain = transform(n, torch.float64)
        assert_close(chain(x), expected, depth=8 * n)
        assert_close(x @ chain.to_dense().T, expected, depth=8 * n)
        assert len(chain.weights) == max(1, sum(n % (p**k) == 0 for p in (2, 3, 5, 7) for k in (1, 2)))
    exact = {0.0, 1.0, -1.0}
    assert all(set(weight.unique().tolist()) <= exact for weight in dft(4, torch.float64).weights)


def test_transforms_take_what_products_take():
    chain, x = dct(6, torch.float64), matrix(5, 6)
    wanted = scipy.fft.dct(x.numpy(), norm="ortho")
    for given in (x.numpy(), x.numpy()[::-1, ::-1]):
        found = chain(given)
        assert isinstance(found, np.ndarray)
        assert_close(found, scipy.fft.dct(given, norm="ortho"), depth=48)
    out = np.empty((5, 6))
    assert chain(x.numpy(), out=out) is out
    assert_close(out, wanted, depth=48)
    for features in (5, 7, 12):
        with pytest.raises(errors.ShapeError, match=f"{features} features"):
            chain(matrix(5, features))
    with pytest.raises(errors.DeviceError, match="the chain is on cpu"):
        chain(x.to("meta"))
    assert chain == chain
    assert chain != dct(6, torch.float64)


def test_chains_under_transforms():
    chain, x = dct(8, torch.float64), matrix(5, 8)

    def total(x):
        return chain(x).square().sum()

    wanted = 2 * x @ chain.to_dense().T @ chain.to_dense()
    assert_close(torch.func.grad(total)(x), wanted, depth=100)
    assert_close(torch.func.vmap(torch.func.grad(total))(x), wanted, depth=100)
    weight, *others = chain.weights

    def of_weight(weight):
        return km.kron_sparse_matmul(x[:, chain.permutation], [weight, *others]).square().sum()

    assert_close(torch.func.grad(of_weight)(weight), torch.autograd.functional.jacobian(of_weight, weight), depth=100)


@pytest.mark.parametrize("name", CHAINS)
def test_projection_of_a_product_is_exact(name):
    weights = random_chain(CHAINS[name])
    exact = product(weights)
    found = project(exact, CHAINS[name])
    assert found.error < 1e-12
    assert_close(product(found.weights), exact, depth=1000)
    assert [tuple(weight.shape) for weight in found.weights] == [tuple(pattern) for pattern in CHAINS[name]]


def closed_form(exact, first, second):
    """Least error of two factors: what the support leaves out, and the tails of its blocks' singular values."""
    rank = second.rank(first)
    outer, inner = first.a // second.a, second.d // first.d
    lost = float(exact.masked_fill(second.fuse(first).mask(), 0).square().sum())
    whole = exact.numpy()
    for i, p, q, l in itertools.product(range(second.a), range(outer), range(inner), range(first.d)):
        rows = [i * second.b * second.d + j * second.d + q * first.d + l for j in range(second.b)]
        columns = [(i * outer + p) * first.c * first.d + k * first.d + l for k in range(first.c)]
        values = np.linalg.svd(whole[np.ix_(rows, columns)], compute_uv=False)
        lost += float((values[rank:] ** 2).sum())
    return math.sqrt(lost / float(exact.square().sum()))


@pytest.mark.parametrize("name", ["monarch", "square", "two", "low rank"])
def test_two_factors_reach_the_closed_form(name):
    first, second = map(KSPattern.of, CHAINS[name])
    exact = matrix(second.out_features, first.in_features, 7)
    found = project(exact, [first, second])
    assert found.bound == 1
    assert_close(found.error, closed_form(exact, first, second), dtype=torch.float64, depth=1000)
    real = torch.linalg.norm(exact - product(found.weights)) / torch.linalg.norm(exact)
    assert_close(found.error, real, dtype=torch.float64, depth=1000)


@pytest.mark.parametrize("name", ["butterfly", "ternary", "tall"])
def test_longer_chains_keep_their_guarantee(name):
    patterns = [KSPattern.of(pattern) for pattern in CHAINS[name]]
    for seed in range(5):
        near = product(random_chain(patterns, seed))
        noise = matrix(*near.shape, seed + 50)
        exact = near + 0.05 * noise * near.norm() / noise.norm()
        found = project(exact, patterns)
        assert found.bound == math.sqrt(len(patterns) - 1)
        # The best error is at most that of ``near``, and at least that of every product of two groups of factors.
        assert found.error <= found.bound * float((exact - near).norm() / exact.norm())
        for cut in range(1, len(patterns)):
            first, second = patterns[0], patterns[cut]
            for pattern in patterns[1:cut]:
                first = pattern.fuse(first)
            for pattern in patterns[cut + 1 :]:
                second = pattern.fuse(second)
            assert found.error >= closed_form(exact, first, second) * (1 - 1e-9)


@cache
def trained(rows, columns):
    """The weights of a dense layer that learnt to tell digits by their pixels."""
    pixels, labels = load_digits(return_X_y=True)
    x, y = torch.from_numpy(pixels[:300, :columns] / 16), torch.from_numpy(labels[:300])
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(columns, rows), torch.nn.ReLU(), torch.nn.Linear(rows, 10)).double()
    for _ in range(60):
        loss = torch.nn.functional.cross_entropy(model(x), y)
        for parameter, slope in zip(
            model.parameters(), torch.autograd.grad(loss, list(model.parameters())), strict=True
        ):
            parameter.data -= 0.5 * slope
    assert float(loss.detach()) < 0.4
    return model[0]


@pytest.mark.parametrize("rank", [1, 3])
def test_monarch_of_a_trained_layer_is_the_closed_form(rank):
    layer = trained(48, 64)
    patterns = monarch((48, 64), 4, 6, rank)
    near = km.KSLinear.from_linear(layer, patterns)
    exact = layer.weight.detach()
    assert_close(near.projection_error, closed_form(exact, *patterns), dtype=torch.float64, depth=1000)
    real = torch.linalg.norm(exact - near.to_dense().detach()) / torch.linalg.norm(exact)
    assert_close(near.projection_error, real, dtype=torch.float64, depth=1000)
    assert torch.equal(near.bias, layer.bias)


def test_longer_chains_of_a_trained_layer_keep_their_guarantee():
    exact = trained(64, 64).weight.detach()
    patterns = butterfly(64, levels=2)
    found = project(exact, patterns)
    assert len(patterns) == 3
    assert found.bound == math.sqrt(2)
    cuts = ((patterns[1].fuse(patterns[0]), patterns[2]), (patterns[0], patterns[2].fuse(patterns[1])))
    least = [closed_form(exact, *two) for two in cuts]
    # Every chain has at least the error of each cut; what is found, at most that of all cuts together.
    assert max(least) * (1 - 1e-9) <= found.error <= math.hypot(*least) * (1 + 1e-9)


def test_projection_of_other_kinds():
    exact = matrix(8, 12)
    (only,) = block_diagonal((8, 12), 4)
    found = project(exact, [only])
    assert torch.equal(found.weights[0], only.from_dense(exact))
    zero = project(torch.zeros(8, 12), [(4, 4, 3, 1), (1, 2, 4, 4)])
    assert zero.error == 0
    half = project(exact.half(), [(4, 4, 3, 1), (1, 2, 4, 4)])
    assert half.weights[0].dtype == torch.float16
    for own in project(exact.numpy(), [(4, 4, 3, 1), (1, 2, 4, 4)]).weights:
        assert type(own) is np.ndarray
        assert own.dtype == np.float64
    of_parameter = project(torch.nn.Parameter(exact), [(4, 4, 3, 1), (1, 2, 4, 4)])
    assert not any(weight.requires_grad for weight in of_parameter.weights)
    with pytest.raises(errors.ShapeError, match=r"\(8, 12\), the patterns make \(8, 16\)"):
        project(exact, [(4, 4, 4, 1), (1, 2, 4, 4)])
    with pytest.raises(errors.ShapeError, match="not chainable"):
        project(torch.ones(4, 4), [(1, 2, 2, 2), (2, 2, 2, 1)])


def test_choice_under_budgets():
    layer = torch.nn.Linear(48, 96)
    for budget in (0.1, 0.5, 0.9):
        found = choose_patterns(layer, budget, count=5)
        assert found
        for choice in found:
            assert sum(KSPattern.of(p).nnz for p in choice.patterns) / (48 * 96) == choice.parameters <= budget
            real = project(layer.weight.detach().double(), choice.patterns).error
            assert_close(choice.error, real, dtype=torch.float32, depth=48)
        assert [choice.error for choice in found] == sorted(choice.error for choice in found)
    assert choose_patterns(layer, 0.9, count=1)[0].error < choose_patterns(layer, 0.1, count=1)[0].error
    quick = choose_patterns((1536, 384), 0.5, count=20)
    assert [choice.latency for choice in quick] == sorted(choice.latency for choice in quick)
    assert all(choice.error is None for choice in quick)
    assert all(choice.latency <= 0.4 for choice in choose_patterns((1536, 384), None, latency=0.4))
    exact = torch.nn.Linear(48, 96)
    exact.weight.data = product(random_chain(monarch((96, 48), 4, 4, 2))).float()
    assert choose_patterns(exact, 0.5, error=1e-5)[0].error < 1e-5
    assert choose_patterns(layer, 0.1, error=1e-3) == []


def test_bad_budgets():
    for options, message in (
        ({"budget": 0}, "budget must be"), ({"latency": -1}, "latency must be"), ({"device": "tpu"}, "device must be"),
        ({"error": 0.1}, "needs a layer"),
    ):  # fmt: skip
        with pytest.raises(errors.ParameterError, match=message):
            choose_patterns((48, 96), **options)
    with pytest.raises(errors.ShapeError, match="two entries"):
        choose_patterns((48, 96, 2))
    with pytest.raises(errors.DtypeError, match="complex64"):
        choose_patterns((48, 96), dtype=torch.complex64)


def test_what_budgets_may_be():
    linear = torch.nn.Linear(24, 36)
    wanted = choose_patterns(linear, 0.5, device="cpu")
    assert choose_patterns(linear, np.float32(0.5), device=torch.device("cpu")) == wanted
    assert choose_patterns(linear.weight.detach().numpy(), 0.5, device="cpu") == wanted
    assert choose_patterns(linear, 1e-6) == []
    assert choose_patterns(linear, 0.5, device="cpu:0") == wanted
    assert choose_patterns(linear, float("inf"), count=1000) == choose_patterns(linear, 1e9, count=1000)
    for choice in wanted:
        layer = km.KSLinear.from_linear(linear, choice.patterns)
        assert_close(layer.projection_error, choice.error, dtype="float32", depth=64)
    for changes, message in (
        ({"batch": 0}, "batch must be a positive integer"), ({"count": -1}, "count must be a positive integer"),
        ({"budget": True}, "budget must be a positive number"), ({"device": "tpu"}, "device must be"),
        ({"latency": float("nan")}, "latency must be a positive number"),
    ):  # fmt: skip
        with pytest.raises(errors.ParameterError, match=message):
            choose_patterns(linear, **changes)


@pytest.mark.parametrize("use", [choose_patterns, lambda given: project(given, [(1, 6, 4, 1)])])
def test_matrices_without_values(use):
    for given, error, message in (
        (torch.ones(6, 4, dtype=torch.int64), errors.DtypeError, "floating-point"),
        (torch.ones(6, 4, dtype=torch.complex64), errors.DtypeError, "floating-point"),
        (torch.full((6, 4), float("nan")), errors.ParameterError, "not finite"),
        (torch.ones(6, 4, device="meta"), errors.DeviceError, "meta"),
    ):
        with pytest.raises(error, match=message):
            use(given)


def test_the_front_door():
    assert km.KSPattern is KSPattern
    assert km.choose_patterns is choose_patterns
    assert {"KSLinear", "kron_sparse_matmul", "replace_linears"} <= set(km.__all__)


@pytest.mark.parametrize("scale", [1.0, 1e-200, 1e200])
def test_errors_of_choices_are_those_of_projections(scale):
    exact = product(random_chain(monarch((48, 36), 3, 4, 2))) * scale
    found = choose_patterns(exact, 0.6, count=1000)
    assert {choice.name.partition("(")[0] for choice in found} == {"block_diagonal", "low_rank_like", "monarch"}
    assert found[0].error < 1e-13  # squares alone have half of the digits
    for choice in found:
        real = project(exact / scale, choice.patterns).error
        assert_close(1 + choice.error, 1 + real, dtype=torch.float64, depth=48**2)
    assert all(choice.error == 0 for choice in choose_patterns(torch.zeros(48, 36), 0.6))


def test_chains_outside_a_budget_are_not_decomposed(monkeypatch):
    calls = []
    monkeypatch.setattr(np.linalg, "eigvalsh", lambda *given: calls.append(given))
    assert choose_patterns(torch.ones(48, 36), 0.5, latency=1e-9) == []
    assert calls == []


@pytest.mark.parametrize("size", [1e-200, 1e200])
def test_projections_of_small_and_large_entries(size):
    """Squares of these entries leave the range of float64."""
    matrix, chain = (
        torch.randn(8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64),
        monarch((8, 8), 2, 2),
    )
    usual, found = project(matrix, chain), project(matrix * size, chain)
    assert_close(torch.tensor(found.error), torch.tensor(usual.error), depth=100)
    for weight, other in zip(found.weights, usual.weights, strict=True):
        assert_close(weight / size**0.5, other, depth=100)
