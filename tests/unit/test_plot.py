"""What is drawn is what is computed; wrong input is refused before anything is drawn."""

import math
import sys

import numpy as np
import pytest
import torch

import kernmantle as km
from kernmantle.testing import assert_close

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")


@pytest.fixture(autouse=True)
def closed():
    yield
    matplotlib.pyplot.close("all")


def test_kernels_over_distance():
    axes = km.plot.kernel({"gauss": km.Gaussian(2.0), "laplace": km.Laplace(2.0)}, radius=6.0)
    distances = axes.lines[0].get_xdata()
    assert (distances[0], distances[-1]) == (0.0, 6.0)
    assert_close(torch.from_numpy(axes.lines[0].get_ydata()), np.exp(-(distances**2) / 8))
    assert_close(torch.from_numpy(axes.lines[1].get_ydata()), np.exp(-distances / 2))
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["gauss", "laplace"]
    assert km.plot.kernel(km.Cauchy(), axes=axes) is axes
    assert len(axes.lines) == 3


def test_supports_of_a_chain_and_of_its_product():
    patterns = km.kronsparse.butterfly(8)
    drawn = km.plot.supports(patterns)
    images = [each.images[0].get_array() for each in drawn]
    for image, pattern in zip(images, patterns, strict=False):
        assert np.array_equal(image > 0, pattern.mask().numpy())
    assert len(drawn) == 4
    assert images[-1].min() == 1


def test_spectra_of_every_form():
    matrix = torch.diag(torch.tensor([3.0, 0.0, 7.0]))
    for given in (km.linalg.eigh(matrix), torch.tensor([3.0, 0.0, 7.0]), np.array([3.0, 0.0, 7.0]), [7.0, 3.0, 0.0]):
        first, second, third = km.plot.spectrum(given).lines[0].get_ydata()
        assert (first, second) == (7.0, 3.0)
        assert math.isnan(third)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: km.plot.kernel(km.Gaussian(), radius=0), "radius=0 must be above 0"),
        (lambda: km.plot.kernel(km.Gaussian(torch.ones(3))), "batched"),
        (lambda: km.plot.supports([]), "at least one"),
        (lambda: km.plot.supports([(1, 4, 4, 1), (1, 5, 5, 1)]), "4 outputs"),
        (lambda: km.plot.supports([(1, 4, 4, 1)], axes=[None]), "must have 2 axes"),
        (lambda: km.plot.spectrum(torch.eye(3)), r"shape \(3, 3\)"),
    ],
)
def test_wrong_input(call, message):
    with pytest.raises(km.errors.ParameterError, match=message):
        call()


def test_without_matplotlib(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(km.errors.BackendError, match="pip install matplotlib"):
        km.plot.spectrum([1.0])
