"""Eigenvalues and vectors of symmetric matrices and operators."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, Literal, get_args

import torch

from ..arrays import Wrap
from ..checks import one_of, positive
from ..errors import GradientError, KernmantleWarning, LinearAlgebraError, ParameterError, ShapeError, instead_of
from ..torch_ops.outside import outside
from . import cusolver, spectrum
from .arguments import (
    Work,
    check_overwrite,
    check_reverse,
    check_values,
    compact,
    enough_memory,
    matrix,
    raises,
    watched,
)
from .generalised import NOT_DEFINITE, Pair
from .implicit import differentiable
from .krylov import Pairs, Sizes, default_tolerance, extreme_pairs
from .operators import Product, is_array, product_of
from .randomised import Randomised
from .solution import described, nan_where_failed, raise_for
from .spectrum import Found, Index, Value, index_of, value_of
from .transformed import check_one_forward, refuse, symmetrised
from .triangles import copy_triangle

Method = Literal["auto", "direct", "iterative", "randomised"]
FEWEST = {"cpu": 3000, "cuda": 4000}
"""Order from which on the iteration is tried by itself."""
SHARE = 0.1  # of all eigenvalues: up to so many, the largest are found by iteration
MEANING = "{info} off-diagonal entries did not converge to zero, or the matrix has NaN or infinities"


class Spectrum(tuple[Any, Any]):
    """Eigenvalues in ascending order and their vectors as columns: unpacks to ``w, v``.

    Attributes
    ----------
    w, v : array, shapes (..., k) and (..., n, k)
    info : array of int32, shape (...)
        On the device: 0, or not converged.
    residual : array or None
        ``‖a v - w v‖ / ‖a‖`` of each pair, where the iteration or the randomised method ran.
    ran : str
        What was used.
    error : array or None
        Estimated bound of ``‖a - v w vᵀ‖``, in the spectral norm, of the randomised method: too small with a
        probability of 1e-6.
    """

    info: Any
    residual: Any
    ran: str
    error: Any

    def __new__(cls, w: Any, v: Any, info: Any, residual: Any, ran: str, error: Any = None) -> Spectrum:  # noqa: D102
        self = super().__new__(cls, (w, v))
        self.info, self.residual, self.ran, self.error = info, residual, ran, error
        return self

    def __getnewargs__(self) -> tuple[Any, ...]:
        return (*self, self.info, self.residual, self.ran, self.error)

    @property
    def w(self) -> Any:
        """Eigenvalues."""
        return self[0]

    @property
    def v(self) -> Any:
        """Vectors."""
        return self[1]

    def __repr__(self) -> str:
        return f"Spectrum(w={described(self.w)}, v={described(self.v)}, ran={self.ran!r})"


class _Decomposed(torch.autograd.Function):
    """All pairs as functions of the matrix; the rotation between equal eigenvalues counts as no change."""

    @staticmethod
    def forward(a: torch.Tensor, lower: bool) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        found = spectrum.direct(a, lower, False, True, None, None)
        assert found.v is not None
        return found.w, found.v, found.info

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:  # noqa: ARG004
        w, v, info = output
        ctx.mark_non_differentiable(info)
        ctx.save_for_backward(w, v)
        ctx.save_for_forward(w, v)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        w, v = ctx.saved_tensors
        inner = _over_gaps(v.mT @ gradients[1], w)
        return symmetrised(v @ (torch.diag_embed(gradients[0]) + inner) @ v.mT), None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[torch.Tensor, torch.Tensor, None]:
        check_one_forward()
        w, v = ctx.saved_tensors
        rotated = v.mT @ symmetrised(tangents[0]) @ v
        return rotated.diagonal(0, -2, -1).clone(), v @ _over_gaps(rotated, w), None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> Any:  # noqa: ARG004
        return _Decomposed.apply(args[0].movedim(in_dims[0], 0), args[1]), (0, 0, 0)


def _over_gaps(inner: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Return the entries over the differences of their eigenvalues, 0 where these are equal."""
    if w.shape[-1] == 0:
        return inner
    gaps = w[..., None, :] - w[..., :, None]
    unit = w.shape[-1] * torch.finfo(w.dtype).eps * w.detach().abs().amax(-1)[..., None, None]
    apart = gaps.abs() > unit
    return (inner / gaps.masked_fill(~apart, 1)).masked_fill(~apart, 0)


