"""The self-check of ``kernmantle info``: a little of everything on each device, compared with float64 on the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ..errors import KernmantleError
from ..linalg import solve_cholesky
from ..pairwise import CONSTRUCTORS, argkmin, cdist
from ..structured.kron import kron_matmul
from ..structured.kronsparse import kron_sparse_matmul
from ..testing import assert_close
from ..torch_ops.contract import contract

Inputs = dict[str, torch.Tensor]
Exact = dict[str, "np.ndarray"]
M, N, K = 37, 53, 24


@dataclass(frozen=True)
class Check:
    """A computation, the same in float64 by numpy, and the number of terms in its sums."""

    name: str
    call: Callable[[Inputs], torch.Tensor]
    exact: Callable[[Exact], np.ndarray]
    depth: int


def _differences(values: Exact) -> np.ndarray:
    return np.abs(values["x"][:, None] - values["y"][None])


def _gaussian(values: Exact) -> np.ndarray:
    return np.exp(-(_differences(values) ** 2).sum(-1) / 18)


def _gradient(values: Inputs) -> torch.Tensor:
    x = values["x"].clone().requires_grad_()
    cdist(x, values["y"], p=3, root=False).sum().backward()
    assert x.grad is not None
    return x.grad


def _cubes(values: Exact) -> np.ndarray:
    return (3 * np.sign(values["x"][:, None] - values["y"][None]) * _differences(values) ** 2).sum(1)


def _sparse(values: Exact) -> np.ndarray:
    halves = zip(np.split(values["x"], 2, 1), values["w"][..., 0], strict=True)
    return np.concatenate([rows @ block.T for rows, block in halves], 1)


def _system(values: Exact) -> np.ndarray:
    return values["a"] @ values["a"].T + K * np.eye(K)


CHECKS = (
    Check("distances", lambda g: cdist(g["x"], g["y"], p=1.3, root=False),
          lambda e: (_differences(e) ** 1.3).sum(-1), K),
    Check("min-plus product", lambda g: contract("mk,nk->mn", lambda a, b: a + b, g["x"], g["y"], reduce="min"),
          lambda e: (e["x"][:, None] + e["y"][None]).min(-1), 1),
    Check("gradient", _gradient, _cubes, N),
    Check("kernel matrix", lambda g: CONSTRUCTORS["Gaussian"](3.0)(g["x"], g["y"]), _gaussian, K),
    Check("kernel product", lambda g: CONSTRUCTORS["Gaussian"](3.0).matmul(g["x"], g["y"], g["v"]),
          lambda e: _gaussian(e) @ e["v"], K * N),
    Check("neighbours", lambda g: argkmin(g["x"], g["y"], 3, metric="cityblock"),
          lambda e: _differences(e).sum(-1).argsort(1)[:, :3], 1),
    Check("Kronecker product", lambda g: kron_matmul(g["x"], [g["f"], g["f"][:4, :4]]),
          lambda e: e["x"] @ np.kron(e["f"], e["f"][:4, :4]), K),
    Check("Kronecker-sparse", lambda g: kron_sparse_matmul(g["x"], [g["w"]]), _sparse, K),
    Check("linear system", lambda g: solve_cholesky(g["a"] @ g["a"].mT + K * torch.eye(K).to(g["a"]), g["v"][:K]).x,
          lambda e: np.linalg.solve(_system(e), e["v"][:K]), K * K),
)  # fmt: skip


def inputs(device: str) -> Inputs:
    """Return small random arrays."""
    source = torch.Generator().manual_seed(0)
    sizes = {"x": (M, K), "y": (N, K), "v": (N, 2), "f": (6, 6), "w": (2, 12, 12, 1), "a": (K, K)}
    return {name: torch.randn(size, generator=source).to(device) for name, size in sizes.items()}


def outcome(check: Check, device: str) -> str:
    """Return what came of a check on a device: "agrees", or why not."""
    values = inputs(device)
    exact = check.exact({name: value.double().cpu().numpy() for name, value in values.items()})
    try:
        found = check.call(values)
    except (KernmantleError, ImportError, OSError, RuntimeError) as error:
        return f"no: {str(error).splitlines()[0]}"
    try:
        assert_close(found, exact, depth=check.depth)
    except AssertionError as error:
        return f"wrong: {error}"
    return "agrees"


def devices() -> list[str]:
    """Return the CPU and every GPU that torch finds."""
    return ["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]


def results(checks: Sequence[Check] = CHECKS) -> list[tuple[str, list[str]]]:
    """Return every check with its outcome on each device."""
    return [(check.name, [outcome(check, device) for device in devices()]) for check in checks]
