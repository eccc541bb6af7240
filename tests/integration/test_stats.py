"""Two-sample and independence tests: stored matrices in float64 as oracles, the same permutations, edges, gradients."""

import numpy as np
import pytest
import torch

import kernmantle as km
from kernmantle import errors, stats
from kernmantle.stats import independence
from kernmantle.testing import assert_close

RANDOM = np.random.default_rng(0)
X, Y = RANDOM.normal(size=(70, 3)), RANDOM.normal(size=(50, 3)) * 1.3 + 0.1
KERNELS = [km.Gaussian(1.5), 0.5 * km.Laplace(2.0) + km.Linear(), km.Kernel(lambda a, b: km.minimum(abs(a), abs(b)))]


def discrepancy(matrix, first, unbiased):
    """Of a stored matrix, with the rows of the first sample."""
    second = np.setdiff1d(np.arange(len(matrix)), first)
    means = []
    for own in (first, second):
        part, size = matrix[np.ix_(own, own)], len(own)
        means.append((part.sum() - np.trace(part)) / (size * (size - 1)) if unbiased else part.mean())
    return sum(means) - 2 * matrix[np.ix_(first, second)].mean()


def dependence(k, other, unbiased):
    """Of stored matrices, by the formulas of the papers."""
    n = len(k)
    if not unbiased:
        centring = np.eye(n) - 1 / n
        return np.trace(k @ centring @ other @ centring) / n**2
    k, other = k - np.diag(np.diag(k)), other - np.diag(np.diag(other))
    ones = np.ones(n)
    across = (ones @ k @ ones) * (ones @ other @ ones) / ((n - 1) * (n - 2))
    return (np.trace(k @ other) + across - 2 / (n - 2) * ones @ k @ other @ ones) / (n * (n - 3))


@pytest.mark.parametrize("unbiased", [False, True])
@pytest.mark.parametrize("kernel", KERNELS[:2], ids=["gaussian", "sum"])
def test_discrepancy_is_that_of_a_stored_matrix(kernel, unbiased):
    rows = np.concatenate([X, Y])
    matrix = kernel(rows)
    found = stats.mmd(X, Y, kernel, unbiased=unbiased, permutations=40, random_state=7)
    scale = np.abs(matrix).max()
    assert_close(found.statistic, discrepancy(matrix, np.arange(70), unbiased), depth=120**2, magnitude=scale)
    random = np.random.default_rng(7)
    null = [discrepancy(matrix, random.permutation(120)[:70], unbiased) for _ in range(40)]
    assert_close(found.null_distribution, null, depth=120**2, magnitude=scale)
    assert found.p_value == (1 + np.sum(np.array(null) >= found.statistic)) / 41


@pytest.mark.parametrize("unbiased", [False, True])
@pytest.mark.parametrize(("first", "second"), [(0, 1), (1, 0), (2, 2)])
def test_dependence_is_that_of_stored_matrices(first, second, unbiased, monkeypatch):
    monkeypatch.setitem(independence.BLOCK, "cpu", 8 * 60 * 7)  # seven rows at a time
    x, y = X[:60], Y[:50, :2].repeat(2, 0)[:60] + X[:60, :2] ** 2
    kernels = KERNELS[first], KERNELS[second]
    k, other = kernels[0](x), kernels[1](y)
    found = stats.hsic(x, y, *kernels, unbiased=unbiased, permutations=30, random_state=3)
    scale = np.abs(k).max() * np.abs(other).max()
    assert_close(found.statistic, dependence(k, other, unbiased), depth=60**2, magnitude=scale)
    random = np.random.default_rng(3)
    orders = [random.permutation(60) for _ in range(30)]
    null = [dependence(k, other[np.ix_(order, order)], unbiased) for order in orders]
    assert_close(found.null_distribution, null, depth=60**2, magnitude=scale)
    assert found.p_value == (1 + np.sum(np.array(null) >= found.statistic)) / 31