@outside
@instead_of(UPLO="lower=True reads the lower triangle", eigvals="subset_by_index=(first, last) are some of them")
def eigh(
    a: Any,
    b: Any = None,
    *,
    subset_by_index: Sequence[int] | None = None,
    subset_by_value: Sequence[float] | None = None,
    eigvals_only: bool = False,
    lower: bool = True,
    overwrite_a: bool = False,
    method: Method = "auto",
    tolerance: float | None = None,
    oversample: int = 10,
    power: int = 2,
    generator: torch.Generator | None = None,
    check: bool = False,
    check_errors: bool | None = None,
) -> Any:
    """Return the eigenvalues in ascending order, and vectors, of symmetric matrices; or some of them.

    Parameters
    ----------
    a : array, shape (..., n, n), or operator
        float32 or float64, any strides. An operator has ``shape``, ``dtype`` and ``@``, as ``k.operator(x)`` has;
        of it one end of the spectrum can be had, without the matrix.
    b : array, shape (..., n, n), optional
        Positive definite: solve ``a v = w b v``, with ``vᵀ b v = 1``, for a matrix a. Batch axes broadcast.
    subset_by_index : (first, last), optional
        Indices of the eigenvalues in ascending order, from 0, both included.
    subset_by_value : (low, high), optional
        Values in (low, high], of one matrix. On CUDA this waits, to know how many they are.
    eigvals_only : bool
        Return w alone.
    lower : bool
        Which triangle of a matrix is read.
    overwrite_a : bool
        Let the vectors, or scratch, take the place of a; without effect where b is given.
    method : {"auto", "direct", "iterative", "randomised"}
        Direct: all columns are reduced, also for a few pairs. Iterative: a block Krylov iteration for one end of
        the spectrum by matrix products, whose every pair has a residual of at most ``tolerance``; where it does
        not get there, the direct method is taken with a warning. Randomised: the upper end by a few products with
        random columns, as accurate as ``residual`` and ``error`` say, for operators whose largest eigenvalues are
        the largest in size, as those of kernels are. "auto" iterates for operators, and for up to a
        tenth of the pairs at the upper end of one large matrix that needs no gradient.
    tolerance : float, optional
        Of the iteration: ``‖a v - w v‖ / ‖a‖``; by default max(20, √n) times the unit of the type, where direct
        methods end.
    oversample, power : int
        Of the randomised method: additional random columns, and further products that damp what is small.
    generator : torch.Generator, optional
        Source of its random columns; by default they are the same every time.
    check : bool
        Wait to see that a, and b, are finite and symmetric.
    check_errors : bool, optional
        Wait for the infos and raise for the first that is not 0. By default on the CPU, where nothing has to be waited
        for, but not under the transforms of torch.func.

    Returns
    -------
    Spectrum or array
        ``w, v`` with ``.info``, ``.residual`` and ``.ran``; w alone for ``eigvals_only``. Both are NaN where
        ``info`` is not 0; it is n + i where the leading minor of order i of b is not positive definite. A part of the
        vectors does not keep a's memory alive.

    Raises
    ------
    ParameterError
        For a subset out of range, or one that an iteration cannot give.
    LinearAlgebraError
        Where a decomposition did not converge, or b is not definite, on CUDA with ``check_errors``; and for an operator
        whose iteration did not converge and that has no ``dense()``.
    BackendError
        In a CUDA graph, for what waits: orders above 300, ``subset_by_value``, the iteration.

    Notes
    -----
    Direct on CUDA: up to order 64 one kernel of Jacobi rotations for one matrix or a batch, which waits for nothing;
    above cuSOLVER's Xsyevd, Xsyevdx for a part, XsyevBatched for batches up to order 512, all of which may wait for the
    device by themselves; without nvmath-python ``torch.linalg.eigh``, which does. In a CUDA graph XsyevBatched for one
    matrix after the other, up to order 300. On the CPU: LAPACK through torch and scipy.

    Gradients: by the matrix, of every order, under torch.func too, for w and v of the direct method; between equal
    eigenvalues a rotation of the vectors counts as no change, so that functions of the spanned space have their
    gradient. The iteration gives the first-order gradient of w alone, by whatever the operator depends on.

    With b, its Cholesky factor L reduces the pair to ``L⁻¹ a L⁻ᵀ``, in 7 n³ / 3 operations and the memory of four
    matrices; errors grow with the condition of b. Gradients are by both.

    Cost of the iteration: about 3 k + 200 columns of products and as many n-vectors of memory, twice, for k pairs.
    The host waits once for every filling of the basis. Of the randomised method: (2 + power) (k + oversample) + k + 10
    columns; it has no gradient.

    Cost of the direct method: 4 n³ / 3 operations for w, and as many again for all of v.

    Examples
    --------
    >>> import torch, kernmantle as km
    >>> w, v = km.linalg.eigh(torch.tensor([[2.0, 1.0], [1.0, 2.0]]))
    >>> w
    tensor([1., 3.])
    >>> x = torch.randn(500, 2)
    >>> km.linalg.eigh(km.Gaussian(2.0).operator(x), subset_by_index=(490, 499)).w.shape
    torch.Size([10])
    """
    one_of(method, "method", get_args(Method))
    if subset_by_index is not None and subset_by_value is not None:
        raise ParameterError("pass either subset_by_index or subset_by_value")
    if method == "randomised":
        if b is not None or tolerance is not None:
            raise ParameterError("method='randomised' takes neither b nor a tolerance: residual and error are measured")
        options = Randomised(oversample, power, generator)
        return _by_random_columns(a, subset_by_index, lower, eigvals_only, check_errors, options)
    if b is not None:
        return _of_pair(
            a, b, lower, eigvals_only, check, check_errors, subset_by_index=subset_by_index,
            subset_by_value=subset_by_value, method=method, tolerance=tolerance,
        )  # fmt: skip
    if is_array(a):
        tensor, wrap = matrix(a)
        if watched(tensor):
            refuse(overwrite_a=overwrite_a, check=check, check_errors=check_errors)
        if overwrite_a:
            check_overwrite(tensor, "a")
        if check:
            check_values(tensor, symmetric=True)
        index, value = index_of(subset_by_index, tensor.shape[-1]), value_of(subset_by_value)
        found, residual = _of_array(tensor, index, value, method, lower, overwrite_a, tolerance, eigvals_only)
        return _result(found, residual, wrap, eigvals_only, check_errors)
    operator = product_of(a)
    index = index_of(subset_by_index, operator.size)
    if method == "direct" or index is None:
        raise ParameterError("of an operator one end of the spectrum is found: pass subset_by_index, or the matrix")
    found, residual = _of_operator(operator, index, tolerance)
    return _result(found, residual, operator.wrap, eigvals_only, check_errors)


