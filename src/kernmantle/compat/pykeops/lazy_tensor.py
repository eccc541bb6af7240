"""The symbolic tensor: reductions over its rows or columns evaluate the formula that its arithmetic built."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...errors import ParameterError, ShapeError
from .arithmetic import LazyFormula
from .calls import Options, reduced
from .expression import Expression, Leaf, Map, Symbol, substituted
from .genred import bound, instantiated
from .operations import LEFT_OUT, OPERATIONS
from .reductions import Route
from .solve import UNKNOWN, System, solve_formula
from .variables import Alias, array_of, tensor_of


def _reduction(name: str, own: str) -> Callable[..., Any]:
    def method(self: Any, axis: Any = None, dim: Any = None, **options: Any) -> Any:
        return self.reduction(name, axis=axis, dim=dim, **options)

    method.__name__ = own
    method.__doc__ = f"Return the reduction ``{name}`` over i or j."
    return method


def _counted(name: str, own: str) -> Callable[..., Any]:
    def method(self: Any, K: int, axis: Any = None, dim: Any = None, **options: Any) -> Any:
        return self.reduction(name, opt_arg=K, axis=axis, dim=dim, **options)

    method.__name__ = own
    method.__doc__ = f"Return the reduction ``{name}`` over i or j, with K entries a row."
    return method


def _either(name: str, own: str) -> Callable[..., Any]:
    """Return a method that reduces over i or j, or, by default, over the components."""

    def method(self: Any, axis: int = -1, dim: Any = None, **options: Any) -> Any:
        axis = axis if dim is None else dim
        if axis in (-1, self.dim() - 1):
            return self._of(OPERATIONS[name])
        return self.reduction(name, axis=axis, **options)

    method.__name__ = own
    method.__doc__ = f"Return ``{name}`` over the components, or its reduction over i or j."
    return method


class GenericLazyTensor(LazyFormula):
    """A tensor of shape (*batch, M, N, D) by a formula of its entries, which is evaluated when it is reduced.

    Parameters
    ----------
    x : array, number, list of numbers or tuple of three integers
        An array (..., M, 1, D), (..., 1, N, D) or (..., 1, 1, D), or (M, D) with ``axis``; numbers are parameters;
        three integers are the position, the dimension and the axis of a variable that calls give.
    axis : int, optional
        0 for (M, D), 1 for (N, D).

    Raises
    ------
    ShapeError, DtypeError, ParameterError
        For arrays that are no variables, and for operations that are left out, with what to do instead.

    Notes
    -----
    The methods are those of KeOps; reductions over i and j return arrays of the same kind, with gradients of every
    order. Nothing of the size M N is stored, but by formulas with one reduction of components inside another, which
    are evaluated in blocks of rows. ``info`` says what the last reduction ran as.

    Examples
    --------
    >>> import torch
    >>> from kernmantle.compat.pykeops.torch import LazyTensor
    >>> x = torch.tensor([[0.0], [1.0]])
    >>> distance = (LazyTensor(x[:, None, :]) - LazyTensor(x[None, :, :])).abs().sum(-1)
    >>> distance.sum(dim=1)
    tensor([[1.],
            [1.]])
    """

    def reduction(
        self, reduction_op: str, other: Any = None, opt_arg: Any = None, axis: Any = None, dim: Any = None,
        call: bool = True, is_complex: Any = None, **options: Any,
    ) -> Any:  # fmt: skip
        """Return a reduction by its name; of a symbolic formula, a LazyTensor that is called with the variables."""
        if is_complex:
            raise ParameterError(f"complex reductions are not supported: {LEFT_OUT['Real2Complex']}")
        axis = dim if axis is None else axis
        if axis is None or axis - self.nbatchdims not in (0, 1):
            first = self.nbatchdims
            raise ParameterError(f"{reduction_op} reduces over axis {first} (i) or {first + 1} (j); got {axis}")
        weights = None if other is None else self._operand(other)
        result = self._joined(self._e, [] if weights is None else [weights])
        result.reduction_op = reduction_op
        result._call = weights, opt_arg, axis - self.nbatchdims, options, self
        Options.of(options)
        symbolic = self._e.symbols or (weights is not None and weights._e.symbols)
        return result if symbolic or not call else result()

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Return the reduction or solution for the arrays of the symbolic variables, by position."""
        if self.reduction_op is None:
            raise ParameterError("a LazyTensor is called once it is a reduction of a symbolic formula")
        weights, opt_arg, axis, before, source = self._call
        formula, weights = self.formula, None if weights is None else weights.formula
        if self.reduction_op == "Solve":
            return self._solved(args, {**before, **options})
        symbolic = args or formula.symbols or (weights is not None and weights.symbols)  # pyright: ignore[reportOptionalMemberAccess]
        values = bound(_variables(formula, weights), args, f"this {self.reduction_op}") if symbolic else {}
        route = Route()
        result = reduced(
            instantiated(formula, values), self.reduction_op, axis,  # pyright: ignore[reportArgumentType]
            Options.of({**before, **options}, self.ranges),
            weights=None if weights is None else instantiated(weights, values), count=opt_arg, route=route,
        )  # fmt: skip
        self.info = source.info = str(route)
        return self._wrap(result)

    def sum_reduction(self, axis: Any = None, dim: Any = None, **options: Any) -> Any:
        """Return the sum over i or j."""
        return self.reduction("Sum", axis=axis, dim=dim, **options)

    def logsumexp(self, axis: Any = None, dim: Any = None, weight: Any = None, **options: Any) -> Any:
        """Return log Σ exp(x) weight over i or j."""
        weight = options.pop("other", weight)
        return self.reduction("LogSumExp", other=weight, axis=axis, dim=dim, **options)

    def sumsoftmaxweight(self, weight: Any, axis: Any = None, dim: Any = None, **options: Any) -> Any:
        """Return Σ exp(x) weight / Σ exp(x) over i or j."""
        return self.reduction("SumSoftMaxWeight", other=weight, axis=axis, dim=dim, **options)

    # Linear operators

    def __matmul__(self, v: Any, **options: Any) -> Any:
        if self.ndim != 1:
            raise ShapeError(f"K @ v is for scalar formulas; K has shape {self._shape}")
        tensor = tensor_of(v)
        columns = tensor.unsqueeze(-1) if tensor.dim() == 1 else tensor
        extent = self.nj or 1
        if columns.shape[-2] != extent:
            raise ShapeError(f"K has {extent} columns; v has shape {tuple(tensor.shape)}")
        product = self._joined(Map("mul", self._e, Leaf(columns, "j")))
        found = product.reduction("Sum", axis=product.nbatchdims + 1, **options)
        self.info = product.info
        return found[..., 0] if tensor.dim() == 1 else found

    def matvec(self, v: Any) -> Any:
        """Return the product with a vector."""
        return self @ v

    def rmatvec(self, v: Any) -> Any:
        """Return the product of the transposed matrix with a vector."""
        return self.T @ v

    def solve(self, other: Any, var: Any = None, call: bool = True, **options: Any) -> Any:
        """Return b with ``α b + Σ self b`` equal to ``other``, or with ``Σ self`` linear in a symbolic ``var``."""
        right = other if isinstance(other, GenericLazyTensor) else self.lt_constructor(other, 0)
        result = self._joined(self._e, [right])
        result.reduction_op = "Solve"
        result._call = None, (right, var), None, options, self
        return result() if call and not right._e.symbols else result

    def _solved(self, args: Any, options: dict[str, Any]) -> Any:
        right, var = self._call[1]
        alpha, eps = options.pop("alpha", 1e-10), options.pop("eps", 1e-6)
        settings = Options.of(options, self.ranges)
        formula = self.formula
        assert formula is not None
        unknown = None if var is None else var._e.position
        wanted = [own for own in _variables(formula, right._e) if own.position != unknown]
        values: dict[int, Leaf | None] = {**bound(wanted, args, "this system")}
        right_side = instantiated(right._e, values)
        if not isinstance(right_side, Leaf) or len(right_side.axes) != 1:
            raise ParameterError("the right-hand side of solve is one variable over i or j")
        axis = 1 - "ij".index("".join(right_side.axes))
        if unknown is None:
            formula = Map("mul", instantiated(formula, values), Symbol(UNKNOWN, right_side.dim, "ij"[axis]))
        else:
            formula = instantiated(formula, {**values, unknown: None})
        system = System(
            formula, "ij"[axis], lambda e: reduced(e, "Sum", axis, settings, route=Route()), float(alpha), eps
        )
        return self._wrap(solve_formula(system, right_side.tensor))


