"""Measure which tile is fastest for some shapes, and store it in the cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from ..errors import DeviceError, ShapeError
from ..runtime.dispatch import PLANS
from ..runtime.precompile import precompile
from .tuned_tiles import Tuned, tuning


def tune(
    contraction: Callable[..., Any],
    shapes: Sequence[Sequence[Sequence[int]]],
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cuda",
    workers: int = 1,
    **params: Any,
) -> list[Tuned]:
    """Return the time every tile that can run a contraction on some shapes, and take the quickest from then on.

    The winner is kept in the kernel cache on disk, keyed by device, contraction and shape class (extents between the
    same powers of two), so that later processes find it. Results stay within the same error bounds, but may differ in
    their last bits, as sums are then taken in another order.

    Parameters
    ----------
    contraction : callable
        A ``Contraction``, a kernel or a function such as ``lambda x, y: km.cdist(x, y, p=1.3)`` or
        ``lambda x, f, g: km.kron_matmul(x, [f, g])``, of whose passes each is tuned.
    shapes : sequence
        For each case the shapes of all operands, such as ``[((4096, 784), (5000, 784))]``.
    dtype : torch.dtype
        Type of the operands, whose values are normal numbers.
    device : torch.device or str
        A CUDA device; CPUs have one plan for each nest.
    workers : int
        Processes that compile the tiles, see ``precompile``.
    **params
        Passed on.

    Returns
    -------
    list of Tuned
        For each kernel its extents, the default tile, the seconds of all tiles, ``best`` and ``gain``. VJPs and
        products of matrices, which have one plan, are not among them.

    Raises
    ------
    DeviceError
        If the device is not a CUDA device of this machine.
    ShapeError
        If a case has no shapes.

    Notes
    -----
    Costs a compilation for each tile that was not compiled before and a few calls of each.

    Examples
    --------
    >>> import kernmantle as km, torch
    >>> gram = km.Contraction("mk,nk->mn", lambda a, b: abs(a - b))
    >>> if torch.cuda.is_available():
    ...     gains = [one.gain for one in km.tune(gram, [((512, 64), (300, 64))])]
    """
    target = torch.device(device)
    if target.type != "cuda" or not torch.cuda.is_available():
        where = "and there is none here" if target.type == "cuda" else f"not on {target}"
        raise DeviceError(f"tune measures tiles on an NVIDIA GPU, {where}; on a CPU there is nothing to choose")
    if target.index is not None and target.index >= torch.cuda.device_count():
        raise DeviceError(f"{target} does not exist: this machine has {torch.cuda.device_count()} CUDA devices")
    if not all(shapes):
        raise ShapeError("each case of shapes= needs the shape of every operand, one has none")

    def call(case: Sequence[Sequence[int]]) -> None:
        contraction(*(torch.randn(tuple(shape), device=target).to(dtype) for shape in case), **params)

    with torch.cuda.device(target), torch.no_grad(), tuning() as found:
        precompile([partial(call, case) for case in shapes], workers=workers)
        for case in shapes:
            PLANS.clear()
            call(case)
    PLANS.clear()
    return found
