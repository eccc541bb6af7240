"""The demonstration: what it learns is right, its clock checks first, and it runs with and without a picture."""

import re
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from sklearn.kernel_ridge import KernelRidge
from sklearn.neighbors import KNeighborsClassifier

from kernmantle.cli import demo, demo_learning, demo_picture, demo_times, main
from kernmantle.errors import BackendError
from kernmantle.testing import assert_close

DISTANCES = {each.name: each for each in demo_learning.DISTANCES}


@pytest.fixture(scope="module")
def data():
    return demo_learning.load("cpu")


@pytest.fixture(scope="module")
def digits(data):
    return data[0]


def test_the_powers_that_were_promised_are_there():
    assert list(DISTANCES) == ["p = 0.5", "p = 1", "p = 1.3", "p = 2", "your own"]


def test_data_are_split_and_broken_as_said(digits):
    assert (len(digits.train), len(digits.test)) == (1200, 597)
    broken = (digits.test != digits.broken).double().mean()
    assert 0.1 < broken <= demo_learning.BROKEN + 0.01
    assert set(digits.broken[digits.test != digits.broken].tolist()) <= {0.0, 1.0}


@pytest.mark.parametrize("name", DISTANCES)
def test_sums_and_kernels_are_their_formulas(name, digits):
    each, x, y = DISTANCES[name], digits.test[:20], digits.train[:30]
    gaps = (x[:, None].double() - y[None].double()).numpy()
    terms = np.abs(gaps) ** each.pixels["p"] if "p" in each.pixels else 1 - np.exp(-((gaps / each.pixels["c"]) ** 2))
    assert_close(each.sums(x, y, **each.pixels), terms.sum(-1), depth=64)
    assert_close(each.kernel(x, y, **each.pixels, bandwidth=3.0), np.exp(-terms.sum(-1) / 3.0), depth=64)


@pytest.mark.parametrize("p", [1.0, 2.0])
def test_neighbours_agree_with_scikit_learn(p, digits):
    peer = KNeighborsClassifier(demo_learning.NEIGHBOURS, metric="minkowski", p=p, algorithm="brute")
    wanted = peer.fit(digits.train.numpy(), digits.labels.numpy()).score(digits.test.numpy(), digits.answers.numpy())
    found = demo_learning.neighbours(DISTANCES[f"p = {p:g}"], digits, digits.test)
    assert abs(found - wanted) <= 2 / len(digits.test)


def test_ridge_regression_agrees_with_scikit_learn(data):
    _, diabetes = data
    x, y = diabetes.x[:150], diabetes.y[:150]
    model = demo_learning.fit(DISTANCES["p = 1"], {"p": 1.0}, x, y, ((2.0,), (0.3,)))
    peer = KernelRidge(alpha=0.3, kernel="laplacian", gamma=1 / model.numbers["bandwidth"]).fit(x.numpy(), y.numpy())
    terms = DISTANCES["p = 1"].kernel(diabetes.x[150:], x, **model.numbers) @ model.coefficients.abs()
    assert_close(model(diabetes.x[150:]), peer.predict(diabetes.x[150:].numpy()), depth=150, magnitude=terms)


def test_the_chosen_fit_leaves_out_best(data):
    _, diabetes = data
    x, y = diabetes.x[:60], diabetes.y[:60]
    each, grid = DISTANCES["p = 1"], ((0.05, 4.0), (0.1, 1.0))
    middle = float(each.sums(x, x, p=1.0).median())
    errors = {}
    for factor in grid[0]:
        for ridge in grid[1]:
            kernel = each.kernel(x, x, p=1.0, bandwidth=factor * middle)
            missed = []
            for place in range(60):
                rest = [other for other in range(60) if other != place]
                solved = torch.linalg.solve(kernel[rest][:, rest] + ridge * torch.eye(59, dtype=x.dtype), y[rest])
                missed.append(float(y[place] - kernel[place, rest] @ solved) ** 2)
            errors[factor, ridge] = np.mean(missed)
    best = min(errors, key=errors.get)
    chosen = demo_learning.fit(each, {"p": 1.0}, x, y, grid)
    wanted = demo_learning.fit(each, {"p": 1.0}, x, y, ((best[0],), (best[1],)))
    assert torch.equal(chosen.coefficients, wanted.coefficients)


