"""Terms of pairs that are given, and rows that are transformed, in everything that kernels do."""

import pickle
import runpy
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import kernmantle as km
from kernmantle import errors
from kernmantle.pairwise import gradient
from kernmantle.testing import assert_close
from kernmantle.torch_ops import blocks

from ..arrays import normal as rows


@pytest.fixture(params=[True, False], ids=["blocks", "one block"])
def small_blocks(request, monkeypatch):
    if request.param:
        monkeypatch.setattr(blocks, "LARGEST", 8 * 2 * 11)


def slope(kernel, z, x, coef, table):
    """Gradient of the predictor by torch, through the matrix."""
    moving = z.detach().requires_grad_()
    predicted = kernel(moving, x, table=table) @ coef
    return torch.stack([torch.autograd.grad(predicted[:, o].sum(), moving, retain_graph=True)[0]
                        for o in range(coef.shape[1])])  # fmt: skip


TABLED = {
    "laplace": (km.Laplace(3.0), lambda gap, table: np.exp(-(np.abs(gap).sum(-1) + table) / 3.0)),
    "gaussian": (km.Gaussian(2.0), lambda gap, table: np.exp(-((gap**2).sum(-1) + table) / 8.0)),
    "euclidean": (km.Laplace(3.0, p=2), lambda gap, table: np.exp(-np.sqrt((gap**2).sum(-1) + table) / 3.0)),
    "power": (
        km.ProductLaplace(2.0, p=1.3), lambda gap, table: np.exp(-((np.abs(gap) ** 1.3).sum(-1) + table) / 2**1.3)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLED)
def test_a_table_is_part_of_the_sum(name, backend, device):
    kernel, oracle = TABLED[name]
    z, x, table = (
        rows(9, 4, device=device),
        rows(11, 4, seed=1, device=device),
        rows(9, 11, seed=2, device=device).abs(),
    )
    expected = oracle((z[:, None] - x).cpu().numpy(), table.cpu().numpy())
    assert_close(kernel(z, x, table=table), expected, depth=32)
    assert_close(kernel.matmul(z, x, x, table=table), expected @ x.cpu().numpy(), depth=64)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("points", "others", "columns", "width"), [(33, 7, 1, 1), (257, 131, 3, 17), (40, 300, 40, 2)])
def test_products_with_a_table_take_one_kernel(points, others, columns, width, dtype, backend, device):
    x, y = rows(points, columns, dtype=dtype, device=device), rows(others, columns, seed=1, dtype=dtype, device=device)
    v = rows(others, width, seed=3, dtype=dtype, device=device).abs()
    own = rows(2, points, others, seed=2, dtype=dtype, device=device).abs()
    kernel = km.Laplace(7.0)
    gap = np.abs(x.double().cpu().numpy()[:, None] - y.double().cpu().numpy()).sum(-1)
    for table in (own[0], own[0].mT.contiguous().mT, own):
        expected = np.exp(-(gap + table.double().cpu().numpy()) / 7.0) @ v.double().cpu().numpy()
        assert_close(kernel.matmul(x, y, v, table=table), expected, depth=columns + others)
    (route,) = [line for line in kernel.info.splitlines() if line.startswith("product with a table ran as")]
    assert ("blocks of the matrix" if backend == "reference" else f"{device}: apply product") in route
    alike = kernel.matmul(x, y, v.requires_grad_(), table=own[0])
    assert alike.requires_grad
    assert_close(alike.detach(), kernel.matmul(x, y, v.detach(), table=own[0]).double(), depth=columns + others)


def test_categories():
    z, x = rows(9, 3), rows(11, 3, seed=1)
    random = np.random.default_rng(0)
    codes, others = random.integers(4, size=9), random.integers(4, size=11)
    distances = torch.from_numpy(random.random((4, 4)))
    table = distances[codes][:, others]
    expected = torch.exp(-(torch.cdist(z, x, 1.0) + table))
    assert_close(km.Laplace()(z, x, table=table), expected, depth=32)


def test_products_with_a_table_have_the_batch_of_v():
    kernel, x = km.Laplace(), rows(5, 3)
    for points in (0, 2):
        found = kernel.matmul(rows(points, 3), x, rows(4, 5, 2), table=rows(points, 5))
        assert found.shape == (4, points, 2)
    with pytest.raises(km.errors.ShapeError, match=r"v has shape \(3, 5, 2\), k\(x, y\) \(2,\)"):
        kernel.matmul(x, x, rows(3, 5, 2), table=rows(2, 5, 5))


