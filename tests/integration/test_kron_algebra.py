"""KroneckerProduct, sums of them, the nearest product and LoKr layers against dense linear algebra in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import kernmantle as km
from kernmantle.errors import LinearAlgebraError, ParameterError, ShapeError
from kernmantle.kron import KroneckerProduct, SumOfProducts, kron_linear, nearest_kron
from kernmantle.testing import assert_close

DEPTH = 1000


def _random(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _definite(n, *batch, seed=0):
    a = _random(*batch, n, n, seed=seed)
    return a @ a.mT / n + torch.eye(n, dtype=torch.float64)


SQUARE = [
    [_definite(3), _definite(4, seed=1)],
    [_definite(2), 3, _definite(2, seed=1)],
    [_definite(2, 5), _definite(3, seed=1)],
    [_definite(4)],
]


@pytest.mark.parametrize("scale", [1, 0.5, torch.tensor(2.0, dtype=torch.float64)])
@pytest.mark.parametrize("factors", SQUARE)
def test_products_and_decompositions(factors, scale):
    k = KroneckerProduct(factors, scale)
    dense = k.to_dense()
    b = _random(dense.shape[-1], 3, seed=7)
    assert dense.shape == k.shape
    assert_close(k @ b, dense @ b, depth=DEPTH)
    assert_close(k @ b[:, 0], dense @ b[:, 0], depth=DEPTH)
    assert_close(b.mT @ k, b.mT @ dense, depth=DEPTH)
    assert_close(k.T.to_dense(), dense.mT)
    assert_close(k.diagonal(), dense.diagonal(dim1=-2, dim2=-1))
    assert_close(k.trace(), dense.diagonal(dim1=-2, dim2=-1).sum(-1), depth=DEPTH)
    assert_close(k.solve(b), torch.linalg.solve(dense, b.expand(*dense.shape[:-2], *b.shape)), depth=DEPTH)
    assert_close(k.inverse().to_dense(), torch.linalg.inv(dense), depth=DEPTH)
    assert_close(k.pinv().to_dense(), torch.linalg.inv(dense), depth=DEPTH)
    assert_close(k.logdet(), torch.linalg.slogdet(dense)[1], depth=DEPTH)
    assert_close(k.cholesky().to_dense(), torch.linalg.cholesky(dense), depth=DEPTH)
    w, v = k.eigh()
    assert_close((v.to_dense() * w.unsqueeze(-2)) @ v.to_dense().mT, dense, depth=DEPTH)
    assert_close(k.eigvalsh().sort().values, torch.linalg.eigvalsh(dense), depth=DEPTH)
    u, s, vh = (k * -1).svd()
    assert_close((u.to_dense() * s.unsqueeze(-2)) @ vh.to_dense(), -dense, depth=DEPTH)
    assert bool((s >= 0).all())


def test_rectangular_products():
    k = KroneckerProduct([_random(2, 3), _random(4, 3, seed=1), 2])
    dense = k.to_dense()
    assert_close(k.diagonal(), dense.diagonal())
    assert_close(k.trace(), dense.diagonal().sum(), depth=16)
    assert_close(k.pinv().to_dense(), torch.linalg.pinv(dense), depth=DEPTH)
    u, s, vh = k.svd()
    assert_close((u.to_dense() * s) @ vh.to_dense(), dense, depth=DEPTH)
    assert_close((k @ k.T).to_dense(), dense @ dense.mT, depth=DEPTH)
    with pytest.raises(ShapeError, match="inverse needs square factors"):
        k.solve(_random(16))
    with pytest.raises(ShapeError, match="no Kronecker form"):
        k @ KroneckerProduct([18])


def test_determinants_keep_their_sign():
    flip = torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=torch.float64)
    sign, total = KroneckerProduct([flip, _definite(3)]).slogdet()
    expected = torch.linalg.slogdet(torch.kron(flip, _definite(3)))
    assert_close(sign, expected[0])
    assert_close(total, expected[1], depth=DEPTH)
    assert KroneckerProduct([flip, _definite(3)]).logdet().isnan()


def _sums():
    a, b = (
        KroneckerProduct([_definite(3), _definite(4, seed=1)]),
        KroneckerProduct([_definite(3, seed=2), _definite(4, seed=3)]),
    )
    shift = torch.tensor(0.3, dtype=torch.float64)
    return {
        "two": a + b,
        "shift": a + 0.3 * KroneckerProduct([12]),
        "tensor shift": a + shift * KroneckerProduct([3, 4]),
        "shift first": 0.3 * KroneckerProduct([12]) + a,
        "parts": a + KroneckerProduct([_definite(3, seed=4), 2, 2]),
        "other sizes": a + KroneckerProduct([_definite(6, seed=4), _definite(2, seed=5)]),
        "three": a + b + 0.5 * KroneckerProduct([12]),
        "batch": KroneckerProduct([_definite(3, 2), _definite(4)]) + b,
        "one by one": KroneckerProduct([_definite(12), _definite(1, seed=1)]) + 0.3 * KroneckerProduct([12]),
    }


@pytest.mark.parametrize("name", _sums())
def test_sums(name):
    operator = _sums()[name]
    dense, b = operator.to_dense(), _random(12, 5, seed=9)
    assert isinstance(operator, SumOfProducts)
    assert_close(operator @ b, dense @ b, depth=DEPTH)
    assert_close(b.mT @ operator, b.mT @ dense, depth=DEPTH)
    assert_close(operator.diagonal(), dense.diagonal(dim1=-2, dim2=-1))
    assert_close(operator.trace(), dense.diagonal(dim1=-2, dim2=-1).sum(-1), depth=DEPTH)
    assert_close((-operator).T.to_dense(), -dense.mT)
    x = operator.solve(b, tolerance=1e-13)
    assert_close(x, torch.linalg.solve(dense, b.expand_as(x)), depth=DEPTH)
    if name in ("other sizes", "three"):
        with pytest.raises(ParameterError, match="two terms"):
            operator.logdet()
    else:
        assert_close(operator.logdet(), torch.linalg.slogdet(dense)[1], depth=DEPTH)


def _singular(n, seed=0):
    half = _random(n, n - 1, seed=seed)
    return half @ half.mT


@pytest.mark.parametrize("s", [float, lambda value: torch.tensor(value).double()], ids=["number", "tensor"])
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("name", ["identity", "singular", "less", "less of one", "negative", "nothing"])
def test_sums_with_what_has_no_cholesky_factor(name, first, s):
    """Singular terms, and negative scales, on either side of a definite one."""
    definite = [_definite(3), _definite(4, seed=1)]
    singular, identity = KroneckerProduct([_singular(3), _singular(4, seed=1)]), KroneckerProduct([12])
    terms = {
        "identity": (singular, identity * s(0.5)),
        "singular": (singular, KroneckerProduct(definite)),
        "less": (KroneckerProduct(definite), identity * s(-0.1)),
        "less of one": (KroneckerProduct(definite), KroneckerProduct(definite) * s(-0.5)),
        "negative": (KroneckerProduct(definite) * s(-1.0), identity * s(-0.5)),
        "nothing": (KroneckerProduct(definite), identity * s(0.0)),
    }[name]
    operator = terms[first] + terms[1 - first]
    dense, b = operator.to_dense(), _random(12, 2, seed=9)
    assert_close(operator.solve(b), torch.linalg.solve(dense, b), depth=DEPTH)
    if name != "negative":
        assert_close(operator.logdet(), torch.linalg.slogdet(dense)[1], depth=DEPTH)


def test_a_sum_of_singular_products_is_not_diagonalised():
    """Definite as a sum, but no factor of either term has an inverse."""
    a, b = ([torch.diag(torch.tensor(v).double()) for v in pair] for pair in (((1, 0), (1, 1)), ((0, 1), (1, 1))))
    operator = KroneckerProduct(a) + KroneckerProduct(b)
    assert_close(operator.solve(torch.ones(4).double()), torch.ones(4).double(), depth=DEPTH)
    with pytest.raises(ParameterError, match="definite"):
        operator.logdet()


def test_a_sum_that_is_not_definite_is_refused():
    operator = KroneckerProduct([_definite(3), _definite(4)]) + KroneckerProduct([-_definite(6), _definite(2)])
    with pytest.raises(LinearAlgebraError, match="conjugate gradients"):
        operator.solve(_random(12), max_iterations=3)
    with pytest.raises(ShapeError, match="cannot be added"):
        KroneckerProduct([2]) + KroneckerProduct([3])


@pytest.mark.parametrize("kind", ["solve", "logdet", "sum solve", "sum logdet", "conjugate gradients", "eigvalsh"])
def test_derivatives(kind):
    def function(f, g, s, b):
        f, g = f @ f.mT + torch.eye(2).double(), g @ g.mT + torch.eye(2).double()
        k = KroneckerProduct([f, g], s)
        shifted = k + 0.5 * KroneckerProduct([4])
        return {
            "solve": lambda: k.solve(b),
            "logdet": k.logdet,
            "eigvalsh": lambda: k.eigvalsh().sin().sum(),
            "sum solve": lambda: shifted.solve(b),
            "sum logdet": shifted.logdet,
            "conjugate gradients": lambda: (shifted + KroneckerProduct([g, f])).solve(b, tolerance=1e-13),
        }[kind]()

    arguments = (_random(2, 2), _random(2, 2, seed=1), torch.tensor(1.3).double(), _random(4, 1, seed=2))
    arguments = tuple(argument.requires_grad_() for argument in arguments)
    assert torch.autograd.gradcheck(function, arguments)
    if kind != "eigvalsh":
        assert torch.autograd.gradgradcheck(function, arguments)


def test_identities_alone_and_repr():
    k = KroneckerProduct([2, 3], 0.5)
    assert torch.equal(k @ torch.ones(6), torch.full((6,), 0.5))
    text = repr(KroneckerProduct([torch.ones(2, 3), 4]))
    assert text.startswith("KroneckerProduct(2x3 ⊗ 4, float32 on cpu")


@pytest.mark.parametrize("shapes", [[(2, 3), (4, 2)], [(2, 2), (3, 2), (2, 3)]])
def test_nearest_finds_a_product(shapes):
    factors = [_random(*shape, seed=place) for place, shape in enumerate(shapes)]
    dense = KroneckerProduct(factors).to_dense()
    nearest, error = nearest_kron(dense, shapes)
    assert error < 1e-10
    assert_close(nearest.to_dense(), dense, depth=DEPTH)


@pytest.mark.parametrize("terms", [1, 2, 3])
def test_nearest_is_the_best_of_its_rank(terms):
    a = _random(6, 6)
    nearest, error = nearest_kron(a, [(2, 3), (3, 2)], terms)
    arranged = a.reshape(2, 3, 3, 2).permute(0, 2, 1, 3).reshape(6, 6)
    left_out = torch.linalg.svdvals(arranged)[terms:].norm() / a.norm()
    assert_close(error, left_out, depth=DEPTH)
    assert_close((nearest.to_dense() - a).norm() / a.norm(), error, depth=DEPTH)


def test_nearest_of_three_factors_improves_with_terms_and_keeps_its_word():
    a = _random(8, 8)
    errors = []
    for terms in (1, 2, 4):
        nearest, error = nearest_kron(a, [(2, 2)] * 3, terms)
        assert_close((nearest.to_dense() - a).norm() / a.norm(), error, depth=DEPTH)
        errors.append(float(error))
    assert errors == sorted(errors, reverse=True)
    with pytest.raises(ShapeError, match="4x4"):
        nearest_kron(a, [(2, 2), (2, 2)])
    with pytest.raises(ParameterError, match="terms"):
        nearest_kron(a, [(2, 2)] * 3, 0)


def test_linear_with_a_base_and_low_rank_factors():
    layer = torch.nn.Linear(12, 10).double()
    x, w1, u, v = _random(2, 5, 12), _random(2, 3, seed=1), _random(5, 2, seed=2), _random(2, 4, seed=3)
    expected = layer(x) + 0.25 * x @ torch.kron(w1, u @ v).mT
    assert_close(kron_linear(x, w1, (u, v), 0.25, layer), expected, depth=DEPTH)
    assert_close(kron_linear(x, w1, (u, v), 0.25, layer(x)), expected, depth=DEPTH)
    assert_close(kron_linear(x, w1, u @ v), x @ torch.kron(w1, u @ v).mT, depth=DEPTH)


@pytest.mark.parametrize("rows", [(3,), (), (2, 1), (0,)])
@pytest.mark.parametrize("scale", [torch.tensor(0.5), torch.tensor([0.5]), torch.tensor([0.5], requires_grad=True)])
def test_a_scale_of_one_entry_leaves_the_shape(rows, scale):
    x, w1, w2 = torch.randn(*rows, 4), torch.randn(3, 2), torch.randn(5, 2)
    expected = 0.5 * x @ torch.kron(w1, w2).mT
    assert_close(kron_linear(x, w1, w2, scale), expected, depth=DEPTH)
    assert_close(kron_linear(x, w1, w2, scale, expected), 2 * expected, depth=DEPTH)


def test_a_scale_of_several_entries_is_an_error():
    with pytest.raises(km.errors.ShapeError, match="scale has shape"):
        kron_linear(torch.randn(3, 4), torch.randn(3, 2), torch.randn(5, 2), torch.ones(3))


@pytest.mark.parametrize("lies", ["in one piece", "swapped", "in columns", "apart", "once for all", "of five axes"])
def test_rows_that_lie_anyhow(lies):
    x = {
        "in one piece": lambda: _random(2, 3, 8), "swapped": lambda: _random(3, 2, 8).transpose(0, 1),
        "in columns": lambda: _random(2, 8, 3).mT, "apart": lambda: _random(2, 3, 11)[..., :8],
        "once for all": lambda: _random(3, 8).expand(2, 3, 8),
        "of five axes": lambda: _random(2, 3, 4, 2, 8).permute(3, 1, 0, 2, 4),
    }[lies]().requires_grad_()  # fmt: skip
    w1, w2, scale = (_random(*shape, seed=seed).requires_grad_() for seed, shape in enumerate([(3, 2), (5, 4), ()], 1))
    base = _random(*x.shape[:-1], 15, seed=4).requires_grad_()
    found, expected = kron_linear(x, w1, w2, scale, base), base + scale * x @ torch.kron(w1, w2).mT
    assert_close(found, expected, depth=DEPTH)
    leaves, cotangent = [x, w1, w2, scale, base], _random(*found.shape, seed=5)
    both = (torch.autograd.grad(each, leaves, cotangent) for each in (found, expected))
    for one, other in zip(*both, strict=True):
        assert_close(one, other, depth=found.numel())


def test_linear_beside_peft():
    lokr = pytest.importorskip("peft.tuners.lokr")
    peft = pytest.importorskip("peft")
    model = torch.nn.Sequential(torch.nn.Linear(24, 30)).double()
    settings = lokr.LoKrConfig(r=2, alpha=4, target_modules=["0"], init_weights=False, decompose_both=True)
    wrapped = peft.get_peft_model(model, settings).double()
    layer = wrapped.base_model.model[0]
    x = _random(7, 24)
    name = "default"
    w1 = (layer.lokr_w1_a[name], layer.lokr_w1_b[name]) if name in layer.lokr_w1_a else layer.lokr_w1[name]
    w2 = (layer.lokr_w2_a[name], layer.lokr_w2_b[name]) if name in layer.lokr_w2_a else layer.lokr_w2[name]
    found = kron_linear(x, w1, w2, layer.scaling[name], layer.base_layer)
    assert_close(found, wrapped(x), depth=DEPTH)


def test_public_names():
    assert km.KroneckerProduct is KroneckerProduct
    assert km.nearest_kron is nearest_kron
    assert km.kron_linear is kron_linear


@pytest.mark.parametrize("rows", [(), (0,), (2, 0, 3)])
def test_kron_linear_of_one_row_or_none(rows):
    x, w1, w2 = torch.randn(*rows, 4), torch.randn(3, 2), torch.randn(5, 2)
    expected = x @ torch.kron(w1, w2).mT
    assert_close(kron_linear(x, w1, w2), expected, depth=DEPTH)
    assert_close(kron_linear(x, w1, w2, base=expected), 2 * expected, depth=DEPTH)


def test_a_product_is_checked_when_it_is_made():
    square = torch.eye(2)
    for error, match, factors, options in (
        (
            "ShapeError",
            r"\(2,\), \(3,\), \(\) of the factors and scale",
            [square.expand(2, 2, 2), square.expand(3, 2, 2)],
            {},
        ),
        ("ShapeError", r"\(2,\), \(3,\)", [square.expand(2, 2, 2)], {"scale": torch.ones(3)}),
        ("DtypeError", r"factors\[0\] is float32 but factors\[2\] is float64", [square, 3, square.double()], {}),
        ("DeviceError", r"factors\[1\] is on meta", [square, square.to("meta")], {}),
    ):
        with pytest.raises(getattr(km.errors, error), match=match):
            KroneckerProduct(factors, **options)
    for scale in (-2.0, 0, 1j):
        with pytest.raises(km.errors.ParameterError, match="cholesky needs a positive scale"):
            KroneckerProduct([square, 3], scale).cholesky()


def test_either_side_under_torch_compile():
    """A square operator and a square array: a side that was confused would not be seen by the shapes."""
    torch.compiler.reset()
    factors, x = [torch.randn(2, 2), torch.randn(3, 3)], torch.randn(6, 6)
    product, dense = KroneckerProduct(factors, 0.5), 0.5 * torch.kron(*factors)
    for own, expected in ((product, dense @ x), (product + KroneckerProduct([6]), dense @ x + x)):
        whole = torch.compile(own.matmul, backend="aot_eager", fullgraph=True)
        assert_close(whole(x), expected, depth=DEPTH)
    assert_close(product.matmul(x, beta=2, y=x), dense @ x + 2 * x, depth=DEPTH)
    with pytest.raises(TypeError, match=r"KroneckerProduct\.matmul\(\) got an unexpected keyword argument 'alpha'"):
        product.matmul(x, alpha=2)
    for call, expected in (
        (lambda x: product @ x, dense @ x),
        (lambda x: x @ product, x @ dense),
        (lambda x: (x[0, 0] * product) @ x, x[0, 0] * dense @ x),
        (lambda x: KroneckerProduct(factors) @ x, 2 * dense @ x),
        (lambda x: (product + 0.5 * KroneckerProduct([6])) @ x, dense @ x + 0.5 * x),
    ):
        for run in (call, torch.compile(call, backend="aot_eager")):
            assert_close(run(x), expected, depth=DEPTH)


def test_batches_of_terms_broadcast():
    square = torch.eye(3).expand(2, 3, 3)
    with pytest.raises(km.errors.ShapeError, match=r"batch axes \(2,\), \(4,\) do not broadcast"):
        KroneckerProduct([square]) + KroneckerProduct([torch.eye(3).expand(4, 3, 3)])


@pytest.mark.parametrize("batch", [(), (3,)], ids=str)
def test_singular_products_raise_our_errors(batch):
    singular = torch.ones(*batch, 3, 3, dtype=torch.float64)
    regular = torch.eye(2, dtype=torch.float64) + 1
    operator = km.KroneckerProduct([regular, singular])
    for call in (operator.inverse, lambda: operator.solve(torch.ones(6, 1, dtype=torch.float64))):
        with pytest.raises(LinearAlgebraError, match=r"factor of shape .*3, 3\) is singular.* pinv\(\)"):
            call()
    with pytest.raises(LinearAlgebraError, match="is not positive definite"):
        km.KroneckerProduct([regular, -singular]).cholesky()
    with pytest.raises(LinearAlgebraError, match="scale is 0"):
        (0 * km.KroneckerProduct([regular])).inverse()
    wanted = torch.linalg.pinv(operator.to_dense())
    assert_close(operator.pinv().to_dense(), wanted, depth=100)
    zero = torch.tensor([0.0, 2.0], dtype=torch.float64)
    for scale in (0, zero):
        own = km.KroneckerProduct([regular], scale)
        assert_close(own.pinv().to_dense(), torch.linalg.pinv(own.to_dense()), depth=100)


def _hermitian(n, seed=0):
    a = torch.complex(_random(n, n, seed=seed), _random(n, n, seed=seed + 50))
    return a @ a.mH / n + torch.eye(n)


@pytest.mark.filterwarnings("ignore:complex Kronecker products")
def test_sums_of_hermitian_products_are_solved():
    """By decompositions of two, and by conjugate gradients, whose inner products conjugate."""
    terms = [KroneckerProduct([_hermitian(3, seed), _hermitian(2, seed + 9)]) for seed in range(3)]
    b = torch.complex(_random(6, 2), _random(6, 2, seed=1))
    for operator in (terms[0] + terms[1], terms[0] + terms[1] + terms[2]):
        dense = operator.to_dense()
        wanted = torch.linalg.solve(dense, b)
        assert_close(torch.view_as_real(operator.solve(b, tolerance=1e-13)), torch.view_as_real(wanted), depth=DEPTH)
    two = terms[0] + terms[1]
    assert_close(two.logdet(), torch.linalg.slogdet(two.to_dense())[1], depth=DEPTH)


def test_products_of_hermitian_factors():
    operator = KroneckerProduct([_hermitian(3), 2], 1.5)
    dense = operator.to_dense()
    assert_close(operator.eigvalsh().sort().values, torch.linalg.eigvalsh(dense), depth=DEPTH)
    assert_close(operator.eigh()[0].sort().values, torch.linalg.eigvalsh(dense), depth=DEPTH)
    turned = KroneckerProduct([1j * _hermitian(3), 2])
    wanted = torch.logdet(turned.to_dense())
    assert_close(turned.logdet().real, wanted.real, depth=DEPTH)
    assert_close(turned.logdet().exp().imag, wanted.exp().imag, depth=DEPTH)


@pytest.mark.parametrize("dtype", [torch.int64, torch.float16], ids=str)
def test_types_without_decompositions_are_refused(dtype):
    operator = KroneckerProduct([torch.eye(2, dtype=dtype), 3])
    for name in ("inverse", "pinv", "slogdet", "logdet", "cholesky", "eigh", "eigvalsh", "svd"):
        with pytest.raises(km.errors.DtypeError, match=str(dtype)[6:]):
            getattr(operator, name)()
    for call in (lambda sum_: sum_.solve(torch.ones(6, dtype=dtype)), SumOfProducts.logdet):
        with pytest.raises(km.errors.DtypeError, match=str(dtype)[6:]):
            call(operator + KroneckerProduct([6]))
    with pytest.raises(LinearAlgebraError, match="finite"):
        KroneckerProduct([torch.full((2, 2), torch.nan)]).svd()


def test_right_sides_are_arrays_that_fit():
    product = KroneckerProduct([torch.eye(2, dtype=torch.float64) * 2, 3])
    for operator in (product, product + KroneckerProduct([6]), product + product + product):
        found = operator.solve(np.ones(6))
        assert isinstance(found, np.ndarray)
        np.testing.assert_allclose(operator @ found, np.ones(6))
        for b, error, match in (
            (torch.ones(5).double(), ShapeError, r"b has shape \(5,\), the operator 6 rows"),
            (torch.tensor(1.0).double(), ShapeError, r"b has shape \(\)"),
            (torch.ones(6), km.errors.DtypeError, "b is float32 but the operator is float64"),
        ):
            with pytest.raises(error, match=match):
                operator.solve(b)


def test_terms_of_other_types_are_refused():
    square = torch.eye(2)
    with pytest.raises(km.errors.DtypeError, match="term 0 is float32 but term 1 is float64"):
        KroneckerProduct([square]) + KroneckerProduct([square.double()])
    with pytest.raises(km.errors.DeviceError, match="term 1 on meta"):
        KroneckerProduct([square]) + KroneckerProduct([square.to("meta")])
    for terms in ([], KroneckerProduct([square]), [square]):
        with pytest.raises(ParameterError, match="list of Kronecker products"):
            SumOfProducts(terms)


def test_numbers_of_numpy_scale():
    square = torch.eye(2) + 1
    for operator in (KroneckerProduct([square]), KroneckerProduct([square]) + KroneckerProduct([2])):
        for found in (operator * np.float32(2), np.float32(2) * operator, operator / np.float32(0.5), operator / 0.5):
            assert torch.equal(found.to_dense(), 2 * operator.to_dense())


def test_what_is_made_of_one_factor_has_memory_of_its_own():
    square = torch.eye(2)
    operator = KroneckerProduct([square])
    for found in (operator.to_dense(), operator.diagonal()):
        found.zero_()
    assert torch.equal(square, torch.eye(2))


def test_the_trace_of_integers_is_not_cut():
    operator = KroneckerProduct([torch.tensor([[1, 2], [3, 4]]), 3], 0.5)
    assert operator.trace() == operator.to_dense().trace() == 7.5


@pytest.mark.parametrize("size", [1e-30, 1e30])
@pytest.mark.parametrize("shapes", [[(2, 2), (4, 4)], [(2, 2)] * 3])
def test_nearest_of_small_and_large_entries(size, shapes):
    """Squares of these entries leave the range of float32."""
    a = _random(8, 8)
    wanted, error = nearest_kron(a, shapes)
    nearest, found = nearest_kron((a * size).float(), shapes)
    assert_close(found, error, depth=DEPTH)
    assert_close(nearest.to_dense().double() / size, wanted.to_dense(), dtype=torch.float32, depth=DEPTH)


@pytest.mark.parametrize("shapes", [[(2.5, 2), (2, 2)], [(-2, 2), (-2, 2)], []])
def test_nearest_takes_pairs_of_integers(shapes):
    with pytest.raises(ShapeError, match="shapes must be the"):
        nearest_kron(_random(4, 4), shapes)


@pytest.mark.parametrize("terms", [2, 3])
def test_sums_are_solved_in_every_transform(terms):
    """Forward mode, gradients of torch.func and vmap, at factors whose eigenvalues repeat as well."""

    def found(f, b):
        operator = KroneckerProduct([f, 2], 1.5) + KroneckerProduct([6]) * f[0, 0]
        return (operator if terms == 2 else operator + KroneckerProduct([6])).solve(b, tolerance=1e-14)

    def wanted(f, b):
        dense = 1.5 * torch.kron(f, torch.eye(2, dtype=f.dtype)) + f[0, 0] * torch.eye(6, dtype=f.dtype)
        return torch.linalg.solve(dense if terms == 2 else dense + torch.eye(6, dtype=f.dtype), b)

    b, move = _random(6, seed=3), _definite(3, seed=4)
    transforms = (
        lambda own, f: torch.func.jvp(own, (f, b), (move, b))[1],
        lambda own, f: torch.func.jvp(lambda b: own(f, b), (b,), (b,))[1],
        lambda own, f: torch.func.grad(lambda f, b: own((f + f.mT) / 2, b).sin().sum())(f, b),
        lambda own, f: torch.func.hessian(lambda b: own(f, b).sin().sum())(b),
        lambda own, f: torch.func.hessian(lambda s: own(f * s, b).sin().sum())(torch.tensor(1.3).double()),
        lambda own, f: torch.func.vmap(torch.func.grad(lambda f, b: own(f, b).sum()), (0, None))(f.expand(2, 3, 3), b),
        lambda own, f: torch.func.vmap(own, (None, 1), 1)(f, torch.stack([b, 2 * b], 1)),
    )
    for f in (_definite(3), torch.eye(3, dtype=torch.float64)):
        for transform in transforms:
            assert_close(transform(found, f), transform(wanted, f), depth=DEPTH)
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(f.clone().requires_grad_(), move)
            tangent = torch.autograd.forward_ad.unpack_dual(found(dual, b)).tangent
        assert_close(tangent, torch.func.jvp(wanted, (f, b), (move, 0 * b))[1], depth=DEPTH)


def test_vmap_over_terms_without_identities():
    f = _definite(3, 4)
    other = KroneckerProduct([_definite(3, seed=5), _definite(2, seed=6)])
    found = torch.func.vmap(lambda f: (KroneckerProduct([f, 2]) + other).solve(torch.ones(6).double()))(f)
    assert_close(found, (KroneckerProduct([f, 2]) + other).solve(torch.ones(6).double()), depth=DEPTH)
    with pytest.raises(km.errors.GradientError, match="vmap hides"):
        torch.func.vmap(lambda f: (KroneckerProduct([f, 2]) + other).logdet())(f)
