"""Plots with matplotlib, which is optional: kernels as functions of the distance, patterns, spectra."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import import_module
from itertools import pairwise
from typing import Any

import torch

from .arrays import to_tensor
from .errors import BackendError, ParameterError
from .pairwise import Kernel
from .pairwise.kernel import check_kernel
from .structured.kronsparse import KSPattern

__all__ = ["kernel", "spectrum", "supports"]
_POINTS = 400


def kernel(kernels: Kernel | Mapping[str, Kernel], *, radius: float = 4.0, axes: Any = None) -> Any:
    """Plot k(r, 0) of one-dimensional rows for r from 0 to ``radius``.

    Parameters
    ----------
    kernels : Kernel or mapping of str to Kernel
        One kernel, or several with their labels. Hyperparameters are numbers or 0-d tensors.
    radius : float, default 4.0
        Largest distance, above 0.
    axes : matplotlib.axes.Axes, optional
        Where to draw; by default new axes.

    Returns
    -------
    matplotlib.axes.Axes
        The axes, to which more can be added.

    Raises
    ------
    ParameterError
        If ``radius`` is not above 0, or for what is no kernel or has batched hyperparameters.
    BackendError
        Without matplotlib.

    Examples
    --------
    >>> import kernmantle as km
    >>> axes = km.plot.kernel({"Gaussian": km.Gaussian(1.0), "Laplace": km.Laplace(1.0)})
    >>> [line.get_label() for line in axes.lines]
    ['Gaussian', 'Laplace']
    """
    if not radius > 0:
        raise ParameterError(f"radius={radius!r} must be above 0")
    axes = _axes(axes)
    named = kernels if isinstance(kernels, Mapping) else {repr(kernels): kernels}
    distances = torch.linspace(0, radius, _POINTS, dtype=torch.float64)[:, None]
    for label, each in named.items():
        if not callable(each):
            check_kernel(each, "kernels" if named is not kernels else f"the kernel {label!r}")
        values = each(distances, torch.zeros(1, 1, dtype=torch.float64))
        if values.dim() != 2:
            raise ParameterError(f"the kernel {label!r} has batched hyperparameters; plot its kernels one by one")
        axes.plot(distances[:, 0].numpy(), values[:, 0].detach().cpu().numpy(), label=label)
    axes.set(xlabel="distance", ylabel="k", xlim=(0, radius))
    if isinstance(kernels, Mapping):
        axes.legend(frameon=False)
    return axes


def supports(patterns: Iterable[KSPattern | tuple[int, int, int, int]], *, axes: Any = None) -> list[Any]:
    """Plot the non-zero entries of the factors of a chain of Kronecker-sparse matrices, and of their product.

    Parameters
    ----------
    patterns : iterable of KSPattern or tuple of int
        The patterns in the order of application, as :class:`kernmantle.KSLinear` takes them.
    axes : sequence of matplotlib.axes.Axes, optional
        Where to draw: one for each factor and one for the product; by default new axes in a row.

    Returns
    -------
    list of matplotlib.axes.Axes
        The axes, in that order.

    Raises
    ------
    ParameterError
        If there is no pattern, the patterns do not fit each other, or the number of axes is wrong.
    BackendError
        Without matplotlib.

    Notes
    -----
    Stores the dense matrices: meant for at most a few thousand features.

    Examples
    --------
    >>> import kernmantle as km
    >>> axes = km.plot.supports(km.kronsparse.monarch((16, 16), 4, 4))
    >>> [each.get_title() for each in axes]
    ['factor 1: 25 %', 'factor 2: 25 %', 'product: 100 %']
    """
    chain = [KSPattern(*pattern) for pattern in patterns]
    if not chain:
        raise ParameterError("patterns must have at least one pattern")
    for first, second in pairwise(chain):
        if first.out_features != second.in_features:
            raise ParameterError(
                f"{first} has {first.out_features} outputs, but {second} takes {second.in_features} inputs"
            )
    masks = [pattern.mask().cpu().double() for pattern in chain]
    product = masks[0]
    for mask in masks[1:]:
        product = (mask @ product > 0).double()
    titles = [*(f"factor {number}" for number in range(1, len(masks) + 1)), "product"]
    if axes is None:
        figure = _pyplot().figure(figsize=(2.6 * len(titles), 2.8), layout="constrained")
        axes = figure.subplots(1, len(titles))
    drawn = list(axes)
    if len(drawn) != len(titles):
        raise ParameterError(f"axes must have {len(titles)} axes, one for each factor and one for the product")
    for each, mask, title in zip(drawn, [*masks, product], titles, strict=True):
        each.imshow(mask.numpy(), cmap="Blues", vmin=0, vmax=1.3, interpolation="nearest")
        each.set(xticks=[], yticks=[], title=f"{title}: {100 * float(mask.mean()):.0f} %")
    return drawn


def spectrum(eigenvalues: Any, *, label: str | None = None, axes: Any = None) -> Any:
    """Plot eigenvalues in decreasing order on a logarithmic scale.

    Parameters
    ----------
    eigenvalues : array of shape (n,), or the result of km.linalg.eigh
        In any order. Values that are not above 0 have no logarithm and leave a gap.
    label : str, optional
        Name of the line in a legend.
    axes : matplotlib.axes.Axes, optional
        Where to draw; by default new axes.

    Returns
    -------
    matplotlib.axes.Axes
        The axes, to which more can be added.

    Raises
    ------
    ParameterError
        If the eigenvalues are not one vector.
    BackendError
        Without matplotlib.

    Examples
    --------
    >>> import torch, kernmantle as km
    >>> axes = km.plot.spectrum(km.linalg.eigh(torch.diag(torch.tensor([1.0, 4.0, 2.0]))))
    >>> axes.lines[0].get_ydata().tolist()
    [4.0, 2.0, 1.0]
    """
    values = to_tensor(getattr(eigenvalues, "w", eigenvalues), "eigenvalues").detach().cpu()
    if values.dim() != 1:
        raise ParameterError(f"eigenvalues has shape {tuple(values.shape)}; pass one vector of them")
    axes = _axes(axes)
    values = values.sort(descending=True).values
    axes.semilogy(range(1, len(values) + 1), values.where(values > 0, float("nan")).numpy(), "o-", label=label)
    axes.set(xlabel="index", ylabel="eigenvalue")
    return axes


def _pyplot() -> Any:
    try:
        return import_module("matplotlib.pyplot")
    except ImportError as error:
        raise BackendError("km.plot needs matplotlib: pip install matplotlib") from error


def _axes(axes: Any) -> Any:
    return axes if axes is not None else _pyplot().subplots(layout="constrained")[1]
