"""``kron_workspace``: what a product will take, asked for before there are arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch

from ..contraction.cuda_tiles import CARDS
from ..errors import DeviceError, ParameterError
from ..ops.kron_workspace import KronWorkspace, workspace
from .arguments import gather


def kron_workspace(
    x: Sequence[int],
    factors: Sequence[Sequence[int] | int],
    *,
    side: Literal["right", "left"] = "right",
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    precision: str | None = None,
    fuse: bool = True,
) -> KronWorkspace:
    """Shape and workspace of a call of :func:`kron_matmul` on arrays of these shapes.

    Parameters
    ----------
    x : tuple of int
        Shape of x, (…, m, ∏p) for ``side="right"``.
    factors : sequence of tuple of int and int
        Shapes (…, p, q) of the factors; an integer is the identity of that size.
    side, precision, fuse
        As in :func:`kron_matmul`.
    dtype : torch.dtype
        Of all arrays.
    device : str
        "cpu", "cuda" for a GPU that is there, or one that is not: "sm_80", "sm_90", "sm_100", "sm_120".

    Returns
    -------
    KronWorkspace
        ``shape``, ``bytes``, ``bytes_per_thread`` and ``route``.

    Raises
    ------
    ShapeError, DtypeError
        As :func:`kron_matmul`.
    ParameterError
        For an unknown device or option.
    DeviceError
        For "cuda" where no GPU is.

    Notes
    -----
    Exact for arrays that lie in one piece, without gradients, alpha and beta being numbers: other strides may cost a
    copy. The first call of a kind is planned with one more array of an intermediate size. Nothing is allocated or
    compiled here.

    Examples
    --------
    >>> import kernmantle as km
    >>> asked = km.kron_workspace((1024, 96 * 96 * 96), [(96, 96)] * 3, device="sm_90")
    >>> asked.shape
    (1024, 884736)
    >>> km.kron_workspace((16, 64), [(8, 8), (8, 8)]).bytes
    0
    """
    kind = device.partition(":")[0]
    if kind not in ("cpu", "cuda") and device not in CARDS:
        raise ParameterError(f"device must be 'cpu', 'cuda' or one of {', '.join(CARDS)}, not {device!r}")
    if kind == "cuda" and not torch.cuda.is_available():
        raise DeviceError(f"there is no GPU here: for one that is elsewhere pass device={', '.join(map(repr, CARDS))}")
    own = [f if isinstance(f, int) else torch.empty(tuple(f), dtype=dtype, device="meta") for f in factors]
    call = gather(torch.empty(tuple(x), dtype=dtype, device="meta"), own, side, 1, 0, None, precision, fuse)
    out = torch.empty(call.shape, dtype=dtype, device="meta")
    found = workspace(call.modes, call.options, call.x, call.factors, out, device)
    shape = call.shape if call.form == "column" else call.shape[:-1]
    return KronWorkspace(shape, *(found or (None, None, "torch")))
