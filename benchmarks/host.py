"""The suites of host time: warm calls so small that Python and launches are what takes long.

A case is a function and its gradient beside the plain way with torch and a layer of torch's. What takes lengthscales
or ``out=`` is beside the same call without, and the compiled step of a layer beside the eager one. On a GPU each eager
case is timed twice: until the GPU is done, and (``host``) until the last of the calls has returned.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch

from kernmantle.kron import kron_matmul
from kernmantle.kronsparse import KSLinear, kron_sparse_matmul
from kernmantle.linalg import solve_cholesky
from kernmantle.pairwise import CONSTRUCTORS, cdist
from kernmantle.torch_ops.contract import Contraction

from .case import DTYPES, Arrays, Case, Exact, Peer, Picks, Prepare, Problem, Suite
from .problems import normal
from .work import Work

YARDSTICK = "torch.nn.Linear"
WITHOUT = "without"
MONARCH = ((6, 64, 64, 1), (1, 768, 192, 2))
CODES = {"compiled": "default", "compiled with reduce-overhead": "reduce-overhead"}
ROUNDINGS = 4
Function = Callable[..., torch.Tensor]


@dataclass(frozen=True)
class Operation:
    """A function of tensors (the first x), ours and the plain way of torch, which in float64 is the oracle.

    ``shapes`` are those of the tensors, ``linear`` the rows, inputs and outputs of the layer beside it, ``trained`` the
    tensors that have gradients. ``ours`` takes the tensors to make a function of x alone, or a module. ``words`` are
    what is timed: "forward", "forward and backward", or the latter followed by a key of ``CODES``. ``without`` is ours
    without what the operation is about.
    """

    name: str
    shapes: tuple[tuple[int, ...], ...]
    ours: Callable[[Sequence[torch.Tensor]], Function]
    plain: Function
    linear: tuple[int, int, int]
    depth: int
    dtype: str = "f32"
    make: Callable[[str], Arrays] | None = None
    trained: tuple[int, ...] = (0,)
    peers: Mapping[str, Function] = field(default_factory=dict[str, Function])
    without: Callable[[Sequence[torch.Tensor]], Function] | None = None
    words: tuple[str, ...] = ("forward", "forward and backward")

    def inputs(self, device: str) -> Arrays:
        """Tensors by name, and the cotangent."""
        if self.make is not None:
            return self.make(device)
        return {
            f"t{index}": (normal(shape[0], math.prod(shape[1:]), "f32", device, index + 1) / shape[-1] ** 0.5)
            .reshape(shape)
            .to(DTYPES[self.dtype])
            for index, shape in enumerate(self.shapes)
        }


def _tensors(operation: Operation, arrays: Arrays) -> list[torch.Tensor]:
    return [arrays[f"t{index}"].detach().clone() for index in range(len(operation.shapes))]


def _cotangent(out: torch.Tensor) -> torch.Tensor:
    return torch.linspace(-1, 1, out.numel(), dtype=torch.float64).reshape(out.shape).to(out.device, out.dtype)


def _forward(operation: Operation, function: Callable[[Sequence[torch.Tensor]], Function]) -> Prepare:
    def prepare(arrays: Arrays) -> Callable[[], torch.Tensor]:
        tensors = _tensors(operation, arrays)
        own = function(tensors)

        def call() -> torch.Tensor:
            with torch.no_grad():
                return own(tensors[0])

        return call

    return prepare


def _compiled(own: Function, code: str) -> Function:
    """The function or module compiled by torch as ``CODES`` says, or as it is."""
    return torch.compile(own, mode=CODES[code]) if code else own


def _alone(prepare: Prepare) -> Prepare:
    """Compile with nothing compiled before, as the second shape of one function is compiled for shapes of any size."""

    def forgetful(arrays: Arrays) -> Callable[[], torch.Tensor]:
        torch._dynamo.reset()
        return prepare(arrays)

    return forgetful


def _step(operation: Operation, function: Callable[[Sequence[torch.Tensor]], Function], code: str = "") -> Prepare:
    """Forward and backward; what is returned is the gradient by x."""

    def prepare(arrays: Arrays) -> Callable[[], torch.Tensor]:
        tensors = _tensors(operation, arrays)
        for index in operation.trained:
            tensors[index].requires_grad_()
        own = function(tensors)
        layers = list(own.parameters()) if isinstance(own, torch.nn.Module) else []
        cotangent, own = _cotangent(own(tensors[0])), _compiled(own, code)
        leaves = [*(tensors[index] for index in operation.trained), *layers]

        def call() -> torch.Tensor:
            for leaf in leaves:
                leaf.grad = None
            own(tensors[0]).backward(cotangent)
            found = tensors[0].grad
            assert found is not None
            return found

        return call

    return prepare


def _exact(operation: Operation, backward: bool) -> Callable[[Exact, Picks], np.ndarray[Any, Any]]:
    def exact(arrays: Exact, picks: Picks) -> np.ndarray[Any, Any]:
        tensors = [torch.from_numpy(arrays[f"t{index}"]) for index in range(len(operation.shapes))]
        x = tensors[0].requires_grad_(backward)
        out = operation.plain(*tensors)
        result = torch.autograd.grad(out, x, _cotangent(out))[0] if backward else out
        return result.detach().numpy()[picks.rows][:, picks.columns]

    return exact


def _yardstick(operation: Operation, backward: bool, code: str = "") -> Prepare:
    """Run a layer of torch's in the index of the function, and return what the plain way gave once before."""

    def prepare(arrays: Arrays) -> Callable[[], torch.Tensor]:
        rows, inputs, outputs = operation.linear
        device, dtype = arrays["t0"].device, arrays["t0"].dtype
        layer = torch.nn.Linear(inputs, outputs, device=device, dtype=dtype)
        x = normal(rows, inputs, "f32", str(device), 1).to(dtype)
        leaves = [x.clone().requires_grad_(backward), *layer.parameters()]
        result = (_step if backward else _forward)(operation, _plain(operation.plain))(arrays)()
        cotangent, own = _cotangent(layer(x)), _compiled(layer, code)

        def call() -> torch.Tensor:
            if backward:
                for leaf in leaves:
                    leaf.grad = None
                own(leaves[0]).backward(cotangent)
            else:
                with torch.no_grad():
                    own(leaves[0])
            return result

        return call

    return prepare