def test_float32_has_the_digits_of_the_difference():
    """Sums of nearly equal entries, of which the statistic is the small difference."""
    x, y = (RANDOM.normal(size=(400, 2)).astype(np.float32) for _ in range(2))
    kernel = km.Gaussian(30.0)
    matrix = kernel(np.concatenate([x, y]).astype(np.float64))
    found = stats.mmd(x, y, kernel, permutations=0)
    exact = discrepancy(matrix, np.arange(400), True)
    assert_close(found.statistic, exact, dtype=np.float32, magnitude=1 - matrix.min())
    assert found.p_value is None
    assert found.null_distribution is None


def test_levels_and_power():
    """Half of the p-values of equal distributions are below a half; different ones are seen."""
    values = []
    for seed in range(60):
        random = np.random.default_rng(seed)
        x, y = random.normal(size=(20, 2)), random.normal(size=(25, 2))
        values.append(stats.mmd(x, y, permutations=39, random_state=seed).p_value)
        values.append(stats.hsic(x, random.normal(size=(20, 1)), permutations=39, random_state=seed).p_value)
    assert 0.35 < np.mean(np.array(values) <= 0.5) < 0.65
    assert np.mean(np.array(values) <= 0.05) < 0.12
    assert stats.mmd(X, X[:50] + 2, permutations=99, random_state=0).p_value == 0.01
    assert stats.hsic(X, X[:, :1] ** 2, permutations=99, random_state=0).p_value == 0.01


@pytest.mark.parametrize("unbiased", [False, True])
def test_statistics_have_gradients(unbiased, monkeypatch):
    monkeypatch.setitem(independence.BLOCK, "cpu", 8 * 9 * 4)
    x, y = (torch.from_numpy(rows[:9].copy()).requires_grad_() for rows in (X, Y))
    width = torch.tensor(1.3, dtype=torch.float64, requires_grad=True)

    def discrepancy(x, y, width):
        return stats.mmd(x, y[:7], km.Gaussian(width), unbiased=unbiased, permutations=0).statistic

    def dependence(x, y, width):
        kernel = km.Gaussian(width)
        return stats.hsic(x, y, kernel, kernel, unbiased=unbiased, permutations=0).statistic

    assert torch.autograd.gradcheck(discrepancy, (x, y, width))
    assert torch.autograd.gradcheck(dependence, (x, y, width))
    found = stats.mmd(x, y, permutations=5, random_state=0)
    assert found.statistic.requires_grad
    assert isinstance(found.p_value, float)
    assert isinstance(stats.hsic(X, X, permutations=0).statistic, float)


def discrepancy_of(x, y):
    return stats.mmd(x, y[:7], KERNELS[0], permutations=0).statistic


def dependence_of(x, y):
    return stats.hsic(x, y, KERNELS[0], KERNELS[1], permutations=0).statistic


@pytest.mark.parametrize("statistic", [discrepancy_of, dependence_of])
def test_statistics_under_transforms(statistic, monkeypatch):
    monkeypatch.setitem(independence.BLOCK, "cpu", 8 * 9 * 4)
    x, y = (torch.from_numpy(np.stack([rows[:9], rows[9:18]])) for rows in (X, Y))
    slopes = []
    for one, other in zip(x, y, strict=True):
        leaf = one.clone().requires_grad_()
        slopes.append(torch.autograd.grad(statistic(leaf, other), leaf)[0])
    function = torch.func
    assert_close(torch.vmap(statistic)(x, y), torch.stack([statistic(*rows) for rows in zip(x, y, strict=True)]))
    assert_close(torch.vmap(function.grad(statistic))(x, y), torch.stack(slopes), depth=81)
    assert_close(function.grad(lambda x: torch.vmap(statistic)(x, y).sum())(x), torch.stack(slopes), depth=81)
    assert_close(function.jacfwd(statistic)(x[0], y[0]), slopes[0], depth=81)
    second = function.hessian(statistic)(x[0], y[0])
    assert_close(second, torch.autograd.functional.hessian(lambda x: statistic(x, y[0]), x[0]), depth=81)


