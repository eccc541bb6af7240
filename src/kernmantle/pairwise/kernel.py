"""Kernels: one fused contraction each, however they are composed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from types import MappingProxyType
from typing import Any

import torch

from ..errors import ParameterError
from ..torch_ops.info import RunInfos
from . import bias
from . import matrix as apply
from .assign import assign
from .bound import classes_of
from .hyperparameters import shown, value_of
from .kernel_algebra import ATOM, Algebra, bracketed
from .kernel_form import Form, gram, is_stationary, is_symmetric, own_form, swapped
from .kernel_gradients import PredictorGradients
from .kernel_inputs import Call, Value, direct_operands, prepare
from .kernel_products import Products
from .kernel_text import as_text, of_text, plain
from .transform import check_transform, composed


class Kernel(Products, PredictorGradients, Algebra):
    """A kernel k(x, y) of rows, ``epilogue(reduce(map(x, y)))``, evaluated in one fused pass.

    Kernels add, multiply, scale and take powers: ``0.5 * km.Gaussian(3.0) + km.Matern(2.0) ** 2`` is one kernel
    again, whose sums are taken in one pass and once where they are equal. The named ones are
    ``km.Laplace, km.Gaussian, ...``; this class takes your own map.

    Parameters
    ----------
    map : callable
        Lambda of an entry of x, one of y and hyperparameters by name; summed over the columns. May return a tuple.
    epilogue, reduce
        As of :class:`Contraction`: a lambda of the sums and hyperparameters; "sum" by default.
    **hyperparameters : number or tensor
        Their values: 0-d, or a batch of any shape. Tensors may require a gradient.

    Raises
    ------
    TraceError, ParameterError
        For lambdas that cannot be traced, and names that do not fit.

    Examples
    --------
    >>> import kernmantle as km, numpy as np
    >>> hat = km.Kernel(lambda x, y, width: km.maximum(1 - abs(x - y) / width, 0), width=2.0)
    >>> hat(np.array([[0.0], [1.0]]))
    array([[1. , 0.5],
           [0.5, 1. ]])
    """

    __slots__ = ("_classes", "_form", "_infos", "_level", "_named", "_text", "_transform", "_values", "_weights")
    __array_ufunc__ = None

    def __init__(
        self,
        map: Callable[..., Any],
        epilogue: Callable[..., Any] | None = None,
        *,
        reduce: Any = "sum",
        **hyperparameters: Any,
    ) -> None:
        own = own_form(map, reduce, epilogue)
        hyper = {**dict(own.defaults), **hyperparameters}
        unknown = next((name for name in hyperparameters if name not in own.parameters), None)
        if unknown is not None:
            listing = ", ".join(own.parameters) or "none"
            raise ParameterError(f"unknown hyperparameter {unknown!r}; the lambdas have {listing}")
        missing = next((name for name in own.parameters if name not in hyper), None)
        if missing is not None:
            raise ParameterError(f"hyperparameter {missing!r} is missing: pass it by name")
        values = {name: value_of(hyper[name], name) for name in own.parameters}
        used = {name: values[name] for name in own.form.parameters}
        text = "" if torch.compiler.is_compiling() else ", ".join(f"{name}={shown(used[name])}" for name in used)
        self._set(own.form, used, {}, f"Kernel({text})", ATOM)

    def _set(
        self, form: Form, values: Mapping[str, Value], weights: Mapping[str, torch.Tensor], text: str, level: int,
        transform: torch.Tensor | None = None, named: bool = False,
    ) -> None:  # fmt: skip
        self._form, self._text, self._level, self._transform, self._named = form, text, level, transform, named
        self._values, self._weights, self._infos = dict(values), dict(weights), RunInfos()
        self._classes = classes_of(self._values)

    def __getattr__(self, name: str) -> Any:
        """The value of a hyperparameter of your own maps, or of a composed kernel, by its name."""
        if not name.startswith("_"):
            found = self.hyperparameters
            if name in found:
                return found[name]
            listing = f"its hyperparameters are {', '.join(found)}" if found else "it has no hyperparameters"
            listing = "k.operator(x).diagonal() is that of its matrix" if name in ("diag", "diagonal") else listing
            raise AttributeError(f"{self!r} has no attribute {name!r}; {listing}", name=name, obj=self)
        raise AttributeError(name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Change a hyperparameter of this kernel; kernels that were made of it before keep their own."""
        if name in Kernel.__slots__:
            object.__setattr__(self, name, value)
        else:
            assign(self, name, value)

    @staticmethod
    def made(
        form: Form, values: Mapping[str, Value], weights: Mapping[str, torch.Tensor], text: str, level: int = ATOM,
        transform: torch.Tensor | None = None, named: bool = False,
    ) -> Kernel:  # fmt: skip
        """A kernel of a form and the values of its parameters and weights; ``named`` is that of ``is_similarity``."""
        self = Kernel.__new__(Kernel)
        self._set(form, values, weights, text, level, transform, named)
        return self

    def _like(self, form: Form, text: str, level: int, values: Mapping[str, Value] | None = None) -> Kernel:
        own = self._values if values is None else values
        return Kernel.made(form, own, self._weights, text, level, self._transform, self._named)

    def __reduce__(self) -> tuple[Any, ...]:
        own = self._form, self._values, self._weights, self._text, self._level, self._transform, self._named
        return Kernel.made, own

    def __getstate__(self) -> dict[str, Any]:
        """Numbers, texts and arrays, for libraries that store no code; pickle and copy take ``__reduce__``."""
        state = {name: plain(values) for name, values in (("values", self._values), ("weights", self._weights))}
        return state | {
            "form": as_text(self._form), "transform": plain({"": self._transform})[""], "text": self._text,
            "level": self._level, "named": self._named,
        }  # fmt: skip

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        values, weights = (
            {name: value if isinstance(value, str) else value_of(value, name) for name, value in state[part].items()}
            for part in ("values", "weights")
        )
        transform = None if state["transform"] is None else value_of(state["transform"], "transform")
        self._set(
            of_text(state["form"]), values, weights,  # pyright: ignore[reportArgumentType]
            state["text"], state["level"], transform, state["named"],
        )  # fmt: skip

    def __repr__(self) -> str:
        return self._text

    @property
    def hyperparameters(self) -> Mapping[str, Any]:
        """Values of the hyperparameters by name; one that two parts share ends in a number, as ``bandwidth_2``."""
        lengths = {f"lengthscales{'' if i == 0 else f'_{i + 1}'}": w for i, w in enumerate(self._weights.values())}
        seen = {} if self._transform is None else {"transform": self._transform}
        return MappingProxyType({**self._values, **lengths, **seen})

    def get_params(self, deep: bool = True) -> dict[str, Any]:  # noqa: ARG002
        """Return the hyperparameters that can be set, for scikit-learn: ``kernel__bandwidth`` in a grid search.

        Parameters
        ----------
        deep : bool
            As scikit-learn passes it; a kernel holds no estimators, so that it changes nothing.

        Returns
        -------
        dict
            Values by the names of the hyperparameters.

        Examples
        --------
        >>> import kernmantle as km
        >>> km.Gaussian(2.0).get_params()
        {'bandwidth': 2.0}
        """
        return {name: value for name, value in self.hyperparameters.items() if name != "transform"}

    def set_params(self, **params: Any) -> Kernel:
        """Set hyperparameters by name and return the kernel itself, as scikit-learn's grid search does.

        Parameters
        ----------
        **params : number or tensor
            New values by the names of the hyperparameters.

        Returns
        -------
        Kernel
            This kernel; others that were made of it before keep their own values.

        Raises
        ------
        AttributeError
            For a name that is no hyperparameter of it.
        ParameterError
            For a value that is no number or outside of its range.

        Examples
        --------
        >>> import kernmantle as km
        >>> km.Gaussian(2.0).set_params(bandwidth=3.0)
        Gaussian(bandwidth=3.0)
        """
        for name, value in params.items():
            setattr(self, name, value)
        return self

    def __sklearn_clone__(self) -> Kernel:
        return deepcopy(self)

    @property
    def form(self) -> Form:
        """The expressions, apart from their values."""
        return self._form

    @property
    def is_symmetric(self) -> bool:
        """Return whether the expressions prove that k(x, y) = k(y, x)."""
        return is_symmetric(self._form)

    @property
    def is_stationary(self) -> bool:
        """Return whether k(x, y) is seen to depend on x - y alone."""
        return is_stationary(self._form)

    @property
    def is_similarity(self) -> bool:
        """Return whether it is made of named kernels, larger where rows are nearer; unknown for your own maps."""
        return self._named

    @property
    def transform(self) -> torch.Tensor | None:
        """The matrix that rows are multiplied by first, (k, r) or (k,); None for none."""
        return self._transform

    @property
    def info(self) -> str:
        """The map, the epilogue, and the backends of its last matrix and products."""
        return "\n".join([gram(self._form).described(self._infos.matrix), *self._infos.described()])

    def prepared(self, x: Any, y: Any, precision: str | None = None, **extra: Any) -> tuple[Call, list[torch.Tensor]]:
        """Return the rows and further arrays, checked and placed on tensors."""
        return prepare(self._form, self._values, self._weights, x, y, extra, precision, self._transform, self._infos)

    def _tabled(
        self, x: Any, y: Any, table: Any, precision: str | None = None, **extra: Any
    ) -> tuple[Call, list[torch.Tensor]]:
        if table is None:
            return self.prepared(x, y, precision, **extra)
        call, (entries, *others) = self.prepared(x, y, precision, table=table, **extra)
        return bias.with_table(call, entries), others

    def __call__(
        self,
        x: Any,
        y: Any = None,
        *,
        out: Any = None,
        diagonal: Any = None,
        offsets: tuple[int, int] = (0, 0),
        table: Any = None,
        precision: str | None = None,
    ) -> Any:
        """Return the matrix k(x, y) of all pairs of rows.

        ``result[i, j] = k(x_i, y_j) + diagonal [i + offsets[0] = j + offsets[1]]``.

        Parameters
        ----------
        x : array, shape (..., m, k)
            Tensor, numpy or DLPack array. Batch axes on the left broadcast with each other and with those of
            the hyperparameters.
        y : array, shape (..., n, k), optional
            By default ``x``, for half the work.
        out : array, shape (..., m, n), optional
            Written in place.
        diagonal : number or tensor, optional
            Added where row and column have the same index, for example a regularisation.
        offsets : pair of int
            Indices of the first row of x and of y, when they are blocks of larger arrays.
        table : array, shape (..., m, n), optional
            Added to the sum over the columns, before anything is made of it: a term that is known for every pair,
            as the distances between categories, ``distances[codes_x][:, codes_y]``.
        precision : {None, "ieee", "tf32", "half"}
            Arithmetic of recognised matrix products; "half" sums |x - y| of float16 rows in pairs, to 0.25 %.

        Returns
        -------
        array, shape (..., m, n)
            Of the kind and dtype of x; integers are computed and returned as floating point.

        Raises
        ------
        ShapeError, DtypeError, DeviceError
            For arrays whose columns or batch axes do not fit, that are complex, or that lie on several devices.
        ParameterError
            For an unknown precision, and a batch of lengths where one length for each column may be meant.
        OutputError, GradientError
            For ``out`` of another shape or dtype, or in memory that is read, and where a gradient is recorded.

        Notes
        -----
        One pass over the pairs, memory of inputs and result and at most 1 MB. Gradients of every order exist for x, y,
        a table and the hyperparameters.

        Examples
        --------
        >>> import kernmantle as km, numpy as np
        >>> km.Linear()(np.array([[1.0, 2.0]]), np.array([[3.0, 0.0], [0.0, 1.0]]))
        array([[3., 2.]])
        """
        if diagonal is None and table is None and self._transform is None:
            operands = direct_operands(self._form, self._values, self._weights, x, y)
            if operands is not None:
                return gram(self._form).run(operands, self._values, out, precision, self._infos.matrix)
        call, _ = self._tabled(x, y, table, precision)
        diagonal = None if diagonal is None else value_of(diagonal, "diagonal")
        return apply.dense(call, out, diagonal, offsets)

    def diagonal(self, x: Any) -> Any:
        """Return k(x_i, x_i) of every row, the diagonal of the matrix k(x, x).

        Parameters
        ----------
        x : array, shape (..., m, k)
            As of a call.

        Returns
        -------
        array, shape (..., m)

        Raises
        ------
        ShapeError, DtypeError
            As of a call.

        Notes
        -----
        One pass over the rows, memory of the result. Gradients of every order exist.

        Examples
        --------
        >>> import kernmantle as km, numpy as np
        >>> km.Linear().diagonal(np.array([[1.0, 2.0], [0.0, 3.0]]))
        array([5., 9.])
        """
        call, _ = self.prepared(x, None)
        return call.finished(call.diagonal())

    def transformed(self, matrix: Any) -> Kernel:
        """Return the kernel of rows that are multiplied by a matrix first, k(x @ matrix, y @ matrix).

        With the root of a positive matrix M, Euclidean distances become those of M, Σ_ij d_i M_ij d_j.

        Parameters
        ----------
        matrix : array, shape (k, r) or (k,)
            A vector is a diagonal matrix. May require a gradient. Gradients by rows are those of the rows before
            they are multiplied.

        Returns
        -------
        Kernel

        Raises
        ------
        ShapeError
            If the matrix has other axes; when called, if the rows do not have k columns.

        Notes
        -----
        A call costs a product of the rows with the matrix and memory for it. Gradients of every order exist for the
        matrix.

        Examples
        --------
        >>> import kernmantle as km, numpy as np
        >>> km.Linear().transformed(np.array([1.0, 10.0]))(np.array([[1.0, 1.0]]))
        array([[101.]])
        """
        chosen = check_transform(value_of(matrix, "matrix"))
        text = f"{bracketed(self, ATOM)}.transformed({shown(chosen)})"
        both = composed(chosen, self._transform)
        return Kernel.made(self._form, self._values, self._weights, text, ATOM, both, self._named)

    def of_transformed(self) -> Kernel:
        """Return the kernel of rows that have been multiplied by the transform already."""
        return Kernel.made(self._form, self._values, self._weights, self._text, self._level, None, self._named)

    def transposed(self) -> Kernel:
        """Return the kernel k(y, x), this one where it is symmetric.

        Returns
        -------
        Kernel
            Whose matrix of shape (n, m) is the transpose of this one's. It costs no pass, and gradients are those of
            the kernel it is made of.

        Examples
        --------
        >>> import kernmantle as km, numpy as np
        >>> below = km.Kernel(lambda x, y: km.maximum(x - y, 0))
        >>> below.transposed()(np.array([[1.0]]), np.array([[3.0]]))
        array([[2.]])
        """
        if self.is_symmetric:
            return self
        return self._like(swapped(self._form), f"{bracketed(self, ATOM)}.transposed()", ATOM)


def check_kernel(kernel: Any, name: str = "kernel") -> None:
    """Raise ParameterError for an argument that is no kernel."""
    if not isinstance(kernel, Kernel):
        own = kernel if isinstance(kernel, str) or callable(kernel) else type(kernel)
        shown = getattr(own, "__name__", repr(own))
        raise ParameterError(
            f"{name} must be a km.Kernel, not {shown}: call a constructor, as km.Gaussian(2.0), or make one of a "
            "function of your own, as km.Kernel(lambda a, b: a * b)"
        )