def _without(operation: Operation, timed: Callable[..., Prepare]) -> Prepare:
    """Run ours without what the operation is about, and return what the plain way gave once before."""

    def prepare(arrays: Arrays) -> Callable[[], torch.Tensor]:
        assert operation.without is not None
        result = timed(operation, _plain(operation.plain))(arrays)()
        own = timed(operation, operation.without)(arrays)

        def call() -> torch.Tensor:
            own()
            return result

        return call

    return prepare


def _plain(function: Function) -> Callable[[Sequence[torch.Tensor]], Function]:
    return lambda tensors: lambda x: function(x, *tensors[1:])


def _cases(operation: Operation, device: str) -> list[Case]:
    found: list[Case] = []
    columns = operation.shapes[0][1]
    sizes = [torch.empty(shape, device="meta") for shape in operation.shapes]
    outer = tuple(operation.plain(*sizes).shape)
    for word in operation.words:
        backward, code = word != "forward", word.partition("and backward")[2].strip()
        shape = (operation.shapes[0][0], columns) if backward else (outer[0], outer[1])
        problem = Problem(
            operation.inputs, _exact(operation, backward), shape, operation.depth * (4 if backward else 1),
            operation.dtype,
        )  # fmt: skip
        timed: Callable[..., Prepare] = partial(_step, code=code) if backward else _forward
        plain = {} if code else {"torch": operation.plain, **operation.peers}
        peers = [Peer(name, timed(operation, _plain(function))) for name, function in plain.items()]
        peers.append(Peer(YARDSTICK, _yardstick(operation, backward, code)))
        if operation.without is not None:
            peers.append(Peer(WITHOUT, _without(operation, timed)))
        if code:
            peers.append(Peer("eager", _step(operation, operation.ours)))
            peers.append(Peer(f"{YARDSTICK}, eager", _yardstick(operation, backward)))
        ours, title = timed(operation, operation.ours), f"{operation.name}, {word}"
        ours = _alone(ours) if code else ours
        for clock in ("wall", "host") if device == "cuda" and not code else ("wall",):
            suffix = ", host" if clock == "host" else ""
            found.append(
                Case(
                    f"{title}{suffix}", f"{title}{suffix}", problem, ours, tuple(peers), Work(), (), clock,
                    roundings=ROUNDINGS,
                )
            )  # fmt: skip
    return found