def test_edges():
    assert abs(stats.mmd(X, X, unbiased=False, permutations=0).statistic) < 1e-15
    assert stats.mmd(X[:1], Y[:1], km.Gaussian(1.0), unbiased=False, permutations=1, random_state=0).p_value == 1
    same = np.ones((6, 2))
    assert stats.mmd(same, same, permutations=9).p_value == 1
    assert stats.hsic(same, same, permutations=9).p_value == 1
    holed = X.copy()
    holed[3, 1] = np.nan
    assert np.isnan(stats.mmd(holed, Y, km.Gaussian(1.0), permutations=3).p_value)
    assert np.isnan(stats.hsic(holed, X, km.Gaussian(1.0), km.Gaussian(1.0), permutations=3).p_value)
    counts = stats.mmd(np.arange(6).reshape(3, 2), np.arange(8).reshape(4, 2), permutations=0)
    assert counts.statistic == stats.mmd(np.arange(6.0).reshape(3, 2), np.arange(8.0).reshape(4, 2)).statistic
    strided = torch.from_numpy(X).T.contiguous().T
    assert_close(stats.mmd(strided, torch.from_numpy(Y), KERNELS[0], permutations=0).statistic,
                 stats.mmd(X, Y, KERNELS[0], permutations=0).statistic, depth=10**4)  # fmt: skip


def test_transforms_want_the_statistic_alone():
    x = torch.from_numpy(X[:6].copy())
    for test in (stats.hsic, stats.mmd):
        with pytest.raises(errors.GradientError, match="pass permutations=0"):
            torch.func.grad(lambda rows, test=test: test(rows, x, permutations=9).statistic)(x)
        with pytest.raises(errors.GradientError, match="pass kernel"):
            torch.vmap(lambda rows, test=test: test(rows, x, permutations=0).statistic)(x[None])
        found = torch.func.grad(lambda rows, test=test: test(rows, x, permutations=0).statistic)(x + x.square())
        rows = (x + x.square()).requires_grad_()
        (wanted,) = torch.autograd.grad(test(rows, x, permutations=0).statistic, rows)
        assert_close(found, wanted, depth=6)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: stats.mmd(X, Y[:, :2]), errors.ShapeError, r"\(70, 3\), y \(50, 2\)"),
        (lambda: stats.mmd(X[:1], Y), errors.ShapeError, "at least 2 rows"),
        (lambda: stats.mmd(X[:, 0], Y), errors.ShapeError, "x must have rows and columns"),
        (lambda: stats.mmd(torch.ones(3, 2), torch.ones(3, 2, device="meta")), errors.DeviceError, "x is on cpu but y"),
        (lambda: stats.hsic(X, Y), errors.ShapeError, "as many of y"),
        (lambda: stats.hsic(X[:3], Y[:3]), errors.ShapeError, "at least 4 rows"),
        (lambda: stats.mmd(X, Y, "gaussian"), errors.ParameterError, "kernel must be a km.Kernel"),
        (lambda: stats.hsic(X, X, None, len), errors.ParameterError, "kernel_y must be a km.Kernel"),
        (lambda: stats.mmd(X, Y, km.Kernel(lambda a, b: a - b)), errors.ParameterError, "not symmetric"),
        (lambda: stats.mmd(X, Y, random_state=-1), errors.ParameterError, "random_state must be an integer"),
        (lambda: stats.hsic(X, X, random_state=torch.Generator()), errors.ParameterError, "a numpy Generator or None"),
        (lambda: stats.mmd(X, Y, permutations=-1), errors.ParameterError, "permutations must be"),
        (lambda: stats.mmd(X, Y, km.Gaussian(torch.ones(2).double())), errors.ShapeError, "batch of hyperparameters"),
    ],
)
def test_bad_input(call, error, text):
    with pytest.raises(error, match=text):
        call()
