"""Exported programs without operators of this library, for runtimes that have only torch's."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch

from ..torch_ops.torch_private import decomposition_of

_OPERATORS = {
    "contract": "torch_ops.operator", "apply": "torch_ops.row_reduce", "kron": "structured.kron.autograd",
    "kron_sparse": "structured.mode_product.torch_op", "kron_sparse_weight": "structured.mode_product.torch_op",
}  # fmt: skip


def decompositions() -> dict[Any, Callable[..., Any]]:
    """Return the decompositions of this library's operators into torch's, for ``run_decompositions``.

    A contraction stores every element of all its axes, m n k numbers for distances, a product with a kernel's matrix
    the matrix; products of matrices and Kronecker products stay products.

    Returns
    -------
    dict
        Operators and functions, to be added to ``torch.export.default_decompositions()``.

    Raises
    ------
    BackendError
        While a program is decomposed that has a :class:`kernmantle.Fold`.

    Notes
    -----
    ``torch.onnx.export(model, inputs, dynamo=True)`` takes them by itself. Arithmetic is torch's: results agree to
    rounding. Gradients are torch's too. Sizes may be dynamic.

    Examples
    --------
    >>> import torch, kernmantle as km
    >>> from kernmantle.integrations.export import decompositions
    >>> class Distances(torch.nn.Module):
    ...     def forward(self, x, y):
    ...         return km.cdist(x, y, p=1)
    >>> x, y = torch.zeros(2, 3), torch.ones(4, 3)
    >>> program = torch.export.export(Distances(), (x, y))
    >>> plain = program.run_decompositions(torch.export.default_decompositions() | decompositions())
    >>> any("kernmantle" in str(node.target) for node in plain.graph.nodes)
    False
    >>> plain.module()(x, y)[0]
    tensor([3., 3., 3., 3.])
    """
    for module in set(_OPERATORS.values()):
        import_module(f"kernmantle.{module}")
    return {getattr(torch.ops.kernmantle, name).default: decomposition_of(name) for name in _OPERATORS}
