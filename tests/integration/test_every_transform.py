"""Every public function of float tensors under the transforms of torch.func, and backward through vmap.

A row is a function of tensors, all of which move. What raises by design is said in the row, and must raise: a clear
error, and never zeros. Expected values are the gradients of one sample by plain backward, which must agree with
differences of the function itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch
from torch.func import grad, hessian, jacfwd, jacrev, vmap

import kernmantle as km
from kernmantle.errors import GradientError
from kernmantle.ir.functions import FUNCTIONS
from kernmantle.pairwise import CONSTRUCTORS
from kernmantle.testing import assert_close

X, Y, V = (3, 2), (2, 2), (2, 1)
ROWS = (X, Y, V)
WAYS = ("grad(vmap)", "backward(vmap)", "vmap(grad)", "jacrev", "jacfwd", "hessian")
DEPTH = 256


@dataclass(frozen=True)
class Row:
    """A function, shapes of its tensors, and which transforms raise which error."""

    function: Callable[..., torch.Tensor]
    shapes: tuple[tuple[int, ...], ...]
    raises: dict[str, type[Exception]] = field(default_factory=dict)

    @property
    def count(self) -> int:
        return sum(torch.Size(shape).numel() for shape in self.shapes)

    def __call__(self, flat: torch.Tensor) -> torch.Tensor:
        parts = flat.split([torch.Size(shape).numel() for shape in self.shapes])
        found = self.function(
            *(part.unflatten(0, shape) if shape else part[0] for part, shape in zip(parts, self.shapes, strict=True))
        )
        return found.flatten()

    def total(self, flat: torch.Tensor) -> torch.Tensor:
        found = self(flat)
        return (found * torch.arange(1, len(found) + 1, dtype=flat.dtype).cos()).sin().sum()


def spd(a: torch.Tensor) -> torch.Tensor:
    return a @ a.mT + 3 * torch.eye(a.shape[-1], dtype=a.dtype)


LAPLACE = km.Laplace(1.3, p=1.3)
CONTRACTION = km.Contraction(
    "mk,nk->mn", lambda a, b, p: (a - b) ** 2 * p, reduce="logsumexp", epilogue=lambda s, h: km.tanh(s / h)
)
PATTERN = (1, 2, 2, 1)
COEFFICIENTS = (X, Y, V)


LAYERS = {
    "KSLinear": km.KSLinear(2, 2, patterns=[PATTERN], dtype=torch.float64),
    "LinearBatchLast": km.LinearBatchLast(2, 2, dtype=torch.float64),
    "LayerNormBatchLast": km.LayerNormBatchLast(3, dtype=torch.float64),
}
CONSTANT = torch.tensor([[3.0, 1.0], [1.0, 2.0]], dtype=torch.float64)
RAISES_ALWAYS = dict.fromkeys(WAYS, GradientError)


def layer_row(name: str, *shape: int) -> Row:
    """A layer as a function of what it is given and of its parameters."""
    layer = LAYERS[name]
    parameters = {own: tuple(value.shape) for own, value in layer.named_parameters()}
    return Row(
        lambda x, *given: torch.func.functional_call(layer, dict(zip(parameters, given, strict=True)), (x,)),
        (shape, *parameters.values()),
    )


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


FUNCTIONS_OF_TENSORS: dict[str, Row] = {
    "cdist": Row(km.cdist, (X, Y)),
    "cdist p": Row(lambda x, y, p: km.cdist(x, y, p=p.square() + 1.2), (X, Y, ())),
    "cdist w": Row(lambda x, y, w: km.cdist(x, y, p=3, w=w.square()), (X, Y, (2,))),
    "cdist alone": Row(lambda x: km.cdist(x, p=1.5).square(), (X,)),
    "pdist": Row(lambda x: km.pdist(x, p=1.7), (X,)),
    "contract": Row(
        lambda x, y, p: km.contract("mk,nk->mn", lambda a, b, p: km.exp(-p * (a - b) ** 2), x, y, p=p), (X, Y, ())
    ),
    "contract prod": Row(lambda x, y: km.contract("mk,nk->m", lambda a, b: a * b + 2, x, y, reduce="prod"), (X, Y)),
    "contract max": Row(lambda x, y: km.contract("mk,nk->mn", lambda a, b: a * b, x, y, reduce="max"), (X, Y)),
    "Contraction": Row(lambda x, y, p, h: CONTRACTION(x, y, p=p, h=h + 3), (X, Y, (), ())),
    "Scores": Row(
        lambda x, y, v: km.contract(
            "mn,nc->mc",
            lambda s, v: km.exp(-s) * v,
            km.Contraction("mk,nk->mn", lambda a, b: (a - b) ** 2).lazy(x, y),
            v,
        ),
        ROWS,
    ),
    **{
        name: Row(
            lambda x, y, name=name: km.contract("mn->m", lambda s: s, LAPLACE.lazy(x, y), reduce=getattr(km, name)(2))[
                0
            ],
            (X, Y),
        )
        for name in ("Smallest", "Largest")
    },
    "with_gradients": Row(lambda x, y: km.with_gradients(km.Gaussian(1.3), x, y), (X, Y)),
    "SpectralMixture": Row(
        lambda x, y, weights, means, scales: km.SpectralMixture(weights.exp(), means, scales.exp())(x, y),
        (X, Y, (2,), (2, 2), (2, 2)),
    ),
    "attention": Row(km.attention, (X, Y, (2, 3))),
    "attention score": Row(lambda q, k, v: km.attention(q, k, v, score=lambda a, b: -abs(a - b)), (X, Y, (2, 3))),
    "argkmin": Row(lambda x, y: km.argkmin(x, y, 2, p=1.3, return_values=True)[0], (X, Y)),
    "pairwise_distances": Row(lambda x, y: km.pairwise_distances(x, y, "minkowski", p=3), (X, Y)),
    "pairwise_kernels": Row(lambda x, y, g: km.pairwise_kernels(x, y, "rbf", gamma=g.square() + 1), (X, Y, ())),
    "standardise": Row(
        lambda x, y: torch.cat([value for value in km.standardise(x, y) if isinstance(value, torch.Tensor)]), (X, Y)
    ),
    "median_bandwidth": Row(km.median_bandwidth, (X,)),
    "Kernel": Row(
        lambda x, y, h: km.Kernel(lambda a, b, h: (a - b) ** 2 * h, lambda s: km.exp(-s), h=h)(x, y), (X, Y, ())
    ),
    **{name: Row(lambda x, y, name=name: getattr(km, name)()(x, y), ((2, 4), (2, 4))) for name in CONSTRUCTORS},
    "kron_matmul": Row(lambda x, f, g: km.kron_matmul(x, [f, g]), ((3, 4), (2, 2), (2, 3))),
    "kron_linear": Row(km.kron_linear, ((3, 4), (2, 2), (2, 2))),
    "KroneckerProduct": Row(lambda f, g, x: km.KroneckerProduct([f, g]) @ x, ((2, 2), (2, 2), (4, 1))),
    "kron_sparse_matmul": Row(lambda x, w: km.kron_sparse_matmul(x, w, PATTERN), ((3, 2), PATTERN)),
    "KSLinear": layer_row("KSLinear", 3, 2),
    "LinearBatchLast": layer_row("LinearBatchLast", 2, 3),
    "LayerNormBatchLast": layer_row("LayerNormBatchLast", 3, 2),
    "stats.mmd": Row(lambda x, y: km.stats.mmd(x, y, LAPLACE, permutations=0).statistic, (X, Y)),
    "stats.hsic": Row(
        lambda x, y: km.stats.hsic(x, y, LAPLACE, km.Gaussian(1.3), permutations=0).statistic, ((5, 2), (5, 1))
    ),
    "nearest_kron": Row(lambda a: km.nearest_kron(a, [(2, 2), (2, 2)])[1], ((4, 4),)),
}
METHODS: dict[str, Row] = {
    "__call__": Row(LAPLACE, (X, Y)),
    "__call__ diagonal": Row(lambda x, d: LAPLACE(x, diagonal=d), (X, ())),
    "matmul": Row(LAPLACE.matmul, ROWS),
    "matmul diagonal": Row(lambda x, v, d: LAPLACE.matmul(x, None, v, diagonal=d), (X, (3, 2), ())),
    "matmul bandwidth": Row(lambda x, y, v, h: km.Laplace(h + 2).matmul(x, y, v), (*ROWS, ())),
    "matmul table": Row(lambda x, y, v, t: LAPLACE.matmul(x, y, v, table=t.square()), (*ROWS, (3, 2))),
    "lazy": Row(
        lambda x, y, u: km.contract("mn,n->m", lambda s, u: s * u, LAPLACE.lazy(x, y), u, reduce="logsumexp"),
        (X, Y, (2,)),
    ),
    "operator": Row(lambda x, y, v: LAPLACE.operator(x, y) @ v, ROWS),
    **{
        how: Row(lambda x, y, how=how: getattr(LAPLACE, how)(x, y), (X, Y))
        for how in ("sum", "max", "min", "logsumexp")
    },
    **{
        how: Row(lambda x, y, how=how: getattr(LAPLACE, how)(x, y, 2, return_values=True)[0], (X, Y))
        for how in ("argkmax", "argkmin")
    },
    "gradient": Row(LAPLACE.gradient, COEFFICIENTS),
    "agop": Row(LAPLACE.agop, COEFFICIENTS),
    "agop centred": Row(lambda z, x, c: LAPLACE.agop(z, x, c, centred=True, average=True), COEFFICIENTS),
    "diagonal": Row(lambda x: km.Linear().diagonal(x), (X,)),
    "transformed": Row(lambda x, y, m: LAPLACE.transformed(m)(x, y), (X, Y, (2, 2))),
    "transposed": Row(LAPLACE.transposed(), (X, Y)),
}
SOLVERS: dict[str, Row] = {
    "solve_cholesky": Row(lambda a, b: km.linalg.solve_cholesky(spd(a), b).x, ((2, 2), (2, 1))),
    "solve_lu": Row(lambda a, b: km.linalg.solve_lu(spd(a), b).x, ((2, 2), (2, 1))),
    "cholesky_solve": Row(
        lambda b: km.linalg.cholesky_solve(km.linalg.cholesky_factor(CONSTANT), b).x, ((2, 1),), RAISES_ALWAYS
    ),
    "lu_solve": Row(lambda b: km.linalg.lu_solve(km.linalg.lu_factor(CONSTANT), b).x, ((2, 1),), RAISES_ALWAYS),
    "inverse_spd": Row(lambda a: km.linalg.inverse_spd(spd(a)).x, ((2, 2),)),
    "logdet_spd": Row(lambda a: km.linalg.logdet_spd(spd(a)), ((2, 2),)),
    "eigh": Row(lambda a: km.linalg.eigh(spd(a)).w, ((2, 2),)),
    "eigh of a pair": Row(lambda a, b: km.linalg.eigh(a + a.mT, spd(b)).w, ((2, 2), (2, 2))),
    "svd": Row(lambda a: km.linalg.svd(spd(a), 1).s, ((2, 2),), RAISES_ALWAYS),
    "cg": Row(lambda a, b: km.linalg.cg(spd(a), b, tolerance=1e-14).x, ((2, 2), (2, 1)), RAISES_ALWAYS),
    "solve_kernel": Row(lambda x, y: km.linalg.solve_kernel(LAPLACE, x, y, ridge=1.0).x, (X, (3, 1)), RAISES_ALWAYS),
}
ESTIMATES: dict[str, Row] = {
    "sketch_and_project": Row(
        lambda x, y: km.linalg.sketch_and_project(km.Gaussian(1.0), x, y, 1.0).x, (X, (3, 1)), RAISES_ALWAYS
    ),
    "falkon": Row(lambda x, y: km.linalg.falkon(km.Gaussian(1.0), x, y, 1.0, 2).x, (X, (3, 1)), RAISES_ALWAYS),
    "pathwise_posterior": Row(
        lambda x, y: km.linalg.pathwise_posterior(km.Gaussian(1.0), x, y[:, 0], 1.0).mean(x), (X, (3, 1)), RAISES_ALWAYS
    ),
    "logdet": Row(
        lambda a: km.linalg.logdet(spd(a), probes=2, steps=2, generator=seeded()).value, ((2, 2),), RAISES_ALWAYS
    ),
    "trace": Row(lambda a: km.linalg.trace(spd(a), probes=2, generator=seeded()).value, ((2, 2),), RAISES_ALWAYS),
    "nystrom": Row(lambda a: km.linalg.nystrom(spd(a), 1, 0.1, generator=seeded()).values, ((2, 2),), RAISES_ALWAYS),
    "pivoted_cholesky": Row(lambda a: km.linalg.pivoted_cholesky(spd(a), 1, 0.1).values, ((2, 2),), RAISES_ALWAYS),
}
TABLE = {**FUNCTIONS_OF_TENSORS, **METHODS, **SOLVERS}


def draw(row: Row, samples: int) -> torch.Tensor:
    """Numbers no two of which are near, so that no difference is near a kink."""
    generator = torch.Generator().manual_seed(7)
    places = torch.stack([torch.randperm(row.count, generator=generator) for _ in range(samples)]).double()
    return (places - row.count / 2 + 0.3) / max(row.count, 8) * 2.5


def plain_gradient(row: Row, flat: torch.Tensor) -> torch.Tensor:
    flat = flat.clone().requires_grad_()
    return torch.autograd.grad(row.total(flat), flat)[0]


def transformed(way: str, row: Row, flat: torch.Tensor) -> torch.Tensor:
    """What a transform gives at several samples."""
    if way == "grad(vmap)":
        return grad(lambda value: vmap(row.total)(value).sum())(flat)
    if way == "backward(vmap)":
        moving = flat.clone().requires_grad_()
        vmap(row.total)(moving).sum().backward()
        assert moving.grad is not None
        return moving.grad
    if way == "vmap(grad)":
        return vmap(grad(row.total))(flat)
    if way == "jacrev":
        return torch.stack([jacrev(row)(value) for value in flat])
    if way == "jacfwd":
        return torch.stack([jacfwd(row)(value) for value in flat])
    return torch.stack([hessian(row.total)(value) for value in flat])


def expected(way: str, row: Row, flat: torch.Tensor) -> torch.Tensor:
    if way.startswith("jac"):
        return torch.stack([torch.autograd.functional.jacobian(row, value) for value in flat])
    if way == "hessian":
        return torch.stack([torch.autograd.functional.hessian(row.total, value) for value in flat])
    return torch.stack([plain_gradient(row, value) for value in flat])


@pytest.mark.parametrize("name", TABLE)
def test_plain_gradients_agree_with_differences(name):
    row = TABLE[name]
    (flat,) = draw(row, 1)
    with km.config(backend="reference"):
        assert torch.autograd.gradcheck(row.total, flat.requires_grad_())


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", {**TABLE, **ESTIMATES})
def test_a_transform_gives_the_gradient_or_says_that_it_cannot(name, way):
    row = {**TABLE, **ESTIMATES}[name]
    flat = draw(row, 2 if "vmap" in way else 1)  # the others are given one sample after the other
    with km.config(backend="reference"):
        if way in row.raises:
            with pytest.raises(row.raises[way]):
                transformed(way, row, flat)
            return
        assert_close(transformed(way, row, flat), expected(way, row, flat), depth=DEPTH)


NO_FLOAT_TENSORS = {
    "Estimate", "Fold", "Semiring", "__version__", "clear_cache", "config", "errors", "estimate", "get_config",
    "set_config", "precompile", "tune", "KronWorkspace", "kron_workspace", "KSPattern", "choose_patterns",
    "load_structured", "replace_linears",
}  # fmt: skip
NOT_OF_ROWS = {
    "form",
    "get_params",
    "hyperparameters",
    "info",
    "is_similarity",
    "is_stationary",
    "is_symmetric",
    "made",
    "of_transformed",
    "prepared",
    "set_params",
    "transform",
}
NOT_SOLVERS = {
    "CentreSolution", "CholeskyFactor", "Estimate", "Iterations", "KernelSolution", "LUFactor", "LowRank",
    "MaskedKronecker", "Posterior", "SVD", "Solution", "Spectrum", "Workspace", "workspace", "eigh_multi_gpu",
}  # fmt: skip
"""Results of solvers, what counts bytes, and what starts processes of its own."""


def test_every_public_function_has_a_row():
    rows = {name.partition(" ")[0] for name in FUNCTIONS_OF_TENSORS}
    assert set(km.__all__) - set(FUNCTIONS) - NO_FLOAT_TENSORS - rows == set()
    methods = {name for name in dir(km.Kernel) if not name.startswith("_")} - NOT_OF_ROWS
    assert methods - {name.partition(" ")[0] for name in METHODS} == set()
    solvers = {"cholesky_factor": "cholesky_solve", "lu_factor": "lu_solve"}
    assert {solvers.get(name, name) for name in km.linalg.__all__} - NOT_SOLVERS - {*SOLVERS, *ESTIMATES} == set()
