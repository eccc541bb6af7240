"""What notebooks and the prompt show: short texts, and pictures that are well-formed."""

import math
import re
from xml.etree import ElementTree as ET

import numpy as np
import pytest
import torch

import kernmantle as km
from kernmantle.kronsparse import block_diagonal, butterfly, low_rank_like, monarch
from kernmantle.structured.kronsparse.picture import STROKES, svg, table

from ..source import ROOT

# Those of the picture in the documentation, which ``python -m tests.unit.test_reprs`` draws.
DRAWN = {
    "block_diagonal": block_diagonal((16, 16), 4), "low_rank_like": low_rank_like((16, 16), 4),
    "monarch": monarch((16, 16), 4, 4), "butterfly": butterfly(16),
}  # fmt: skip
PICTURE = ROOT / "docs" / "_static" / "chains.svg"


def covered(pattern):
    """Cells of the support that the strokes or rectangles of a drawing touch."""
    found = set()
    path = ET.fromstring(svg(pattern)).find("path")
    for x, y, rest in re.findall(r"M(\d+) (\d+)([^M]*)", path.get("d")):
        x, y = int(x), int(y)
        if rest.startswith("l"):
            steps = int(re.match(r"l(\d+) ", rest)[1])
            found |= {(y + step, x + step) for step in range(steps)}
        else:
            width, height = map(int, re.match(r"h(\d+)v(\d+)", rest).groups())
            found |= {(y + row, x + column) for row in range(height) for column in range(width)}
    return found


@pytest.mark.parametrize("pattern", [(1, 2, 3, 1), (2, 3, 4, 1), (2, 3, 2, 4), (1, 2, 2, 5), (3, 1, 1, 1)])
def test_a_picture_covers_the_support(pattern):
    mask = km.KSPattern(*pattern).mask()
    assert covered(pattern) == {tuple(place) for place in mask.nonzero().tolist()}


@pytest.mark.parametrize("pattern", [(6, 64, 64, 1), (1, 768, 192, 2), (512, 2, 2, 512), (2 * STROKES, 1, 1, 1)])
def test_large_pictures_are_small_and_well_formed(pattern):
    text = km.KSPattern(*pattern)._repr_html_()
    assert len(text) < 150_000
    root = ET.fromstring(text)
    assert root.find(".//svg/path") is not None
    assert "weights" in "".join(root.itertext())


def test_the_picture_of_the_documentation_is_what_is_drawn():
    assert PICTURE.read_text(encoding="utf-8") == table(DRAWN)
    root = ET.fromstring(table(DRAWN))
    assert len(root.findall("{*}svg")) == sum(map(len, DRAWN.values()))


def test_a_layer_is_drawn_as_its_chain():
    layer = km.KSLinear(48, 24, [(6, 8, 8, 1), (1, 12, 24, 2)])
    root = ET.fromstring(layer._repr_html_())
    assert [each.get("viewBox") for each in root.iter("svg")] == ["0 0 48 24", "0 0 48 48"]
    assert f"{layer.nnz} weights" in "".join(root.itertext())


def test_a_chain_is_drawn_as_a_product_is_written():
    chain = km.kronsparse.hadamard(8)
    assert len(repr(chain)) < 200
    drawn = [each.get("viewBox") for each in ET.fromstring(chain._repr_html_()).iter("svg")]
    assert len(drawn) == len(chain.patterns)
    assert "permutation" in repr(km.kronsparse.dft(4))


@pytest.mark.parametrize(
    "value",
    [
        km.Contraction("mk,nk->mn", lambda a, b: abs(a - b)),
        0.5 * km.Gaussian(3.0) + km.Matern(2.0),
        km.KroneckerProduct([torch.eye(64), torch.eye(32)]),
        km.KSPattern(6, 64, 64, 1),
        km.kronsparse.hadamard(64),
        km.Laplace(1.0).operator(torch.zeros(1000, 3)),
        km.linalg.solve_cholesky(torch.eye(200), torch.ones(200)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_texts_are_short(value):
    assert len(repr(value)) < 300
    assert repr(value).count("\n") < 5


X = torch.zeros(2, 3)
MISTAKES = {
    "shape": lambda: km.cdist(X, torch.zeros(2, 4)),
    "dtype": lambda: km.cdist(X, X.to(torch.complex64)),
    "list": lambda: km.cdist([[0.0], [0.0, 1.0]]),
    "metric": lambda: km.cdist(X, metric="manhatan"),
    "equation": lambda: km.contract("mk,nk-mn", lambda a, b: a * b, X, X),
    "axes": lambda: km.contract("mk,nk,k->mn", lambda a, b, w: a * b * w, X, X, torch.zeros(4)),
    "branch": lambda: km.contract("mk,nk->mn", lambda a, b: a if a > b else b, X, X),
    "math": lambda: km.contract("mk,nk->mn", lambda a, b: math.exp(a - b), X, X),
    "hyperparameter": lambda: km.Gaussian(sigma=1.0),
    "missing": lambda: km.Kernel(lambda x, y: x * y, lambda s, h: s / h),
    "factors": lambda: km.kron_matmul(X, [torch.eye(2), torch.eye(2)]),
    "pattern": lambda: km.KSLinear(8, 8, [(1, 2, 3, 4)]),
    "matrix": lambda: km.linalg.solve_cholesky(torch.zeros(2, 3), torch.zeros(2)),
    "setting": lambda: km.config(bakend="llvm"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_errors_are_few_lines_and_say_what_was_given(name):
    with pytest.raises(km.errors.KernmantleError) as raised:
        MISTAKES[name]()
    lines = str(raised.value).splitlines()
    assert 1 <= len(lines) < 15
    assert max(map(len, lines)) < 300


if __name__ == "__main__":
    PICTURE.write_text(table(DRAWN), encoding="utf-8")


@pytest.mark.parametrize("number", [1.5, np.float64(1.5), np.float32(1.5), np.array(1.5)], ids=repr)
def test_a_kernel_shows_its_numbers_as_they_are_written(number):
    assert repr(km.Gaussian(number)) == "Gaussian(bandwidth=1.5)"
    assert repr(number * km.Gaussian(2.0)) == "1.5 * Gaussian(bandwidth=2.0)"