def _variables(*formulas: Expression | None) -> list[Alias]:
    """Return the symbolic variables of formulas by position."""
    found: dict[int, Alias] = {}

    def note(part: Expression) -> None:
        if isinstance(part, Symbol):
            axis = "ij".index("".join(part.axes)) if part.axes else 2
            own = found.setdefault(part.position, Alias(None, axis, part.size, part.position))
            if (own.axis, own.dim) != (axis, part.size):
                raise ParameterError(f"variable {part.position} is declared twice: dimensions {own.dim}, {part.size}")

    for formula in formulas:
        if formula is not None:
            substituted(formula, note)
    return [found[position] for position in sorted(found)]


_REDUCED = {
    "min_argmin": "Min_ArgMin", "max_argmax": "Max_ArgMax", "min_reduction": "Min", "max_reduction": "Max",
    "argmin_reduction": "ArgMin", "argmax_reduction": "ArgMax", "min_argmin_reduction": "Min_ArgMin",
    "max_argmax_reduction": "Max_ArgMax",
}  # fmt: skip
_COUNTED = {
    "Kmin": "KMin", "argKmin": "ArgKMin", "Kmin_argKmin": "KMin_ArgKMin", "Kmin_reduction": "KMin",
    "argKmin_reduction": "ArgKMin", "Kmin_argKmin_reduction": "KMin_ArgKMin",
}  # fmt: skip
_EITHER = {"sum": "Sum", "min": "Min", "max": "Max", "argmin": "ArgMin", "argmax": "ArgMax"}
for _table, _make in ((_REDUCED, _reduction), (_COUNTED, _counted), (_EITHER, _either)):
    for _own, _name in _table.items():
        setattr(GenericLazyTensor, _own, _make(_name, _own))