def test_an_unsymmetric_table_of_one_set():
    x, table = rows(7, 3), rows(7, 7, seed=2).abs()
    assert_close(km.Laplace()(x, table=table), torch.exp(-(torch.cdist(x, x, 1.0) + table)), depth=32)
    assert_close(km.Laplace().matmul(x, None, rows(7), table=table, diagonal=0.5),
                 torch.exp(-(torch.cdist(x, x, 1.0) + table)) @ rows(7) + 0.5 * rows(7), depth=64)  # fmt: skip


@pytest.mark.parametrize("name", TABLED)
def test_gradients_with_a_table(name, small_blocks):
    kernel = TABLED[name][0]
    z, x, coef = rows(9, 4), rows(11, 4, seed=1), rows(11, 2, seed=3)
    table = rows(9, 11, seed=2).abs()
    expected = slope(kernel, z, x, coef, table)
    assert_close(kernel.gradient(z, x, coef, table=table), expected, depth=128)
    assert_close(kernel.matmul(z, x, coef, table=table), kernel(z, x, table=table) @ coef, depth=64)
    for centred in (False, True):
        moved = expected - expected.mean(1, keepdim=True) if centred else expected
        products = torch.einsum("omd,ome->de", moved, moved)
        assert_close(kernel.agop(z, x, coef, table=table, centred=centred), products, depth=256)


def test_derivatives_by_a_table(small_blocks):
    z, x, coef, table = rows(3, 2), rows(4, 2, seed=1), rows(4, 2, seed=3), rows(3, 4, seed=2).abs() + 0.1
    inputs = tuple(value.requires_grad_() for value in (z, x, coef, table))
    kernel = km.Laplace(2.0, p=2)
    with km.config(backend="reference"):
        assert gradcheck(lambda z, x, coef, table: kernel(z, x, table=table) @ coef, inputs)
        assert gradcheck(lambda z, x, coef, table: kernel.matmul(z, x, coef, table=table), inputs)
        assert gradgradcheck(lambda z, x, coef, table: kernel.matmul(z, x, coef, table=table), inputs, fast_mode=True)
        assert gradcheck(lambda z, x, coef, table: kernel.gradient(z, x, coef, table=table), inputs, fast_mode=True)
        assert gradcheck(lambda z, x, coef, table: kernel.agop(z, x, coef, table=table), inputs, fast_mode=True)


def test_a_batch_of_tables():
    z, x, coef, tables = rows(5, 3), rows(6, 3, seed=1), rows(6, 2, seed=2), rows(2, 5, 6, seed=3).abs()
    kernel = km.Laplace(2.0)
    assert_close(kernel(z, x, table=tables)[1], kernel(z, x, table=tables[1]), depth=16)
    assert_close(kernel.gradient(z, x, coef, table=tables)[1], kernel.gradient(z, x, coef, table=tables[1]), depth=64)
    assert_close(kernel.matmul(z, x, coef, table=tables)[1], kernel.matmul(z, x, coef, table=tables[1]), depth=64)
    halves = kernel.gradient(*(value.bfloat16() for value in (z, x, coef)), table=tables[0].bfloat16())
    assert halves.dtype == torch.bfloat16
    wide = kernel.gradient(*(value.bfloat16().double() for value in (z, x, coef)), table=tables[0].bfloat16().double())
    assert_close(halves, wide, depth=64)


MATRICES = {"full": rows(4, 4, seed=5), "thin": rows(4, 2, seed=6), "diagonal": rows(4, seed=7).abs()}


def by_hand(x, matrix):
    return x * matrix if matrix.dim() == 1 else x @ matrix


@pytest.mark.parametrize("name", MATRICES)
@pytest.mark.parametrize("kernel", [km.Laplace(2.0), km.Gaussian(2.0) + 0.5 * km.Linear(), km.NTK()], ids=repr)
def test_rows_are_transformed_first(kernel, name, backend, device):
    matrix, z, x = (value.to(device) for value in (MATRICES[name], rows(9, 4), rows(11, 4, seed=1)))
    v = rows(11, 2, seed=2, device=device)
    moved, ready = kernel.transformed(matrix), (by_hand(z, matrix), by_hand(x, matrix))
    assert_close(moved(z, x), kernel(*ready), depth=32)
    assert_close(moved(x), kernel(ready[1]), depth=32)
    assert_close(moved.matmul(z, x, v), kernel.matmul(*ready, v), depth=64)
    assert_close(moved.diagonal(x), kernel.diagonal(ready[1]), depth=32)
    assert torch.equal(moved.argkmax(z, x, 3), kernel.argkmax(*ready, 3))
    assert_close(moved.operator(z, x) @ v, kernel.matmul(*ready, v), depth=64)