def _by_random_columns(
    a: Any, subset: Any, lower: bool, eigvals_only: bool, check_errors: bool | None, options: Randomised
) -> Any:
    """Return the upper end, with what is measured of it."""
    operator, wrap = None, None
    if is_array(a):
        tensor, wrap = matrix(a)
        if tensor.dim() > 2:
            raise ShapeError(f"method='randomised' takes one matrix, not a batch {tuple(a.shape)}; loop over it")
        if _recorded(tensor):
            raise GradientError("method='randomised' has no gradient: pass a.detach(), or method='direct'")
        with torch.no_grad():
            whole = Work.on(tensor.detach(), False).matrix
            copy_triangle(whole, lower)
        operator = product_of(whole)
    operator = operator or product_of(a)
    index = index_of(subset, operator.size)
    if index is None or index[1] != operator.size - 1:
        raise ParameterError("method='randomised' finds the upper end: pass subset_by_index=(first, n - 1)")
    with torch.no_grad():
        found, residual, error = options.pairs(operator, index[1] - index[0] + 1)
    wrap = wrap or operator.wrap
    made = _result(found, residual, wrap, eigvals_only, check_errors)
    if not eigvals_only:
        made.error = wrap(error)
    return made


def _of_pair(
    a: Any, b: Any, lower: bool, eigvals_only: bool, check: bool, check_errors: bool | None, **options: Any
) -> Any:
    """Return the spectrum of a pair."""
    if not is_array(a) or not is_array(b):
        raise ParameterError("a and b must be matrices; of an operator the spectrum is found without b")
    for name, value in (("a", a), ("b", b)) if check else ():
        tensor, _ = matrix(value, name)
        if watched(tensor):
            refuse(check=check)
        check_values(tensor, symmetric=True, name=name)
    pair = Pair.of(a, b, lower)
    if watched(pair.c):
        refuse(check_errors=check_errors)
    found = eigh(pair.c, check_errors=False, **options)
    info = pair.infos(found.info)
    if raises(check_errors, found.w):
        raise_for(pair.info, NOT_DEFINITE)
        raise_for(info, MEANING)
    ran = f"a Cholesky factor of b, {found.ran}"
    whole = Found(found.w, pair.vectors(found.v), info, ran)
    return _result(whole, found.residual, pair.wrap, eigvals_only, False)


