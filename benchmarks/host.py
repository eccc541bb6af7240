"""The suites of host time: warm eager calls so small that Python and launches are what takes long.

A case is a function and its gradient beside the plain way with torch and a layer of torch's. On a GPU each is timed
twice: until the GPU is done, and (``host``) until the last of the calls has returned.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
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
MONARCH = ((6, 64, 64, 1), (1, 768, 192, 2))
ROUNDINGS = 4
Function = Callable[..., torch.Tensor]


@dataclass(frozen=True)
class Operation:
    """A function of tensors (the first x), ours and the plain way of torch, which in float64 is the oracle.

    ``shapes`` are those of the tensors, ``linear`` the rows, inputs and outputs of the layer beside it, ``trained`` the
    tensors that have gradients. ``ours`` is arrays the tensors to make a function of x alone, a module too.
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

    def inputs(self, device: str) -> Arrays:
        """Tensors by name, and the cotangent."""
        if self.make is not None:
            return self.make(device)
        return {
            f"t{index}": (normal(shape[0], int(np.prod(shape[1:])), "f32", device, index + 1) / shape[-1] ** 0.5)
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


def _step(operation: Operation, function: Callable[[Sequence[torch.Tensor]], Function]) -> Prepare:
    """Forward and backward; what is returned is the gradient by x."""

    def prepare(arrays: Arrays) -> Callable[[], torch.Tensor]:
        tensors = _tensors(operation, arrays)
        for index in operation.trained:
            tensors[index].requires_grad_()
        own = function(tensors)
        cotangent = _cotangent(own(tensors[0]))
        layers = list(own.parameters()) if isinstance(own, torch.nn.Module) else []
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


def _yardstick(operation: Operation, backward: bool) -> Prepare:
    """Run a layer of torch's in the index of the function, and return what the plain way gave once before."""

    def prepare(arrays: Arrays) -> Callable[[], torch.Tensor]:
        rows, inputs, outputs = operation.linear
        device, dtype = arrays["t0"].device, arrays["t0"].dtype
        layer = torch.nn.Linear(inputs, outputs, device=device, dtype=dtype)
        x = normal(rows, inputs, "f32", str(device), 1).to(dtype)
        leaves = [x.clone().requires_grad_(backward), *layer.parameters()]
        result = (_step if backward else _forward)(operation, _plain(operation.plain))(arrays)()
        cotangent = _cotangent(layer(x))

        def call() -> torch.Tensor:
            if backward:
                for leaf in leaves:
                    leaf.grad = None
                layer(leaves[0]).backward(cotangent)
            else:
                with torch.no_grad():
                    layer(leaves[0])
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
    for backward, word in ((False, "forward"), (True, "forward and backward")):
        timed = _step if backward else _forward
        shape = (operation.shapes[0][0], columns) if backward else (outer[0], outer[1])
        problem = Problem(
            operation.inputs, _exact(operation, backward), shape, operation.depth * (4 if backward else 1),
            operation.dtype,
        )  # fmt: skip
        plain = {"torch": operation.plain, **operation.peers}
        peers = tuple(Peer(name, timed(operation, _plain(function))) for name, function in plain.items())
        ours, title = timed(operation, operation.ours), f"{operation.name}, {word}"
        for clock in ("wall", "host") if device == "cuda" else ("wall",):
            suffix = ", host" if clock == "host" else ""
            found.append(
                Case(
                    f"{title}{suffix}", f"{title}{suffix}", problem, ours,
                    (*peers, Peer(YARDSTICK, _yardstick(operation, backward))), Work(), (), clock, roundings=ROUNDINGS,
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
    for weight in weights:
        x = _factor(x, weight)
    return x


def _gaussian(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    squares = (x * x).sum(1)[:, None] + (y * y).sum(1) - 2 * (x @ y.mT)
    return torch.exp(-squares.clamp_min(0) / 2)


def _definite(n: int) -> Callable[[str], Arrays]:
    def make(device: str) -> Arrays:
        thin = normal(n, n, "f32", device, 1)
        return {"t0": normal(n, 1, "f32", device, 2), "t1": thin @ thin.mT / n + torch.eye(n, device=device)}

    return make


def _layer(weights: Sequence[torch.Tensor]) -> Function:
    return KSLinear(384, 1536, MONARCH, bias=False, weights=[each.detach().clone() for each in weights[1:]])


def _operations(device: str) -> list[Operation]:
    l1 = Contraction("mk,nk->mn", lambda a, b: abs(a - b))
    gaussian, laplace = CONSTRUCTORS["Gaussian"](1.0), CONSTRUCTORS["Laplace"](1.0, p=1)
    return [
        Operation(
            "contract 64 x 64 x 16", ((64, 16), (64, 16)), lambda t: lambda x: l1(x, t[1]),
            lambda x, y: (x[:, None] - y).abs().sum(2), (64, 16, 64), 16,
        ),
        Operation(
            "cdist 16 x 16 x 4", ((16, 4), (16, 4)), lambda t: lambda x: cdist(x, t[1], p=1),
            lambda x, y: (x[:, None] - y).abs().sum(2), (16, 4, 16), 4,
            peers={"torch.cdist": lambda x, y: torch.cdist(x, y, p=1)},
        ),
        Operation(
            "k.matmul 64 x 64 x 8", ((64, 8), (64, 8), (64, 1)), lambda t: lambda x: gaussian.matmul(x, t[1], t[2]),
            lambda x, y, v: _gaussian(x, y) @ v, (64, 8, 64), 64,
        ),
        Operation(
            "k(x, y) 64 x 64 x 8", ((64, 8), (64, 8)), lambda t: lambda x: laplace(x, t[1]),
            lambda x, y: torch.exp(-(x[:, None] - y).abs().sum(2)), (64, 8, 64), 8,
        ),
        Operation(
            "kron_matmul 16 x 8^3", ((16, 512), *((8, 8),) * 3), lambda t: lambda x: kron_matmul(x, t[1:]), _shuffle,
            (16, 512, 512), 24, trained=(0, 1, 2, 3),
        ),
        Operation(
            "kron_matmul 16 x 64^2", ((16, 4096), (64, 64), (64, 64)), lambda t: lambda x: kron_matmul(x, t[1:]),
            _shuffle, (16, 512, 512), 128, trained=(0, 1, 2),
        ),
        Operation(
            "kron_sparse_matmul 16 x (6,64,64,1)", ((16, 384), MONARCH[0]),
            lambda t: lambda x: kron_sparse_matmul(x, t[1]), _factor, (16, 384, 384), 64, trained=(0, 1),
        ),
        *(
            Operation(
                f"KSLinear {rows} x 384 to 1536{' bf16' * (dtype == 'bf16')}", ((rows, 384), *MONARCH), _layer, _chain,
                (rows, 384, 1536), 256, dtype, trained=(0, 1, 2),
            )
            for rows in (16, 256)
            for dtype in (("f32", "bf16") if device == "cuda" else ("f32",))
        ),
        Operation(
            "solve_cholesky 32", ((32, 1), (32, 32)), lambda t: lambda b: solve_cholesky(t[1], b).x,
            lambda b, a: torch.cholesky_solve(b, torch.linalg.cholesky(a)), (32, 32, 32), 3200, make=_definite(32),
        ),
    ]  # fmt: skip


def suite(device: str) -> Suite:
    """Return the suite for a kind of device."""
    rows = [case for operation in _operations(device) for case in _cases(operation, device)]
    return Suite("host" if device == "cpu" else f"host-{device}", device, tuple(rows))
