"""pyfastkron's functions on our products, for torch and numpy.

``import pyfastkron.fastkrontorch`` and ``pyfastkron.fastkronnumpy`` give this module after
``kernmantle.compat.install("pyfastkron")``. Unlike there, alpha, beta and y count when a gradient is recorded, every
dtype and any strides are taken, and y and the scalars have gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .._version import __version__
from ..structured.kron import kron_matmul

# What programs import, each of them this module.
SUBMODULES = ("fastkrontorch", "fastkronnumpy", "version")

__all__ = ["KMM", "MKM", "__version__", "gekmm", "gemkm"]


def gemkm(x: Any, fs: Sequence[Any], alpha: Any = 1.0, beta: Any = 0.0, y: Any = None) -> Any:
    """``alpha * x @ (fs[0] ⊗ fs[1] ⊗ …) + beta * y``.

    Parameters
    ----------
    x : array
        (…, m, ∏p).
    fs : sequence of arrays
        (…, p_i, q_i).
    alpha, beta : number or tensor
        ``beta`` counts only where there is a y.
    y : array, optional

    Returns
    -------
    array
        (…, m, ∏q), of the kind of x.

    Raises
    ------
    ShapeError, DtypeError, DeviceError
        As :func:`kernmantle.kron_matmul`.

    Examples
    --------
    >>> import numpy as np
    >>> from kernmantle.compat.pyfastkron import gemkm
    >>> gemkm(np.ones((1, 4)), [np.eye(2), 2 * np.eye(2)])
    array([[2., 2., 2., 2.]])
    """
    return kron_matmul(x, list(fs), alpha=alpha, beta=0 if y is None else beta, y=y)


def gekmm(fs: Sequence[Any], x: Any, alpha: Any = 1.0, beta: Any = 0.0, y: Any = None) -> Any:
    """``alpha * (fs[0] ⊗ fs[1] ⊗ …) @ x + beta * y``.

    Parameters
    ----------
    fs : sequence of arrays
        (…, p_i, q_i).
    x : array
        (…, ∏q, m).
    alpha, beta, y
        As for :func:`gemkm`.

    Returns
    -------
    array
        (…, ∏p, m), of the kind of x.

    Raises
    ------
    ShapeError, DtypeError, DeviceError
        As :func:`kernmantle.kron_matmul`.

    Examples
    --------
    >>> import numpy as np
    >>> from kernmantle.compat.pyfastkron import gekmm
    >>> gekmm([np.eye(2), 2 * np.eye(2)], np.ones((4, 1))).T
    array([[2., 2., 2., 2.]])
    """
    return kron_matmul(x, list(fs), side="left", alpha=alpha, beta=0 if y is None else beta, y=y)


class MKM:
    """``x @ (fs[0] ⊗ fs[1] ⊗ …)`` as ``MKM.apply(x, *fs)``; differentiable by x and the factors, to any order.

    Examples
    --------
    >>> import numpy as np
    >>> from kernmantle.compat.pyfastkron import MKM
    >>> MKM.apply(np.ones((1, 4)), np.eye(2), 2 * np.eye(2))
    array([[2., 2., 2., 2.]])
    """

    @staticmethod
    def apply(x: Any, *fs: Any) -> Any:
        """Return the product, (…, m, ∏q) of x (…, m, ∏p)."""
        return gemkm(x, fs)


class KMM:
    """``(fs[0] ⊗ fs[1] ⊗ …) @ x`` as ``KMM.apply(x, *fs)``; differentiable by x and the factors, to any order.

    Examples
    --------
    >>> import numpy as np
    >>> from kernmantle.compat.pyfastkron import KMM
    >>> KMM.apply(np.ones((4, 1)), np.eye(2), 2 * np.eye(2)).T
    array([[2., 2., 2., 2.]])
    """

    @staticmethod
    def apply(x: Any, *fs: Any) -> Any:
        """Return the product, (…, ∏p, m) of x (…, ∏q, m)."""
        return gekmm(fs, x)