def _of_array(
    tensor: torch.Tensor, index: Index | None, value: Value | None, method: Method, lower: bool,
    overwrite: bool, tolerance: float | None, eigvals_only: bool,
) -> tuple[Found, torch.Tensor | None]:  # fmt: skip
    with enough_memory("eigh", tensor):
        if _iterates(tensor, index, value, method):
            assert index is not None
            return _of_matrix(tensor, index, lower, overwrite, tolerance, eigvals_only)
        return _direct(tensor, lower, overwrite, not eigvals_only, index, value), None


def _result(
    found: Found, residual: torch.Tensor | None, wrap: Wrap, eigvals_only: bool, check_errors: bool | None
) -> Any:
    if raises(check_errors, found.w):
        raise_for(found.info, MEANING)
    w = nan_where_failed(found.w, found.info)
    if eigvals_only:
        return wrap(w)
    assert found.v is not None
    v = nan_where_failed(found.v, found.info)
    return Spectrum(wrap(w), wrap(v), wrap(found.info), wrap(residual), found.ran)


def _iterates(a: torch.Tensor, index: Index | None, value: Value | None, method: Method) -> bool:
    n = a.shape[-1]
    if method == "iterative":
        if index is None or value is not None or not (index[0] == 0 or index[1] == n - 1):
            raise ParameterError(
                "method='iterative' finds one end of the spectrum: pass subset_by_index=(0, last) or (first, n - 1)"
            )
        check_reverse(a, "a")
        if a.dim() > 2:
            raise ShapeError(f"method='iterative' takes one matrix, not a batch {tuple(a.shape)}; loop over it")
        return True
    if method == "direct" or index is None or a.dim() > 2 or _recorded(a):
        return False
    is_partial = index[1] - index[0] + 1 <= SHARE * n
    return is_partial and index[1] == n - 1 and n >= FEWEST.get(a.device.type, n + 1)


def _recorded(a: torch.Tensor) -> bool:
    return (a.requires_grad and torch.is_grad_enabled()) or watched(a)