@pytest.mark.parametrize("name", MATRICES)
def test_gradients_are_of_the_rows_before(name, small_blocks):
    z, x, coef, kernel = rows(9, 4), rows(11, 4, seed=1), rows(11, 2, seed=2), km.Laplace(2.0, p=1.3)
    moved = kernel.transformed(MATRICES[name])
    expected = slope(moved, z, x, coef, None)
    assert_close(moved.gradient(z, x, coef), expected, depth=128)
    assert_close(moved.gradient(z, x, coef[:, 0]), expected[0], depth=128)
    products = torch.einsum("omd,ome->de", expected, expected)
    assert_close(moved.agop(z, x, coef), products, depth=256)
    assert_close(moved.agop(z, x, coef, diagonal=True), products.diagonal(), depth=256)


def test_derivatives_by_a_transform():
    z, x, coef = rows(3, 2), rows(4, 2, seed=1), rows(4, 2, seed=3)
    matrix = rows(2, 3, seed=4).requires_grad_()
    with km.config(backend="reference"):
        for call in (
            lambda m: km.Gaussian().transformed(m)(z, x),
            lambda m: km.Gaussian().transformed(m).matmul(z, x, coef),
            lambda m: km.Laplace(2.0, p=1.5).transformed(m).gradient(z, x, coef),
            lambda m: km.Gaussian().transformed(m).agop(z, x, coef),
        ):
            assert gradcheck(call, (matrix,))


def test_transforms_compose():
    x, first, second = rows(5, 4), rows(3, 2, seed=1), rows(4, 3, seed=2)
    kernel = km.Laplace(2.0).transformed(first)
    assert_close(kernel.transformed(second)(x), km.Laplace(2.0)(x @ second @ first), depth=64)
    assert_close((2 * kernel.transformed(second) ** 2)(x), 2 * km.Laplace(2.0)(x @ second @ first) ** 2, depth=64)
    both = kernel + km.Gaussian().transformed(first)
    assert_close(both(x[:, :3]), (km.Laplace(2.0) + km.Gaussian())(x[:, :3] @ first), depth=64)
    assert repr(kernel) == "Laplace(bandwidth=2.0).transformed(tensor(3, 2))"
    assert_close(pickle.loads(pickle.dumps(kernel))(x[:, :3]), kernel(x[:, :3]))
    assert kernel.hyperparameters["transform"] is first
    scales = rows(3, seed=4)
    for one, other in ((scales, first), (first, rows(2, seed=5)), (scales, rows(3, seed=6))):
        moved = km.Laplace().transformed(other).transformed(one)
        assert_close(moved(x[:, :3]), km.Laplace()(by_hand(by_hand(x[:, :3], one), other)), depth=64)
    assert km.Gaussian().transformed(np.ones(3))(np.ones((2, 3))).shape == (2, 2)


def test_a_metric_from_its_root():
    z, x, half = rows(5, 3), rows(6, 3, seed=1), rows(3, 3, seed=2)
    metric = half @ half.mT
    w, v = torch.linalg.eigh(metric)
    gap = z[:, None] - x
    expected = torch.exp(-torch.einsum("mni,ij,mnj->mn", gap, metric, gap) / 2)
    assert_close(km.Gaussian().transformed(v * w.clamp(min=0).sqrt())(z, x), expected, depth=64)