def test_weights_follow_the_gradient_of_the_likelihood(data):
    """Closed form of the slope against torch's own through a dense solve."""
    _, diabetes = data
    x, y = diabetes.x[:40], diabetes.y[:40]
    logs = torch.full((10,), -2.0, dtype=x.dtype, requires_grad=True)
    one = torch.eye(40, dtype=x.dtype)

    def covariance():
        return demo_learning._weighted_kernel(x, x, w=logs.exp(), scale=1.3) + 0.5 * one

    inverse = torch.linalg.inv(covariance().detach())
    (closed,) = torch.autograd.grad(covariance(), logs, (inverse - torch.outer(inverse @ y, inverse @ y)) / 2)
    dense = 1.3 * torch.exp(-((x[:, None] - x[None]).abs() * logs.exp()).sum(-1)) + 0.5 * one
    (wanted,) = torch.autograd.grad((y @ torch.linalg.solve(dense, y) + torch.logdet(dense)) / 2, logs)
    assert_close(closed, wanted.numpy(), depth=40 * 40)


def test_a_wrong_distance_is_not_timed(monkeypatch):
    monkeypatch.setattr(demo_times, "cdist", lambda x, y, p: torch.cdist(x, y, p=p) + 0.01)
    monkeypatch.setattr(demo_times, "medians", lambda *arguments: pytest.fail("timed"))
    with pytest.raises(demo_times.WrongError, match=r"power 1\.3"):
        demo_times.measure(torch.rand(60, 5), 1.3)


def test_times_name_everybody_here():
    found = demo_times.measure(torch.rand(50, 4), 1.0)
    assert list(found) == ["kernmantle", "torch.cdist", "scipy"]
    assert all(seconds > 0 for seconds in found.values())


def test_the_clock_takes_medians_of_repeated_calls_and_times_long_ones_once(monkeypatch):
    lengths = {"short": iter([0.004, 1, 2, 3, 4, 5, 6, 7]), "long": iter([9.0])}
    timed = []

    def seconds(call, calls):
        timed.append((call(), calls))
        return next(lengths[call()])

    monkeypatch.setattr(demo_times, "_seconds", seconds)
    assert demo_times.medians({"short": lambda: "short", "long": lambda: "long"}) == {"short": 4, "long": 9.0}
    assert timed == [("short", 1), ("long", 1), *[("short", 3)] * demo_times.ROUNDS]


def without(monkeypatch, package):
    monkeypatch.setattr(demo, "find_spec", lambda name: None if name == package else find_spec(name))


@pytest.mark.slow
def test_all_of_it(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(demo_times, "ROUNDS", 1)
    monkeypatch.setattr(demo_times, "POWERS", demo_times.POWERS[:2])
    path = tmp_path / "new" / "demo.png"
    assert main(["demo", "--output", str(path), "--device", "cpu"]) == 0
    out = capsys.readouterr().out
    assert torch.__version__ in out
    assert str(path) in out.replace("\n", "")
    assert path.read_bytes()[:4] == b"\x89PNG"
    scores = [
        [float(cell) for cell in re.findall(r"│ +([\d.]+) ", line)] for line in out.splitlines() if "│ p = " in line
    ]
    scores = [row for row in scores if len(row) == 5]
    assert len(scores) == 4
    assert all(min(row[0], row[2]) > 95 for row in scores)
    assert all(row[4] > 0.4 for row in scores)
    own = next(line for line in out.splitlines() if "│ your own" in line)
    assert float(re.findall(r"│ +([\d.]+) ", own)[3]) > scores[-1][3] + 3


def test_without_matplotlib_it_says_so(tmp_path, monkeypatch, capsys, data):
    monkeypatch.setattr(demo.learning, "DISTANCES", demo_learning.DISTANCES[1:2])
    monkeypatch.setattr(demo_times, "POWERS", (1.0,))
    monkeypatch.setattr(demo_learning, "STEPS", 1)
    without(monkeypatch, "matplotlib")
    monkeypatch.setattr(demo_picture, "draw", lambda *arguments: pytest.fail("drawn"))
    assert demo.main(["--output", str(tmp_path / "demo.png"), "--device", "cpu"]) == 0
    assert "No plot will be drawn without matplotlib: pip install matplotlib" in capsys.readouterr().out
    assert not (tmp_path / "demo.png").exists()


def test_without_scikit_learn_it_says_what_to_install(monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(demo_learning, "import_module", missing)
    with pytest.raises(BackendError, match="pip install scikit-learn"):
        demo_learning.load("cpu")