def _direct(
    a: torch.Tensor, lower: bool, overwrite: bool, vectors: bool, index: Index | None, value: Value | None
) -> Found:
    if not _recorded(a):
        tensor = a.detach()
        batch = tensor.shape[:-2]
        cut = tensor if overwrite else compact(tensor)
        found = spectrum.direct(cut, lower, overwrite, vectors, index, value)
        if cut.shape == tensor.shape:
            return found
        v = None if found.v is None else found.v.expand(*batch, *found.v.shape[-2:]).contiguous()
        w = found.w.expand(*batch, found.w.shape[-1]).contiguous()
        return Found(w, v, found.info.expand(batch), found.ran)
    w, v, info = _Decomposed.apply(a, lower)
    if value is not None:
        if a.dim() > 2:
            raise ShapeError(f"subset_by_value of a batch {tuple(a.shape)}: loop over it")
        inside = (w > value[0]) & (w <= value[1])
        return Found(w[inside], v[:, inside], info, "all pairs")
    some = slice(None) if index is None else slice(index[0], index[1] + 1)
    return Found(w[..., some], v[..., some], info, "all pairs")


def _iteration(operator: Product, index: Index, tolerance: float | None) -> tuple[Pairs, float]:
    n = operator.size
    limit = default_tolerance(n, operator.dtype) if tolerance is None else positive(tolerance, "tolerance")
    count, largest = index[1] - index[0] + 1, index[1] == n - 1
    if not largest and index[0] != 0:
        raise ParameterError(f"the iteration finds one end of the spectrum, not the places {index} of {n}")
    like = torch.empty(0, dtype=operator.dtype, device=operator.device)
    if cusolver.capturing(like):
        raise spectrum.cannot_be_captured(
            "an iteration for a part of a spectrum", "pass the matrix and method='direct'"
        )
    with torch.no_grad():
        return extreme_pairs(operator.apply, n, count, largest, like, limit, Sizes.of(n, count)), limit


def _described(pairs: Pairs) -> str:
    return f"block Krylov iteration, {pairs.products} columns of products"


def _of_matrix(
    a: torch.Tensor, index: Index, lower: bool, overwrite: bool, tolerance: float | None, eigvals_only: bool
) -> tuple[Found, torch.Tensor | None]:
    with torch.no_grad():
        work = Work.on(a.detach(), overwrite).matrix
        copy_triangle(work, lower)
    pairs, limit = _iteration(product_of(work), index, tolerance)
    if not pairs.converged:
        _warn(pairs, limit, "the direct method was taken")
        return _direct(work, lower, True, not eigvals_only, index, None), None
    w, v = pairs.w, pairs.v
    if a.requires_grad:
        symmetric = a.tril() + a.tril(-1).mT if lower else a.triu() + a.triu(1).mT
        w, v = differentiable(lambda v: symmetric @ v, w, v)
    info = torch.zeros((), dtype=torch.int32, device=a.device)
    return Found(w, v, info, _described(pairs)), pairs.residual


def _warn(pairs: Pairs, limit: float, instead: str) -> None:
    warnings.warn(
        f"the iteration stopped at residuals of {float(pairs.residual.max()):.2g} where {limit:.2g} was asked, after "
        f"{pairs.products} columns of products; {instead}",
        KernmantleWarning,
        stacklevel=6,
    )


def _of_operator(operator: Product, index: Index, tolerance: float | None) -> tuple[Found, torch.Tensor | None]:
    pairs, limit = _iteration(operator, index, tolerance)
    info = torch.zeros((), dtype=torch.int32, device=operator.device)
    if pairs.converged:
        w, v = differentiable(operator.apply, pairs.w, pairs.v)
        return Found(w, v, info, _described(pairs)), pairs.residual
    dense = getattr(operator.source, "dense", None)
    if dense is None:
        raise LinearAlgebraError(
            f"the iteration stopped at residuals of {float(pairs.residual.max()):.2g}, asked {limit:.2g}, after "
            f"{pairs.products} columns of products; pass the matrix, a larger tolerance, or fewer pairs"
        )
    _warn(pairs, limit, "the matrix was formed and the direct method taken")
    tensor, _ = matrix(dense())
    return _direct(tensor, True, not tensor.requires_grad, True, index, None), None
