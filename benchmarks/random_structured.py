"""Random Kronecker-sparse and Kronecker products with a fixed seed, and the algorithms that compute them."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch.nn import functional

from kernmantle.kron import kron_matmul
from kernmantle.kronsparse import KSLinear, kron_sparse_matmul
from kernmantle.structured.mode_product.cost import TRANSPOSED
from kernmantle.structured.mode_product.execute import product_by
from kernmantle.structured.mode_product.operands import Operands
from kernmantle.structured.mode_product.pack import PackedWeights
from kernmantle.structured.mode_product.torch_op import Options, weight_gradient
from kernmantle.structured.mode_product.torch_products import block_matrices, by_bmm, by_copies, by_dense, dense

from .case import DTYPES
from .kron import FASTKRON, shuffle
from .run import OURS

SEED, SPARSE, KRON = 20261127, 300, 200
UNPACKED = "weights as given"
Calls = dict[str, Callable[[], Any]]
"""Contestants by their names."""
Make = Callable[[Callable[[], torch.Tensor]], torch.Tensor]
"""Returns the product of a call, in whatever way it makes it."""
MOST_ROWS = 65536
# By device: numbers of x and the result together, multiplications, entries of a dense matrix.
_MOST: Mapping[str, tuple[int, float, int]] = {"cuda": (2**28, 2e11, 2**24), "cpu": (2**21, 4e8, 2**20)}
_TYPES = {"cuda": ("f32", "bf16", "f16"), "cpu": ("f32", "f64", "bf16", "f16")}
_MOST_WEIGHTS, _MOST_WIDTH = 2**25, 2**20

# The rows of the targets "structured, off the table": patterns at 25088 rows, and rows with factors.
NAMED_SPARSE = (
    (3, 80, 112, 5), (7, 60, 60, 7), (1, 96, 384, 12), (2, 33, 65, 9), (16, 16, 16, 16), (1, 1024, 256, 1),
)  # fmt: skip
NAMED_ROWS = 25088
NAMED_KRON = (
    (500, (12,) * 4), (300, (48,) * 3), (2000, (10,) * 4), (200, (100,) * 2), (64, (256,) * 2), (256, (24, 32, 40)),
)  # fmt: skip


@dataclass(frozen=True)
class SparseCase:
    """A Kronecker-sparse product of ``rows`` rows, features or (``last``) the batch together in memory."""

    pattern: tuple[int, int, int, int]
    rows: int
    dtype: str
    last: bool

    kind = "kronsparse"

    @property
    def name(self) -> str:
        """What rows call it."""
        return f"{self.pattern} {self.rows} {self.dtype} {'last' if self.last else 'first'}"

    @property
    def ends(self) -> tuple[int, int]:
        """Numbers of x and of the result."""
        a, b, c, d = self.pattern
        return self.rows * a * c * d, self.rows * a * b * d

    @property
    def weights(self) -> int:
        """Numbers that are multiplied by."""
        return math.prod(self.pattern)

    @property
    def products(self) -> float:
        """Multiplications."""
        return float(self.rows) * math.prod(self.pattern)

    def arrays(self, device: str) -> dict[str, torch.Tensor]:
        """x, weights and the gradient of the result."""
        a, b, c, d = self.pattern
        make = partial(torch.randn, generator=torch.Generator(device).manual_seed(0), device=device)

        def rows_of(features: int) -> torch.Tensor:
            shape = (features, self.rows) if self.last else (self.rows, features)
            return make(shape, dtype=torch.float32).to(DTYPES[self.dtype])

        weight = make(self.pattern, dtype=torch.float32) / math.sqrt(c)
        return {"x": rows_of(a * c * d), "w0": weight.to(DTYPES[self.dtype]), "g": rows_of(a * b * d)}

    def ours(self, given: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """The product with weights as given."""
        return kron_sparse_matmul(given["x"], given["w0"], batch_last=self.last)

    def exact(self, given: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """The definition."""
        a, b, c, d = self.pattern
        x, weight = given["x"], given["w0"]
        if self.last:
            columns = x.view(a, c, d, -1).permute(0, 2, 1, 3)
            return torch.matmul(weight.permute(0, 3, 1, 2), columns).transpose(1, 2).reshape(a * b * d, -1)
        rows = x.view(-1, a, c, d).permute(1, 3, 0, 2)
        return torch.matmul(rows, weight.permute(0, 3, 2, 1)).permute(2, 0, 3, 1).reshape(-1, a * b * d)

    def forward(self, given: Mapping[str, torch.Tensor]) -> Calls:
        """Ours with packed weights and those of torch with what they need of the weights made before."""
        x, weight = given["x"], given["w0"]
        rows = (x.mT if self.last else x)[None]
        blocks = block_matrices(weight[None])
        calls: Calls = {
            OURS: partial(self.layer("auto", weight), x),
            UNPACKED: lambda: kron_sparse_matmul(x, weight, batch_last=self.last),
            "bmm": lambda: by_bmm(rows, weight[None], blocks),
            "bmm with copies": lambda: by_copies(rows, blocks),
            "einsum": lambda: self._einsum(x, weight),
        }
        if self._fits(x):
            matrix = dense(weight)
            calls["dense"] = (lambda: matrix @ x) if self.last else (lambda: functional.linear(x, matrix))
        return calls

    def parts(self, given: Mapping[str, torch.Tensor]) -> Calls:
        """What no contestant is: our kernels alone, and each algorithm of the gradients."""
        x, weight, grad = given["x"], given["w0"], given["g"]
        rows, grads = ((own.mT if self.last else own)[None] for own in (x, grad))
        transposed = weight.transpose(1, 2)
        calls: Calls = {
            "kernel": partial(self.layer("kernel", weight), x),
            "kernel, weights as given": lambda: kron_sparse_matmul(x, weight, batch_last=self.last, algorithm="kernel"),
            "bmm, weights as given": lambda: by_bmm(rows, weight[None]),
            "x by auto": lambda: kron_sparse_matmul(grad, transposed, batch_last=self.last),
            "x by kernel": lambda: kron_sparse_matmul(grad, transposed, batch_last=self.last, algorithm="kernel"),
            "x by bmm": lambda: kron_sparse_matmul(grad, transposed, batch_last=self.last, algorithm="bmm"),
        }
        if x.is_cuda and not self.last and self.pattern[3] > 1:
            packed = PackedWeights()
            calls["kernel over transposed rows"] = lambda: product_by(
                TRANSPOSED, Operands(rows, weight[None], packed=packed)
            )
        names = ["auto", "kernel", "bmm", *[TRANSPOSED] * (x.is_cuda and not self.last and self.pattern[3] > 1)]
        if self._fits(x):
            calls["dense, weights as given"] = lambda: by_dense(rows, weight[None])
            calls["x by dense"] = lambda: kron_sparse_matmul(grad, transposed, batch_last=self.last, algorithm="dense")
            names.append("dense")
        for name in names:
            options = Options(self.last, name, "")
            calls[f"weights by {name}"] = partial(weight_gradient, rows, grads, self.pattern, options)
        return calls

    def backward(self, given: Mapping[str, torch.Tensor], whole: bool = False, make: Make | None = None) -> Calls:
        """Gradients of x and weights from a product made before, as ``make`` does it, or of the ``whole`` step."""
        x, weight, grad = (given[name].detach() for name in ("x", "w0", "g"))
        blocks, gradients = block_matrices(weight), partial(_gradients, whole=whole, make=make)

        def bmm(x: torch.Tensor, blocks: torch.Tensor) -> torch.Tensor:
            value = by_copies((x.mT if self.last else x)[None], blocks[None])[0]
            return value.mT if self.last else value

        calls: Calls = {
            OURS: gradients(lambda x, w: kron_sparse_matmul(x, w, batch_last=self.last), x, [weight], grad),
            "bmm": gradients(bmm, x, [blocks], grad),
            "einsum": gradients(self._einsum, x, [weight], grad),
        }
        if self._fits(x):
            matrix = dense(weight)
            product = (lambda x, m: m @ x) if self.last else functional.linear
            calls["dense"] = gradients(product, x, [matrix], grad)
        return calls

    def layer(self, algorithm: str, weight: torch.Tensor) -> Any:
        """A layer whose weights are packed."""
        a, b, c, d = self.pattern
        return KSLinear(a * c * d, a * b * d, [self.pattern], False, [weight], self.last, algorithm).pack()

    def _einsum(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        a, b, c, d = self.pattern
        if self.last:
            value = torch.einsum("ikln,ijkl->ijln", x.view(a, c, d, -1), weight)
            return value.reshape(a * b * d, -1)
        return torch.einsum("nikl,ijkl->nijl", x.view(-1, a, c, d), weight).reshape(-1, a * b * d)

    def _fits(self, x: torch.Tensor) -> bool:
        a, b, c, d = self.pattern
        entries, (_, most, largest) = a * b * d * a * c * d, _MOST[x.device.type]
        return entries <= largest and float(self.rows) * entries <= 4 * most


@dataclass(frozen=True)
class KronCase:
    """A Kronecker product of ``rows`` rows with factors of sizes (p, q), and which gradients are wanted, x first."""

    sizes: tuple[tuple[int, int], ...]
    rows: int
    dtype: str
    wanted: tuple[bool, ...]

    kind = "kron"

    @property
    def name(self) -> str:
        """What rows call it."""
        factors = " ".join(str(p) if p == q else f"{p}x{q}" for p, q in self.sizes)
        frozen = ",".join(str(index) for index, own in enumerate(self.wanted) if not own)
        return f"{self.rows} [{factors}] {self.dtype}{' frozen ' * bool(frozen)}{frozen}"

    @property
    def ends(self) -> tuple[int, int]:
        """Numbers of x and of the result."""
        return self.rows * math.prod(p for p, _ in self.sizes), self.rows * math.prod(q for _, q in self.sizes)

    @property
    def weights(self) -> int:
        """Numbers that are multiplied by."""
        return sum(p * q for p, q in self.sizes)

    @property
    def products(self) -> float:
        """Multiplications in the order of least."""
        width, total = float(self.ends[0]), 0.0
        for p, q in sorted(self.sizes, key=lambda size: 1 / size[0] - 1 / size[1]):
            total += width * q
            width = width / p * q
        return total

    def arrays(self, device: str) -> dict[str, torch.Tensor]:
        """x, factors and the gradient of the result."""
        make = partial(torch.randn, generator=torch.Generator(device).manual_seed(0), device=device)
        dtype = DTYPES[self.dtype]
        found = {
            f"f{place}": (make((p, q), dtype=torch.float32) / math.sqrt(p)).to(dtype)
            for place, (p, q) in enumerate(self.sizes)
        }
        before, after = self.ends
        found["x"] = make((self.rows, before // self.rows), dtype=torch.float32).to(dtype)
        found["g"] = make((self.rows, after // self.rows), dtype=torch.float32).to(dtype)
        return found

    def factors(self, given: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
        """The factors in order."""
        return [given[f"f{place}"] for place in range(len(self.sizes))]

    def ours(self, given: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """The product."""
        return kron_matmul(given["x"], self.factors(given))

    def exact(self, given: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """The definition, one factor after the other."""
        return stepwise(given["x"], self.factors(given))

    def forward(self, given: Mapping[str, torch.Tensor]) -> Calls:
        """Ours, and the algorithms of torch."""
        x, factors = given["x"], self.factors(given)
        columns = x.mT.contiguous().mT
        calls: Calls = {
            OURS: lambda: kron_matmul(x, factors),
            "shuffle": lambda: shuffle(columns, factors),
            "matmuls": lambda: stepwise(x, factors),
        }
        if self._fits(x):
            calls["torch.kron"] = lambda: formed(x, factors)
        if not x.is_cuda and self.dtype in ("f32", "f64") and find_spec("pyfastkron") is not None:
            calls[FASTKRON] = partial(import_module("pyfastkron.fastkrontorch").gemkm, x, factors)
        return calls

    def parts(self, given: Mapping[str, torch.Tensor]) -> Calls:
        """The gradient of x alone."""
        grad, transposed = given["g"], [factor.mT for factor in self.factors(given)]
        return {"x by auto": lambda: kron_matmul(grad, transposed)}

    def backward(self, given: Mapping[str, torch.Tensor], whole: bool = False, make: Make | None = None) -> Calls:
        """The wanted gradients from a product made before, as ``make`` does it, or of the ``whole`` step."""
        x, factors, grad = given["x"].detach(), [own.detach() for own in self.factors(given)], given["g"]
        columns, across = x.mT.contiguous().mT, grad.mT.contiguous().mT

        def through(product: Callable[..., torch.Tensor], x: torch.Tensor, grad: torch.Tensor) -> Callable[[], Any]:
            return _gradients(lambda x, *own: product(x, list(own)), x, factors, grad, self.wanted, whole, make)

        calls = {
            OURS: through(kron_matmul, x, grad), "shuffle": through(shuffle, columns, across),
            "matmuls": through(stepwise, x, grad),
        }  # fmt: skip
        if self._fits(x):
            calls["torch.kron"] = through(formed, x, grad)
        return calls

    def _fits(self, x: torch.Tensor) -> bool:
        before, after = self.ends
        entries, (_, most, largest) = before // self.rows * (after // self.rows), _MOST[x.device.type]
        return entries <= largest and float(self.rows) * entries <= 4 * most


Drawn = SparseCase | KronCase


def stepwise(x: torch.Tensor, factors: Sequence[torch.Tensor]) -> torch.Tensor:
    """One batched matrix product for every factor, nothing transposed."""
    value, right = x, 1
    for factor in reversed(factors):
        p, q = factor.shape
        value = value.reshape(-1, p) @ factor if right == 1 else factor.mT @ value.reshape(-1, p, right)
        right *= q
    return value.reshape(x.shape[0], right)


def formed(x: torch.Tensor, factors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Through the matrix."""
    whole = factors[0]
    for factor in factors[1:]:
        whole = torch.kron(whole, factor)
    return x @ whole


