"""Scores: a contraction over two axes, bound to its operands and not evaluated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch

from ..arrays import dtype_name, is_numpy_like, unwrap
from ..ir.definition import Definition
from ..ir.nested import ROW_REDUCTIONS


class Evaluated(Protocol):
    """The interface of a contraction that scores use."""

    definition: Definition
    text: str

    def __call__(self, *operands: Any, out: Any = None, precision: str | None = None, params: Any = None) -> Any:
        """Evaluate on operands."""
        ...


class Scores:
    """A contraction over two axes that is bound to its operands and not evaluated: a matrix that is never stored.

    :meth:`Contraction.lazy` and :meth:`Kernel.lazy` make them. As an operand of :func:`contract` or of a contraction
    their rows are reduced in the pass that computes them,
    ``out[m, c] = ⊕_n f(s[m, n], row and column operands, table) · v[n, c]``. The page "Scores and rows" has a table of
    the reductions.

    Parameters
    ----------
    contraction, first, operands, parameters, shape, text
        Set by :meth:`Contraction.lazy` and :meth:`Kernel.lazy`.

    Attributes
    ----------
    shape : tuple of int
        Batch axes, rows, columns.
    dtype : numpy or torch dtype
        That of the operands, of their kind.
    device : torch.device
        Where the operands are.

    Raises
    ------
    EquationError
        In a contraction that is not a row reduction; the message says what is, or to call :meth:`evaluate`.

    Notes
    -----
    Scores keep references to their operands and nothing else. Gradients flow to the operands and parameters through
    every contraction that takes the scores.

    Examples
    --------
    >>> import kernmantle as km, numpy as np
    >>> scores = km.Contraction("mk,nk->mn", lambda a, b: a * b).lazy(np.eye(2), np.array([[1.0, 2.0], [3.0, 0.0]]))
    >>> scores.shape
    (2, 2)
    >>> km.contract("mn->m", lambda s: s, scores, reduce="max")
    array([3., 2.])
    """

    __array_ufunc__ = None

    def __init__(
        self, contraction: Evaluated, first: Any, operands: Sequence[torch.Tensor], parameters: Mapping[str, Any],
        shape: tuple[int, ...], text: str = "",
    ) -> None:  # fmt: skip
        self.contraction, self.first, self.operands, self.parameters = contraction, first, operands, parameters
        self.shape, self._text = shape, text

    @property
    def dtype(self) -> Any:
        """Type of the operands."""
        dtype = self.operands[0].dtype
        return np.dtype(dtype_name(dtype)) if is_numpy_like(self.first) else dtype

    @property
    def device(self) -> torch.device:
        """Device of the operands."""
        return self.operands[0].device

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    def __getattr__(self, name: str) -> Any:
        """Raise AttributeError for attributes of a matrix that scores lack, and say how their rows are reduced."""
        hint = ""
        if name in ROW_REDUCTIONS:
            hint = f': km.contract("mn->m", lambda s: s, scores, reduce={name!r}) reduces their rows'
        raise AttributeError(f"scores have no attribute {name!r}{hint}", name=name, obj=self)

    def __matmul__(self, v: Any) -> Any:
        """Raise an error for ``@``: a product with scores is a contraction."""
        raise TypeError(
            'scores are multiplied by km.contract("mn,nc->mc", lambda s, v: s * v, scores, v), without being stored'
        )

    def __repr__(self) -> str:
        shape = " x ".join(map(str, self.shape))
        return f"<{shape} scores of {self._text or repr(self.contraction)}>"

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        """Raise an error instead of storing the matrix: numpy would make an array of one object."""
        raise TypeError("scores store no entries; scores.evaluate() makes their matrix")

    def evaluate(self, *, out: Any = None, precision: str | None = None) -> Any:
        """Return the matrix itself, of the kind of the operands.

        Parameters
        ----------
        out : array, optional
            Written in place.
        precision : {None, "ieee", "tf32", "half"}
            As of a contraction.
        """
        names = self.contraction.definition.equation.names
        named = {name: t for name, t in zip(names, self.operands, strict=True) if name is not None}
        positional = [t for name, t in zip(names, self.operands, strict=True) if name is None]
        result = self.contraction(*positional, params={**self.parameters, **named}, out=out, precision=precision)
        return result if out is not None else unwrap(self.first)[1](result)
