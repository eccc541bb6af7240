"""``kron_matmul``: a matrix times a Kronecker product that is never formed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch

from ..errors import GradientError, ParameterError
from ..ops.info import RunInfo
from ..ops.kron import in_two, product
from ..ops.kron_execute import execute
from ..ops.torch_private import plain
from .arguments import Product, gather, target
from .recall import Look, learn, look_of, recalled


def kron_matmul(
    x: Any,
    factors: Sequence[Any],
    *,
    side: Literal["right", "left"] = "right",
    alpha: Any = 1,
    beta: Any = 0,
    y: Any = None,
    out: Any = None,
    precision: str | None = None,
    fuse: bool = True,
    store: bool = False,
) -> Any:
    """Product of a matrix and a Kronecker product of matrices, which is never formed.

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
        A tensor has one entry, or one per batch entry. Where ``beta`` is the number 0, y is not read.
    y : array, optional
        Broadcasts to the result.
    out : array, optional
        Takes the result; it may be y, and must not overlap x or a factor.
    precision : {None, "ieee", "tf32"}
        Arithmetic of float32: None is float32-accurate by any means, "ieee" float32 arithmetic only, "tf32" one
        pass on tensor cores.
    fuse : bool
        Whether several factors may be applied in one pass over memory.
    store : bool
        Whether a product that needs several passes keeps what lies between them for its gradients, which otherwise
        compute it again: memory of the size of x for the time of a pass.

    Returns
    -------
    array
        (…, m, ∏q), (…, ∏p, m) or a vector, of the kind and dtype of x.

    Raises
    ------
    ShapeError
        If sizes do not chain, with the chain; for a factor that is no matrix and for no factors.
    DtypeError, DeviceError
        If arrays differ in dtype or device; bool arrays.
    ParameterError
        For ``beta`` without y, and unknown options.
    OutputError
        If ``out`` does not fit or overlaps x or a factor.

    Notes
    -----
    float16, bfloat16, float32 and float64 have kernels; integers and complex numbers take one matrix product per
    factor. float16 and bfloat16 are summed in float32. On CUDA factors of 8 to 128 rows and columns run on tensor
    cores, float32 as three products of float16 halves that are scaled for every line of entries which is reduced:
    the error is within 1e-6 of the norm of the result, entries small beside their row do not have that accuracy
    each, and an infinity gives NaN in what it reaches; ``precision="ieee"`` has neither limit. float64 takes the
    tensor cores of its own up to 64 rows and columns and is never rounded.

    Factors are applied in the order of fewest multiplications:
    for square ones m * ∏p * Σp of them, and the result and x are the only memory of their size beyond one
    workspace. Gradients of every order exist for x, all factors, alpha, beta and y. Inside ``torch.autocast``
    arrays are cast as for a matrix product. The method is the shuffle algorithm of [1]_ with factors fused.

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
    x: Any, factors: Sequence[Any], side: Any = "right", alpha: Any = 1, beta: Any = 0, y: Any = None, out: Any = None,
    precision: Any = None, fuse: Any = True, store: Any = False, info: RunInfo | None = None,
) -> Any:  # fmt: skip
    """Return the product as :func:`kron_matmul` does; ``info`` takes the route."""
    if type(store) is not bool:
        raise ParameterError(f"store must be True or False, not {store!r}")
    look = look_of(x, factors, y, out, side, alpha, beta, precision, fuse)
    known = recalled(look, x, factors, y, out, alpha, beta, info)
    if known is not None:
        return known
    call = gather(x, factors, side, alpha, beta, y, precision, fuse)
    if out is not None:
        return _written(call, out, look, info)
    way = in_two if store else product
    result = way(call.modes, call.options, call.numbers, call.x, call.factors, call.y, info)
    learn(look, call, result)
    return call.wrap(call.restored(result))


def _written(call: Product, out: Any, look: Look | None, info: RunInfo | None) -> Any:
    if not plain(call.values):
        raise GradientError("out= cannot be combined with a transform of torch.func; drop out=")
    into = target(out, call)
    execute(call.modes, call.options, call.numbers, call.x, call.factors, call.y, into, info)
    learn(look, call, into)
    if not into.is_inference():
        torch.autograd.graph.increment_version([into])
    return out
