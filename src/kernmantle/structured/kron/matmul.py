"""``kron_matmul``: a matrix times a Kronecker product that is never formed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch

from ...errors import GradientError, ParameterError
from ...runtime.dispatch import PLANS, CallKey
from ...torch_ops.autograd import constant
from ...torch_ops.call_key import call_key, find, find_by_key, is_recorded
from ...torch_ops.checks import reach
from ...torch_ops.execute import allocate, layouts_in_one_piece
from ...torch_ops.info import RunInfo
from ...torch_ops.torch_private import is_tracked, plain
from .autograd import KronCall, product
from .bound_gradients import Maybe, Tensors
from .execute import Number, Sizes, backend_for, bind, factor_sizes
from .gradient import positions_of
from .gradient_steps import partial_text
from .inputs import Product, gather, target
from .modes import contracted, parse, text_of
from .run import SAVING, most_saved

_NUMBERS = (int, float)
# The last factors up to this size together are the second step of a product that stores what lies between its steps.
_TOGETHER = 4096


def kron_matmul(
    x: Any,
    factors: Sequence[Any],
    *,
    side: Literal["right", "left"] = "right",
    alpha: Any = 1,
    beta: Any = None,
    y: Any = None,
    out: Any = None,
    precision: str | None = None,
    fuse: bool = True,
    store: bool | None = None,
) -> Any:
    """Return the product of a matrix and a Kronecker product of matrices, which is never formed.

    ``alpha * x @ (F_1 ⊗ … ⊗ F_N) + beta * y``, or ``alpha * (F_1 ⊗ … ⊗ F_N) @ x + beta * y`` for ``side="left"``.

    Parameters
    ----------
    x : array
        (…, m, ∏p) for ``side="right"``, with factors (…, p_i, q_i); (…, ∏q, m) for ``side="left"``; or a vector.
        Any strides: a transposed view is read in place.
    factors : sequence of arrays and int
        Matrices or batches of matrices, all batch axes broadcast with those of x; pass ``f.mT`` for a transposed
        factor. An integer is the identity of that size, so one factor among integers is a product along one axis.
        The same object several times is one factor with one gradient.
    side : {"right", "left"}
        Side of x on which the product stands.
    alpha, beta : number or tensor
        A tensor has one entry, or one per batch entry. ``beta`` is 1 by default if y is given; where it is the number
        0, y is not read.
    y : array, optional
        Broadcasts to the result.
    out : array, optional
        Takes the result; it may be y, and must not overlap x or a factor.
    precision : {None, "ieee", "tf32"}
        Arithmetic of float32: None is float32-accurate by any means, "ieee" float32 arithmetic only, "tf32" one
        pass on tensor cores.
    fuse : bool
        Whether several factors may share one pass over memory.
    store : {None, True, False}
        Whether a product of several passes saves the intermediate results for its gradients, in memory of the size of x
        for each; otherwise the backward pass recomputes them. None saves them if that saves time and takes at most
        1/128 of the memory of the device, for CPUs of that of the machine, whatever a container is limited to.

    Returns
    -------
    array
        (…, m, ∏q), (…, ∏p, m) or a vector, of the kind and dtype of x.

    Raises
    ------
    ShapeError
        If sizes do not chain, for a factor that is not a matrix, and for an empty list of factors.
    DtypeError, DeviceError
        If arrays differ in dtype or device; bool arrays.
    ParameterError
        For ``beta`` without y, and unknown options.
    OutputError
        If ``out`` does not fit or overlaps x or a factor.

    Notes
    -----
    float16, bfloat16, float32 and float64 have kernels; integers and complex numbers take one matrix product per
    factor. float16 and bfloat16 are summed in float32. On CUDA factors of up to 256 rows and columns may run on tensor
    cores. float32 then takes three products of float16 halves, each reduced vector scaled by a power of two. The error
    is at most 1e-6 of the norm of a row of the result, so entries much smaller than their row have fewer digits, and an
    infinity gives NaN in every entry that depends on it; ``precision="ieee"`` has neither limit. float64 has tensor
    cores of its own for 8 to 64 rows and columns, and is never rounded.

    Square factors take m * ∏p * Σp multiplications in any order; others are applied in the order of fewest
    multiplications, or on a GPU of least expected time. Memory of the size of x: the result and one workspace; on a GPU
    a product whose gradients are recorded takes up to 16 MB for these at once, and none under ``torch.no_grad``.
    Gradients of every order exist for x, all factors, alpha, beta and y. Inside
    ``torch.autocast`` arrays are cast as for a matrix product. The method is the shuffle algorithm of [1]_ with factors
    fused.

    References
    ----------
    .. [1] P. Fernandes, B. Plateau, W. J. Stewart, "Efficient descriptor-vector multiplications in stochastic
       automata networks", J. ACM 45, 1998.

    Examples
    --------
    >>> import kernmantle as km, numpy as np
    >>> f, g = np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[0.0, 1.0], [1.0, 0.0]])
    >>> x = np.array([[1.0, 0.0, 2.0, 0.0]])
    >>> km.kron_matmul(x, [f, g])
    array([[ 0.,  7.,  0., 10.]])
    >>> km.kron_matmul(x, [2, g])
    array([[0., 1., 0., 2.]])
    """
    return multiply(x, factors, side, alpha, beta, y, out, precision, fuse, store)


def multiply(
    x: Any, factors: Sequence[Any], side: Any = "right", alpha: Any = 1, beta: Any = None, y: Any = None,
    out: Any = None, precision: Any = None, fuse: Any = True, store: Any = None, info: RunInfo | None = None,
    transposed: bool = False,
) -> Any:  # fmt: skip
    """Return the product as :func:`kron_matmul` does, by the factors' transposes if ``transposed``.

    ``info`` takes the route.
    """
    if store is not None and type(store) is not bool:
        raise ParameterError(f"store must be None, True or False, not {store!r}")
    if type(factors) is not list and isinstance(factors, torch.nn.ParameterList):
        factors = list(factors)
    beta = (0 if y is None else 1) if beta is None else beta
    key, found = None, None
    if not store:
        key, found = _dispatch(x, factors, side, alpha, beta, y, out, precision, fuse, store, transposed)
    if found is not None:
        own = [factor for factor in factors if type(factor) is not int] if found.identities else factors
        y = y if found.added else None
        if out is None and found.is_recorded:  # with out= there is no key for what is recorded
            return found.recorded(x, own, y, (alpha, beta), info)
        if out is None or not found.overlaps(x, own, y, out):
            return found((x, own, y), (alpha, beta), out, info)
    call = gather(x, factors, side, alpha, beta, y, precision, fuse, transposed)
    if out is not None and not plain(call.values):
        raise GradientError("out= cannot be combined with a transform of torch.func; drop out=")
    into = None if out is None else target(out, call)
    if into is None and (store or torch.compiler.is_compiling() or not plain(call.values)):
        result = (in_two if store else product)(call.text, call.options, call.numbers, *call.canonical(), info)
        return call.wrap(call.form.result(result))
    bound, own = _bound(key, call, factors, into, store)
    if is_tracked(call.values):
        return call.wrap(bound.recorded(call.x, own, call.y, call.numbers, info))
    result = bound((call.x, own, call.y), call.numbers, into, info)
    return call.wrap(result) if out is None else out


_LINEAR = {True: "kron_linear", False: "kron_linear with a base"}
"""Calls by transposes, which are of two matrices without any options, by whether y is None."""


def multiply_again(x: Any, factors: Sequence[Any], alpha: Any, y: Any) -> torch.Tensor | None:
    """Return the product by the transposes of two matrices, plus y, as it was bound for others; None on a miss.

    Arguments need not have been checked.
    """
    if torch.compiler.is_compiling() or type(alpha) not in _NUMBERS:
        return None
    beta, tensors = (0, (x, *factors)) if y is None else (1, (x, *factors, y))
    found: KronCall | None = find(_LINEAR[y is None], tensors, by_shape=True)
    if found is None:
        return None
    numbers = alpha, beta
    return found.recorded(x, factors, y, numbers, None) if found.is_recorded else found((x, factors, y), numbers, None)


def _dispatch(
    x: Any, factors: Any, side: Any, alpha: Any, beta: Any, y: Any, out: Any, precision: Any, fuse: Any, store: Any,
    transposed: bool,
) -> tuple[CallKey | None, KronCall | None]:  # fmt: skip
    """Return the key of a call, and its bound call if there is one.

    There is no key where guards find the bound call, for arguments of unusual kinds, and for ``out`` where a gradient
    is recorded.
    """
    if (
        torch.compiler.is_compiling()
        or type(alpha) not in _NUMBERS
        or type(beta) not in _NUMBERS
        or type(factors) not in (list, tuple)
    ):
        return None, None
    if type(side) is not str or type(fuse) is not bool or (precision is not None and type(precision) is not str):
        return None, None
    sizes = tuple([factor if type(factor) is int else None for factor in factors])
    own = [factor for factor in factors if type(factor) is not int]
    operation, options = ("kron_matmul", sizes), (side, precision, fuse, store, beta == 0, y is out, transposed)
    call, tensors = None, []
    if len(own) < 2 or own[0] is not own[-1]:  # a guard is false of factors that are there twice
        call = _LINEAR[y is None] if transposed else (operation, options, y is None, out is None)
        tensors = [each for each in (x, *own, y, None if y is out else out) if each is not None]
        found = find(call, tensors, by_shape=True)
        if found is not None:
            return None, found
    key = call_key(operation, options, (x, *own, y, out))
    if key is None or (out is not None and is_recorded(key)):
        return None, None
    return key, find_by_key(key, call, tensors, by_shape=True) if tensors else PLANS.get(key)


def _bound(
    key: CallKey | None, call: Product, factors: Sequence[Any], out: torch.Tensor | None, store: bool | None
) -> tuple[KronCall, Sequence[torch.Tensor]]:
    """Return a checked call for its tensors, and its factors; stored by its key where it is bound to kernels."""
    plan = KronCall(call.text, call.options, call.form, call.shape, call.y is not None)
    if key is None:
        return plan, call.factors
    own = [factor for factor in factors if type(factor) is not int]
    numbers = iter(range(len(own)))
    text = text_of([f"i{factor}" if type(factor) is int else next(numbers) for factor in factors])
    matrices = [call.form.factor(factor) for factor in own]
    sample = allocate(call.shape, call.x.dtype, call.x.device) if out is None else out
    if not sample.numel() or backend_for(call.x, parse(text, factor_sizes(matrices))) is None:
        return plan, call.factors
    form = call.form
    arrays = form.x(call.x), matrices, form.y(call.y), form.x(sample)
    may_save = store is None and call.x.is_cuda and is_recorded(key) and any(factor.requires_grad for factor in own)
    wanted = "".join([str(int(tensor.requires_grad)) for tensor in (call.x, *own)])
    found = bind(text, call.options.replace(" ", f" {SAVING} {wanted} ") if may_save else call.options, *arrays)
    keeps = store is None and found.reads_addresses and bool(found.done or found.captured)
    keeps = keeps and found.between <= most_saved(call.x.device)
    if may_save and not keeps:
        found = bind(text, call.options, *arrays)
    if not found.reads_addresses:
        return plan, call.factors
    sizes = tuple([reach(tensor) for tensor in (call.x, *own)]), 0 if call.y is None else reach(call.y), reach(sample)
    added, has_identities = call.y is not None, len(own) < len(factors)
    layout = layouts_in_one_piece([call.shape])[0]
    plan = PLANS[key] = KronCall(
        text, call.options, form, call.shape, added, has_identities, found, sizes, keeps, layout, is_recorded(key)
    )
    return plan, own


def in_two(
    text: str, options: str, numbers: tuple[Number, Number], x: torch.Tensor, factors: Tensors, y: Maybe = None,
    info: RunInfo | None = None,
) -> torch.Tensor:  # fmt: skip
    """Return a product in two steps where it has more than a pass of factors; gradients read what lies between."""
    shapes = factor_sizes(factors)
    positions, last = positions_of(text, shapes), _last(text, shapes)
    if len(last) < len(positions) and torch.is_grad_enabled() and any(own.requires_grad for own in (x, *factors)):
        first = tuple([position for position in positions if position not in last])
        x = product(partial_text(text, shapes, last, (), False), options, (1, 0), x, factors)
        text = partial_text(text, shapes, first, last, False)
    return product(text, options, numbers, x, factors, y, info)


@constant
def _last(text: str, shapes: Sizes) -> tuple[int, ...]:
    """Return the positions of the last factors, as many as one pass takes."""
    modes = parse(text, shapes)
    found: list[int] = []
    size = 1
    for position in reversed(contracted(modes)):
        size *= max(modes[position].columns, modes[position].rows)
        if found and size > _TOGETHER:
            break
        found.append(position)
    return tuple(reversed(found))