def _gradients(
    product: Callable[..., torch.Tensor], x: torch.Tensor, weights: Sequence[torch.Tensor], grad: torch.Tensor,
    wanted: Sequence[bool] = (), whole: bool = False, make: Make | None = None,
) -> Callable[[], list[torch.Tensor]]:  # fmt: skip
    """Those wanted of the gradients of x and of the weights, of all without a choice, after the product if ``whole``.

    Else the product is made before, by ``make`` if that is given. The gradients lie in memory as what they are of, as
    ``backward`` leaves them.
    """
    chosen = wanted or (True,) * (len(weights) + 1)
    own = [tensor.detach().requires_grad_(is_wanted) for tensor, is_wanted in zip((x, *weights), chosen, strict=True)]
    leaves = [tensor for tensor in own if tensor.requires_grad]
    before = partial(product, *own)
    out = None if whole else before() if make is None else make(before)

    def call() -> list[torch.Tensor]:
        result = product(*own) if out is None else out
        found = torch.autograd.grad(result, leaves, grad, retain_graph=out is not None)
        return [_lying_as(leaf, one) for leaf, one in zip(leaves, found, strict=True)]

    return call


def _lying_as(leaf: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
    return grad if grad.stride() == leaf.stride() else torch.empty_like(leaf).copy_(grad)


def cases(kind: str) -> list[Drawn]:
    """All cases: those with names first, the others in one fixed random order, so that any prefix is a fair sample."""
    source = random.Random(SEED)
    found: list[Drawn] = [_sparse(source, kind) for _ in range(SPARSE)]
    found += [_kron(source, kind) for _ in range(KRON)]
    source.shuffle(found)
    return [*(_named() if kind == "cuda" else []), *found]


def _named() -> list[Drawn]:
    found: list[Drawn] = []
    for pattern in NAMED_SPARSE:
        found += [SparseCase(pattern, NAMED_ROWS, "f32", last) for last in (False, True)]
        found.append(SparseCase(pattern, NAMED_ROWS, "bf16", False))
    for rows, extents in NAMED_KRON:
        found.append(KronCase(tuple((p, p) for p in extents), rows, "f32", (True,) * (len(extents) + 1)))
    return found


def _drawn(source: random.Random, least: int, most: int) -> int:
    """A log-uniform integer."""
    return min(most, int(math.exp(source.uniform(math.log(least), math.log(most + 1)))))


def _sparse(source: random.Random, kind: str) -> SparseCase:
    numbers, products, _ = _MOST[kind]
    while True:
        a, d = _drawn(source, 1, 128), _drawn(source, 1, 128)
        b, c = _drawn(source, 2, 1024), _drawn(source, 2, 1024)
        rows, dtype, last = _drawn(source, 1, MOST_ROWS), source.choice(_TYPES[kind]), source.random() < 0.5
        rows = min(rows, numbers // (a * d * (b + c)), int(products / (a * b * c * d)))
        if a * b * c * d <= min(_MOST_WEIGHTS, numbers) and rows:
            return SparseCase((a, b, c, d), rows, dtype, last)


def _kron(source: random.Random, kind: str) -> KronCase:
    numbers, products, _ = _MOST[kind]
    count = source.randint(2, 8)
    while True:
        is_square = source.random() < 0.5
        sizes = [(_drawn(source, 2, 256), _drawn(source, 2, 256)) for _ in range(count)]
        sizes = [(p, p if is_square else q) for p, q in sizes]
        rows, dtype = _drawn(source, 1, MOST_ROWS), source.choice(_TYPES[kind])
        wanted = [True] * (count + 1)
        frozen = source.random()
        if frozen < 0.3:
            wanted[0 if frozen < 0.15 else source.randint(1, count)] = False
        widest, width = 1.0, 1.0
        for p, q in sizes:
            width *= max(p, q)
            widest = max(widest, width)
        rows = min(rows, int(numbers / 2 / widest))
        found = KronCase(tuple(sizes), max(rows, 1), dtype, tuple(wanted))
        if widest <= _MOST_WIDTH and rows and found.products <= products:
            return found