def _shuffle(x: torch.Tensor, *factors: torch.Tensor) -> torch.Tensor:
    """A Kronecker product as FastKron's authors describe torch's: a matrix product and a transposition a factor."""
    rows = x.shape[0]
    for factor in reversed(factors):
        x = (x.reshape(rows, -1, factor.shape[0]) @ factor).transpose(1, 2)
    return x.reshape(rows, -1)


def _factor(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    a, _, c, d = weight.shape
    return torch.einsum("nikl,ijkl->nijl", x.reshape(-1, a, c, d), weight).reshape(len(x), -1)


def _chain(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
    """A layer of Kronecker-sparse factors, the last tensor its bias."""
    for weight in weights[:-1]:
        x = _factor(x, weight)
    return x + weights[-1]


def _gaussian(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    squares = (x * x).sum(1)[:, None] + (y * y).sum(1) - 2 * (x @ y.mT)
    return torch.exp(-squares.clamp_min(0) / 2)


def _definite(n: int) -> Callable[[str], Arrays]:
    def make(device: str) -> Arrays:
        thin = normal(n, n, "f32", device, 1)
        return {"t0": normal(n, 1, "f32", device, 2), "t1": thin @ thin.mT / n + torch.eye(n, device=device)}

    return make


def _ard(x: torch.Tensor, y: torch.Tensor, v: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return _gaussian(x / scale, y / scale) @ v


def _scales(device: str) -> Arrays:
    x, y, v = (normal(64, columns, "f32", device, seed) for seed, columns in ((1, 8), (2, 8), (3, 1)))
    return {"t0": x / 8**0.5, "t1": y / 8**0.5, "t2": v, "t3": torch.linspace(1, 2, 8, device=device)}


def _scaled(tensors: Sequence[torch.Tensor]) -> Function:
    kernel = CONSTRUCTORS["Gaussian"](lengthscales=tensors[3])
    return lambda x: kernel.matmul(x, tensors[1], tensors[2])


def _layer(weights: Sequence[torch.Tensor]) -> Function:
    layer = KSLinear(384, 1536, MONARCH, weights=[each.detach().clone() for each in weights[1:-1]])
    assert layer.bias is not None
    layer.bias.data.copy_(weights[-1])
    return layer


def _into(make: Callable[..., torch.Tensor], shape: tuple[int, int]) -> Callable[[Sequence[torch.Tensor]], Function]:
    """A function of x and of what it is written to, which is made once."""

    def prepare(tensors: Sequence[torch.Tensor]) -> Function:
        out = torch.empty(shape, dtype=tensors[0].dtype, device=tensors[0].device)
        return lambda x: make(x, *tensors[1:], out=out)

    return prepare


def _l1(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x[:, None] - y).abs().sum(2)


def _kron(rows: int, sizes: Sequence[int]) -> Operation:
    factors = ((size, size) for size in sizes)
    equal = len(set(sizes)) == 1
    name = f"{sizes[0]}^{len(sizes)}" if equal else str([*sizes]).replace(" ", "")
    columns = math.prod(sizes)
    return Operation(
        f"kron_matmul {rows} x {name}", ((rows, columns), *factors), lambda t: lambda x: kron_matmul(x, t[1:]),
        _shuffle, (16, 512, 512), sum(sizes), trained=tuple(range(len(sizes) + 1)),
    )  # fmt: skip


def _layers(device: str) -> list[Operation]:
    """The layer at five sizes, compiled at two of them, and a single factor."""
    sizes, types = ((16, 256, 1024, 4096, 25088), ("f32", "bf16")) if device == "cuda" else ((16, 256), ("f32",))
    found: list[Operation] = []
    for rows in sizes:
        for dtype in types:
            words = ["forward", "forward and backward"]
            if device == "cuda" and rows in (256, 1024):
                words += [f"forward and backward {code}" for code in CODES]
            found.append(
                Operation(
                    f"KSLinear {rows} x 384 to 1536{' bf16' * (dtype == 'bf16')}", ((rows, 384), *MONARCH, (1536,)),
                    _layer, _chain, (rows, 384, 1536), 256, dtype, trained=(0, 1, 2, 3), words=tuple(words),
                )
            )  # fmt: skip
    return [
        *found,
        *(
            Operation(
                f"kron_sparse_matmul {rows} x (6,64,64,1)", ((rows, 384), MONARCH[0]),
                lambda t: lambda x: kron_sparse_matmul(x, t[1]), _factor, (rows, 384, 384), 64, trained=(0, 1),
            )
            for rows in (sizes[:1] if device == "cpu" else (16, 512))
        ),
    ]  # fmt: skip


def _operations(device: str) -> list[Operation]:
    l1 = Contraction("mk,nk->mn", lambda a, b: abs(a - b))
    gaussian, laplace = CONSTRUCTORS["Gaussian"](1.0), CONSTRUCTORS["Laplace"](1.0, p=1)
    alone, points, vectors = ("forward",), ((64, 8), (64, 8), (64, 1)), (64, 8, 64)

    def product(tensors: Sequence[torch.Tensor]) -> Function:
        return lambda x: gaussian.matmul(x, tensors[1], tensors[2])

    larger = [(1, (64, 64)), (200, (100, 100)), (64, (256, 256)), (16, (20,) * 4), (256, (24, 32, 40))]
    return [
        Operation(
            "contract 64 x 64 x 16", ((64, 16), (64, 16)), lambda t: lambda x: l1(x, t[1]), _l1, (64, 16, 64), 16
        ),
        Operation(
            "cdist 16 x 16 x 4", ((16, 4), (16, 4)), lambda t: lambda x: cdist(x, t[1], p=1), _l1, (16, 4, 16), 4,
            peers={"torch.cdist": lambda x, y: torch.cdist(x, y, p=1)},
        ),
        Operation(
            "cdist 512 x 512 x 64", ((512, 64), (512, 64)), lambda t: lambda x: cdist(x, t[1], p=1), _l1,
            (512, 64, 512), 64, peers={"torch.cdist": lambda x, y: torch.cdist(x, y, p=1)},
        ),
        Operation(
            "cdist 512 x 512 x 64 to out", ((512, 64), (512, 64)), _into(partial(cdist, p=1), (512, 512)), _l1,
            (512, 64, 512), 64, words=alone, without=lambda t: lambda x: cdist(x, t[1], p=1),
        ),
        Operation(
            "k.matmul 64 x 64 x 8", points, product,
            lambda x, y, v: _gaussian(x, y) @ v, vectors, 64,
        ),
        Operation(
            "k.matmul 64 x 64 x 8 to out", points, _into(gaussian.matmul, (64, 1)),
            lambda x, y, v: _gaussian(x, y) @ v, vectors, 64, words=alone, without=product,
        ),
        Operation(
            "k.matmul 64 x 64 x 8 of scales", (*points, (8,)), _scaled, _ard, vectors, 64, make=_scales,
            without=product,
        ),
        Operation(
            "k(x, y) 64 x 64 x 8", points[:2], lambda t: lambda x: laplace(x, t[1]),
            lambda x, y: torch.exp(-_l1(x, y)), vectors, 8,
        ),
        Operation(
            "k(x, y) 64 x 64 x 8 to out", points[:2], _into(laplace, (64, 64)), lambda x, y: torch.exp(-_l1(x, y)),
            vectors, 8, words=alone, without=lambda t: lambda x: laplace(x, t[1]),
        ),
        _kron(16, (8,) * 3),
        _kron(16, (64, 64)),
        *(_kron(rows, sizes) for rows, sizes in larger if device == "cuda"),
        *_layers(device),
        Operation(
            "solve_cholesky 32", ((32, 1), (32, 32)), lambda t: lambda b: solve_cholesky(t[1], b).x,
            lambda b, a: torch.cholesky_solve(b, torch.linalg.cholesky(a)), (32, 32, 32), 3200, make=_definite(32),
        ),
    ]  # fmt: skip


def suite(device: str) -> Suite:
    """Return the suite for a kind of device: what is eager first, and the clock on the wall before that of the host."""
    rows = [case for operation in _operations(device) for case in _cases(operation, device)]
    rows.sort(key=lambda case: (case.clock != "wall", "compiled" in case.name))
    return Suite("host" if device == "cpu" else f"host-{device}", device, tuple(rows))