BAD = [
    (lambda k, x: k(x, table=rows(4, 3)), errors.ShapeError, "table must have an entry for each of the 4 x 4 pairs"),
    (lambda k, x: k(x, table=rows(4, 4).to(torch.complex64)), errors.DtypeError, "table is complex64"),
    (lambda k, x: k(rows(2, 4, 3), table=rows(3, 4, 4)), errors.ShapeError, "table has shape"),
    (lambda k, x: (k + km.Gaussian())(x, table=rows(4, 4)), errors.ParameterError, "this one has 2"),
    (lambda k, x: k.matmul(x, x, rows(5), table=rows(4, 4)), errors.ShapeError, "for each of the 4 rows of y"),
    (lambda k, x: k.matmul(x, x, torch.tensor(1.0).double(), table=rows(4, 4)), errors.ShapeError, "4 rows of y"),
    (lambda k, x: k.matmul(x, x[:3], rows(3), table=rows(4, 3), diagonal=1.0), errors.ShapeError, "as many rows"),
    (lambda k, x: k.transformed(rows(2, 3, 3)), errors.ShapeError, "shape \\(k, r\\)"),
    (lambda k, x: k.transformed(2.0), errors.ShapeError, "not 2.0"),
    (lambda k, x: k.transformed(torch.ones(3, dtype=torch.int64)), errors.ParameterError, "floating point"),
    (lambda k, x: k.transformed(rows(4, 4))(x), errors.ShapeError, "its first axis is the columns of x"),
    (lambda k, x: k.transformed(rows(3)) + km.Gaussian(), errors.ParameterError, "different transforms"),
    (lambda k, x: k.transformed("full"), errors.ParameterError, "number, a list of numbers or an array"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "kind", "text"), BAD, ids=range(len(BAD)))
def test_bad_input(call, kind, text):
    with pytest.raises(kind, match=text):
        call(km.Laplace(), rows(4, 3))


def test_feature_learning_stores_one_matrix_a_round(monkeypatch):
    """The example's own form makes nothing as large as the kernel matrix but that."""
    path = Path(__file__).parents[2] / "examples" / "xrfm_covertype_style.py"
    example = runpy.run_path(str(path))
    x, y, held, _ = example["table"](250, "cpu")
    monkeypatch.setattr(blocks, "LARGEST", 4 * 200 * 150)
    monkeypatch.setattr(gradient, "LARGEST", 4 * 200 * 150)
    known: dict[int, torch.UntypedStorage] = {}
    makers = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            made = [value for value in torch.utils._pytree.tree_leaves(result) if isinstance(value, torch.Tensor)]
            large = [value.untyped_storage() for value in made if value.numel() >= 200 * 200]
            if any(storage.data_ptr() not in known for storage in large):
                makers.append(str(function))
            known.update({storage.data_ptr(): storage for storage in large})
            return result

    with Watch():
        example["ours"](x, y, held)
    assert makers == ["kernmantle.contract.default"] * (example["ROUNDS"] + 1)


TAKING_KERNELS = {
    "solve_kernel": lambda kernel, x, y: km.linalg.solve_kernel(kernel, x, y, ridge=0.1),
    "falkon": lambda kernel, x, y: km.linalg.falkon(kernel, x, y, 0.1, 3),
    "sketch_and_project": lambda kernel, x, y: km.linalg.sketch_and_project(kernel, x, y, 0.1),
    "pathwise_posterior": lambda kernel, x, y: km.linalg.pathwise_posterior(kernel, x, y, 0.1),
    "with_gradients": lambda kernel, x, _: km.with_gradients(kernel, x),
    "mmd": lambda kernel, x, _: km.stats.mmd(x, x, kernel),
}


@pytest.mark.parametrize("name", TAKING_KERNELS)
@pytest.mark.parametrize("kernel", ["rbf", km.Gaussian, lambda a, b: a * b, 3], ids=["name", "class", "lambda", "int"])
def test_what_takes_a_kernel_says_so(name, kernel):
    x = torch.randn(8, 2, dtype=torch.float64)
    with pytest.raises(errors.ParameterError, match=r"must be a km\.Kernel"):
        TAKING_KERNELS[name](kernel, x, x[:, 0].contiguous())


def test_what_cannot_be_plotted():
    pytest.importorskip("matplotlib")
    with pytest.raises(errors.ParameterError, match=r"'mine' must be a km\.Kernel, not 'rbf'"):
        km.plot.kernel({"mine": "rbf"})


@pytest.mark.parametrize("options", [{}, {"diagonal": 1.0}, {"table": torch.zeros(3, 3)}], ids=lambda o: str(list(o)))
def test_a_product_without_its_vector(options):
    with pytest.raises(errors.ShapeError, match="v must have a row for each row of y, it is None"):
        km.Gaussian(1.0).matmul(torch.randn(3, 2), None, None, **options)


@pytest.mark.parametrize(
    "calls", [3, ["km.cdist(x, y)"], lambda: None, [km.Gaussian(1.0)], [km.cdist]],
    ids=["int", "text", "function", "kernel", "without arguments"],
)  # fmt: skip
def test_what_cannot_be_precompiled(calls):
    with pytest.raises(errors.ParameterError, match="a list of functions without arguments"):
        km.precompile(calls)
