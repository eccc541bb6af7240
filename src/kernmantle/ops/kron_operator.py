"""The torch operator ``kernmantle::kron``: autograd-free, the product's axes given by their text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..config import current
from .kron_execute import Number, execute, out_shape

LIBRARY = torch.library.Library("kernmantle", "FRAGMENT")
LIBRARY.define(
    "kron(Tensor x, Tensor[] factors, Tensor? y, Scalar alpha, Scalar beta, str modes, str options) -> Tensor"
)


def _run(
    x: torch.Tensor, factors: list[torch.Tensor], y: torch.Tensor | None,
    alpha: Number, beta: Number, modes: str, options: str,
) -> torch.Tensor:  # fmt: skip
    return execute(modes, configured(options), (alpha, beta), x, factors, y)


def configured(options: str) -> str:
    """Return options with the precision in force where a traced call, which cannot read it, left that open."""
    precision, fuse = options.split(" ")
    return f"{current().precision or precision} {fuse}" if precision == "default" else options


for _key in ("CPU", "CUDA"):
    LIBRARY.impl("kron", _run, _key)


@torch.library.register_fake("kernmantle::kron", lib=LIBRARY)
def _fake(
    x: torch.Tensor, factors: list[torch.Tensor], y: torch.Tensor | None,
    alpha: Number, beta: Number, modes: str, options: str,
) -> torch.Tensor:  # fmt: skip
    return x.new_empty(out_shape(modes, x, factors, y))


def _vmap(
    info: Any, in_dims: Any, x: torch.Tensor, factors: list[torch.Tensor], y: torch.Tensor | None,
    alpha: Number, beta: Number, modes: str, options: str,
) -> tuple[torch.Tensor, int]:  # fmt: skip
    given: list[torch.Tensor] = [x, *factors] if y is None else [x, *factors, y]
    dims: Sequence[int | None] = [in_dims[0], *in_dims[1]] if y is None else [in_dims[0], *in_dims[1], in_dims[2]]
    rank = max(tensor.dim() - (dim is not None) for tensor, dim in zip(given, dims, strict=True))
    moved = [
        tensor if dim is None else _front(tensor.movedim(dim, 0), rank) for tensor, dim in zip(given, dims, strict=True)
    ]
    last = None if y is None else moved.pop()
    return kron(moved[0], moved[1:], last, alpha, beta, modes, options), 0


def _front(tensor: torch.Tensor, rank: int) -> torch.Tensor:
    """A tensor whose mapped axis is first, with 1-axes behind it so that all batch axes align."""
    return tensor.reshape(tensor.shape[0], *(1,) * (rank + 1 - tensor.dim()), *tensor.shape[1:])


torch.library.register_vmap("kernmantle::kron", _vmap, lib=LIBRARY)

kron = torch.ops.kernmantle.kron.default
