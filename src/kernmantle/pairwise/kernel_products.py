"""Methods of a kernel that never store its matrix k(x, y): products, and reductions of its rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..compiler.row_reduce import PRODUCT
from ..errors import ShapeError
from ..torch_ops.call_key import find, find_by_key
from ..torch_ops.info import RunInfos
from ..torch_ops.scores import Scores
from . import bound, neighbours
from . import matrix as apply
from .hyperparameters import value_of
from .kernel_form import Form, gram
from .kernel_inputs import Call, Value
from .operator import Operator


def _check_vector(v: Any) -> None:
    if v is None:
        raise ShapeError("v must have a row for each row of y, it is None; k(x, y) is the matrix alone")


class Products:
    """Methods of a kernel whose results are smaller than its matrix; ``prepared`` and ``_tabled`` are the kernel's."""

    __slots__ = ()
    prepared: Callable[..., tuple[Call, list[torch.Tensor]]]
    _tabled: Callable[..., tuple[Call, list[torch.Tensor]]]
    _form: Form
    _values: dict[str, Value]
    _weights: dict[str, torch.Tensor]
    _infos: RunInfos
    _classes: tuple[Any, ...] | None
    _transform: torch.Tensor | None
    _text: str

    def matmul(
        self, x: Any, y: Any, v: Any, *, diagonal: Any = None, table: Any = None, precision: str | None = None,
        out: Any = None,
    ) -> Any:  # fmt: skip
        """Return ``k(x, y) @ v`` without storing the matrix k(x, y).

        ``result[i, c] = Σ_j k(x_i, y_j) v[j, c] + diagonal v[i, c]``.

        Parameters
        ----------
        x, y : array, shapes (..., m, k) and (..., n, k)
            As of a call; y None is x.
        v : array, shape (n,) or (..., n, c)
            Multiplied by the matrix; computed is in the widest dtype of x, y and v.
        diagonal : number or tensor, optional
            ``diagonal * v`` is added; x and y are then the same rows.
        table : array, shape (..., m, n), optional
            As of a call.
        precision : {None, "ieee", "tf32"}
            Arithmetic of recognised matrix products.
        out : array, optional
            Written to and returned, where no gradient is recorded.

        Returns
        -------
        array, shape (..., m) for a vector, else (..., m, c)
            Of the kind of x.

        Raises
        ------
        ShapeError
            For columns of x and y, or rows of v, a table or a diagonal, that do not fit.
        OutputError, GradientError
            For ``out`` of another shape or dtype, or in memory that is read, and where a gradient is recorded.

        Notes
        -----
        One pass over the pairs: ``m n`` values of the kernel and ``2 m n c`` operations, memory of inputs and result
        and at most 64 MB. Gradients of every order exist for x, y, v and the hyperparameters, from blocks of the
        matrix that are computed again, 64 MB at a time, 256 MB on GPUs. Halves are multiplied and summed in float32.
        ``k.info`` says what ran.

        Examples
        --------
        >>> import kernmantle as km, numpy as np
        >>> km.Linear().matmul(np.array([[1.0, 2.0]]), np.array([[3.0, 0.0], [0.0, 1.0]]), np.array([1.0, 10.0]))
        array([23.])
        """
        if table is None and diagonal is None:
            return self._reduced(PRODUCT, x, y, v, precision, out)
        _check_vector(v)
        call, (vector,) = self._tabled(x, y, table, precision, v=v)
        return apply.matmul(call, vector, None if diagonal is None else value_of(diagonal, "diagonal"), out)

    def _reduced(self, how: str, x: Any, y: Any, v: Any = None, precision: str | None = None, out: Any = None) -> Any:
        """Return the product with v, or a reduction of the rows: a bound call, or after all checks."""
        form, classes, weights, key, plan = self._form, self._classes, self._weights, None, None
        if classes is not None and self._transform is None and not torch.compiler.is_compiling():
            tensors = [each for each in (x, y, v, out, *weights.values()) if each is not None]
            call = form.key, classes, how, precision, y is None, v is None, out is None
            plan = find(call, tensors)
            if plan is None:
                key = bound.key_of(form, classes, weights, how, x, y, v, precision, out)
                plan = find_by_key(key, call, tensors)
        if plan is not None:
            self._infos.of(how).route = plan.route
            return plan((x, y, v, weights), self._values, () if out is None else (out,))
        if how == PRODUCT:
            _check_vector(v)
        call, others = self.prepared(x, y, precision, **({} if how != PRODUCT else {"v": v}))
        result = apply.matmul(call, *others, out=out) if how == PRODUCT else call.finished(apply.reduced(call, how))
        bound.bind(key, form, self._values, weights, how, x, y, v, precision, out)
        return result

    def sum(self, x: Any, y: Any = None) -> Any:
        """Return the sum of every row of k(x, y) without storing the matrix.

        ``result[i] = Σ_j k(x_i, y_j)``.

        Parameters
        ----------
        x, y : array, shapes (..., m, k) and (..., n, k)
            As of a call; y None is x.

        Returns
        -------
        array, shape (..., m)
            Of the kind and dtype of x; 0 where y has no rows.

        Raises
        ------
        ShapeError, DtypeError
            For rows whose columns or batch axes do not fit, and for complex ones.

        Notes
        -----
        One pass over the pairs, memory of inputs and result and at most 64 MB. Gradients of every order exist
        for x, y and the hyperparameters.

        Examples
        --------
        >>> import kernmantle as km, numpy as np
        >>> x, y = np.array([[1.0], [2.0]]), np.array([[3.0], [5.0]])
        >>> km.Linear().sum(x, y)
        array([ 8., 16.])
        """
        return self._reduced("sum", x, y)

    def max(self, x: Any, y: Any = None) -> Any:
        """Return the largest value of every row of k(x, y) without storing the matrix.

        ``result[i] = max_j k(x_i, y_j)``.

        Parameters
        ----------
        x, y : array, shapes (..., m, k) and (..., n, k)
            As of a call; y None is x.

        Returns
        -------
        array, shape (..., m)
            Of the kind and dtype of x; -inf where y has no rows.

        Raises
        ------
        ShapeError, DtypeError
            For rows whose columns or batch axes do not fit, and for complex ones.

        Notes
        -----
        One pass over the pairs, memory of inputs and result and at most 64 MB. The gradient goes to the largest
        value; values that tie share it equally.

        Examples
        --------
        >>> import kernmantle as km, numpy as np
        >>> x, y = np.array([[1.0], [2.0]]), np.array([[3.0], [5.0]])
        >>> km.Linear().max(x, y)
        array([ 5., 10.])
        """
        return self._reduced("max", x, y)

    def min(self, x: Any, y: Any = None) -> Any:
        """Return the smallest value of every row of k(x, y) without storing the matrix.

        ``result[i] = min_j k(x_i, y_j)``.

        Parameters
        ----------
        x, y : array, shapes (..., m, k) and (..., n, k)
            As of a call; y None is x.

        Returns
        -------
        array, shape (..., m)
            Of the kind and dtype of x; inf where y has no rows.

        Raises
        ------
        ShapeError, DtypeError
            For rows whose columns or batch axes do not fit, and for complex ones.

        Notes
        -----
        One pass over the pairs, memory of inputs and result and at most 64 MB. The gradient goes to the smallest
        value; values that tie share it equally.

        Examples
        --------
        >>> import kernmantle as km, numpy as np
        >>> x, y = np.array([[1.0], [2.0]]), np.array([[3.0], [5.0]])
        >>> km.Linear().min(x, y)
        array([3., 6.])
        """
        return self._reduced("min", x, y)

    def logsumexp(self, x: Any, y: Any = None) -> Any:
        """Return the logarithm of the sum of exponentials of every row of k(x, y) without storing the matrix.

        ``result[i] = log Σ_j exp(k(x_i, y_j))``, without overflow: the largest value of a row is subtracted first.

        Parameters
        ----------
        x, y : array, shapes (..., m, k) and (..., n, k)
            As of a call; y None is x.

        Returns
        -------
        array, shape (..., m)
            Of the kind and dtype of x; -inf where y has no rows.

        Raises
        ------
        ShapeError, DtypeError
            For rows whose columns or batch axes do not fit, and for complex ones.

        Notes
        -----
        One pass over the pairs, memory of inputs and result and at most 64 MB. Gradients of every order exist
        for x, y and the hyperparameters; where every value is -inf they are 0.

        Examples
        --------
        >>> import kernmantle as km, numpy as np
        >>> x, y = np.array([[1.0], [2.0]]), np.array([[3.0], [5.0]])
        >>> km.Linear().logsumexp(x, y).round(4)
        array([ 5.1269, 10.0181])
        """
        return self._reduced("logsumexp", x, y)

    def argkmax(self, x: Any, y: Any = None, count: int = 1, *, return_values: bool = False) -> Any:
        """Return the indices of the rows of y with the largest k(x, y), for every row of x.

        Parameters
        ----------
        x, y : array, shapes (..., m, k) and (..., n, k)
            As of a call; y None is x, whose rows then find themselves too.
        count : int
            Rows of y to find, from 1 to n.
        return_values : bool
            Whether the values are returned as well.

        Returns
        -------
        array of int64, shape (..., m, count), or the pair (values, indices)
            The largest first; of equal values any may come first.

        Raises
        ------
        ParameterError
            For a count that is not an integer from 1 to n.
        ShapeError, DtypeError
            As of :meth:`sum`.
        GradientError
            Where a gradient is recorded and indices alone are asked for.

        Notes
        -----
        One pass over the pairs, memory of inputs and result and at most 64 MB. The values have gradients, the
        indices have none: asking for them alone while one is recorded is an error.

        Examples
        --------
        >>> import kernmantle as km, numpy as np
        >>> x, y = np.array([[0.0], [2.2]]), np.array([[0.0], [2.0], [4.0]])
        >>> km.Gaussian(1.0).argkmax(x, y, 2)
        array([[0, 1],
               [1, 2]])
        """
        call, _ = self.prepared(x, y)
        return neighbours.nearest_of(call, count, True, return_values)

    def argkmin(self, x: Any, y: Any = None, count: int = 1, *, return_values: bool = False) -> Any:
        """Return the indices of the rows of y with the smallest k(x, y), for every row of x.

        Parameters
        ----------
        x, y, count, return_values
            As of :meth:`argkmax`.

        Returns
        -------
        array of int64, shape (..., m, count), or the pair (values, indices)
            The smallest first; of equal values any may come first.

        Raises
        ------
        ParameterError, ShapeError, DtypeError
            As of :meth:`argkmax`.

        Notes
        -----
        Cost and gradients are those of :meth:`argkmax`.

        Examples
        --------
        >>> import kernmantle as km, numpy as np
        >>> km.Gaussian(1.0).argkmin(np.array([[0.0]]), np.array([[0.0], [2.0], [4.0]]), 2)
        array([[2, 1]])
        """
        call, _ = self.prepared(x, y)
        return neighbours.nearest_of(call, count, False, return_values)

    def lazy(self, x: Any, y: Any = None, *, table: Any = None) -> Scores:
        """Return ``k(x, y)`` as scores that are not stored, an operand of :func:`contract`.

        Parameters
        ----------
        x, y : array, shapes (..., m, k) and (..., n, k)
            As of a call; y None is x.
        table : array, shape (..., m, n), optional
            As of a call.

        Returns
        -------
        Scores
            Whose rows contractions reduce in the pass that computes them, with gradients of every order.

        Raises
        ------
        ShapeError, DtypeError
            As of a call, at once.

        Notes
        -----
        Nothing is computed here, and no memory is taken besides the inputs.

        Examples
        --------
        >>> import kernmantle as km, numpy as np
        >>> scores = km.Gaussian(1.0).lazy(np.zeros((1, 2)), np.ones((3, 2)))
        >>> km.contract("mn,n->m", lambda k, w: km.log(k) * w, scores, np.array([1.0, 0.0, 2.0]))
        array([-3.])
        """
        call, _ = self._tabled(x, y, table)
        arguments, shape = (
            call.kernel_inputs(call.x, call.y, call.shared),
            (*call.batch, call.x.shape[-2], call.y.shape[-2]),
        )
        return Scores(gram(call.form), x, arguments.operands, arguments.parameters, shape, self._text)

    def operator(self, x: Any, y: Any = None, *, diagonal: Any = None) -> Operator:
        """Return ``k(x, y)``, with ``diagonal`` added, as a linear operator that never stores it.

        Parameters
        ----------
        x, y : array, shapes (..., m, k) and (..., n, k)
            As of a call; y None is x.
        diagonal : number or tensor, optional
            Added where row and column have the same index; x and y are then the same rows.

        Returns
        -------
        Operator
            With ``@``, ``.T``, ``matvec`` and ``rmatvec``: for iterative solvers of scipy and of this library.

        Raises
        ------
        ShapeError, DtypeError
            As of a call, at once.

        Notes
        -----
        A product costs what :meth:`matmul` costs, and has its gradients.

        Examples
        --------
        >>> import kernmantle as km, numpy as np
        >>> km.Linear().operator(np.array([[1.0], [2.0]]), diagonal=1.0) @ np.array([1.0, 0.0])
        array([2., 2.])
        """
        return Operator(self, x, y, diagonal)  # pyright: ignore[reportArgumentType]