GenericLazyTensor.logsumexp_reduction = GenericLazyTensor.logsumexp  # type: ignore[attr-defined]
GenericLazyTensor.sumsoftmaxweight_reduction = GenericLazyTensor.sumsoftmaxweight  # type: ignore[attr-defined]


class LazyTensor(GenericLazyTensor):
    """A symbolic tensor of tensors of torch."""


class NumpyLazyTensor(GenericLazyTensor):
    """A symbolic tensor of arrays of NumPy."""

    @staticmethod
    def _wrap(result: Any) -> Any:
        return array_of(result)


NumpyLazyTensor.__name__ = "LazyTensor"
LazyTensor.__doc__ = NumpyLazyTensor.__doc__ = GenericLazyTensor.__doc__


def variables_of(kind: type[GenericLazyTensor]) -> tuple[Callable[..., Any], ...]:
    """Return ``Var``, ``Vi``, ``Vj`` and ``Pm`` for a kind of LazyTensor."""

    def Var(x_or_ind: Any, dim: int | None = None, cat: int | None = None) -> Any:
        """Return the variable of an array, or a symbolic one by position, dimension and axis."""
        return kind(x_or_ind, cat) if dim is None else kind((x_or_ind, dim, cat))

    def Vi(x_or_ind: Any, dim: int | None = None) -> Any:
        """Return a variable over i, of an array (M, D) or symbolic by position and dimension."""
        return Var(x_or_ind, dim, 0)

    def Vj(x_or_ind: Any, dim: int | None = None) -> Any:
        """Return a variable over j, of an array (N, D) or symbolic by position and dimension."""
        return Var(x_or_ind, dim, 1)

    def Pm(x_or_ind: Any, dim: int | None = None) -> Any:
        """Return a parameter, of an array (D,), of numbers, or symbolic by position and dimension."""
        return Var(x_or_ind, dim, 2)

    return Var, Vi, Vj, Pm
