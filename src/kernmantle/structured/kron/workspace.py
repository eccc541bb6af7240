"""``kron_workspace``: the memory of a product in addition to its arrays, from its plan alone; nothing is computed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from itertools import pairwise
from typing import Any, Literal

import torch

from ...backends.cuda.cards import PLANNED
from ...checks import integer
from ...errors import DeviceError, DtypeError, ParameterError, ShapeError
from ...torch_ops.targets import target_for
from .arrays import Arrays, arranged
from .cpu_plan import width
from .execute import factor_sizes, has_kernels
from .inputs import gather
from .modes import Mode, parse
from .passes import Pass
from .run import Dense, Launch, Prepared, Start, prepare

Found = tuple[int, int, str]
"""Bytes between the passes, bytes of each thread, and the route."""


@dataclass(frozen=True)
class KronWorkspace:
    """Shape of a product's result, and the memory that the product takes.

    Attributes
    ----------
    shape : tuple of int
        Shape of the result.
    bytes : int or None
        Most memory of intermediate results at one time, without x and the result; None if torch's matrix products run,
        whose memory is not known.
    bytes_per_thread : int or None
        Memory that each CPU thread holds between calls, a fraction of its second-level cache; 0 on GPUs.
    route : str
        The passes, as the repr of an operator shows them after a call; "torch" if no kernels run.
    """

    shape: tuple[int, ...]
    bytes: int | None
    bytes_per_thread: int | None
    route: str


def kron_workspace(
    x: Sequence[int],
    factors: Sequence[Sequence[int] | int],
    *,
    side: Literal["right", "left"] = "right",
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    card: str | None = None,
    precision: str | None = None,
    fuse: bool = True,
) -> KronWorkspace:
    """Return the shape and workspace of a call of :func:`kron_matmul` on arrays of these shapes.

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
        "cpu", or "cuda" for a GPU of this machine.
    card : str, optional
        A GPU that need not be there, "h100" or "h200", or its architecture, "sm_80", "sm_90", "sm_100" or "sm_120".

    Returns
    -------
    KronWorkspace
        ``shape``, ``bytes``, ``bytes_per_thread`` and ``route``.

    Raises
    ------
    ShapeError, DtypeError
        As :func:`kron_matmul`.
    ParameterError
        For an unknown device, card or option.
    DeviceError
        For "cuda" on a machine without a GPU.

    Notes
    -----
    The numbers are exact for contiguous arrays without gradients, with numbers alpha and beta; other strides may need a
    copy. The first call of a kind is planned with one more array of an intermediate size. Nothing is allocated or
    compiled here.

    Examples
    --------
    >>> import kernmantle as km
    >>> asked = km.kron_workspace((1024, 96 * 96 * 96), [(96, 96)] * 3, card="h100")
    >>> asked.shape
    (1024, 884736)
    >>> km.kron_workspace((16, 64), [(8, 8), (8, 8)]).bytes
    0
    """
    if not isinstance(dtype, torch.dtype):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise DtypeError(f"dtype must be a torch.dtype, not {dtype!r}")
    device, cards = str(device) if card is None else str(card), ", ".join(map(repr, PLANNED))
    kind = device.partition(":")[0]
    if card is not None and device not in PLANNED:
        raise ParameterError(f"card must be one of {cards}, not {device!r}")
    if card is None and kind not in ("cpu", "cuda"):
        raise ParameterError(f"device must be 'cpu' or 'cuda', not {device!r}; a GPU elsewhere is card=...: {cards}")
    if kind == "cuda" and not torch.cuda.is_available():
        raise DeviceError(f"there is no GPU here; one elsewhere is card=...: {cards}")
    own = [f if isinstance(f, int) else _empty(f, f"factors[{i}]", dtype) for i, f in enumerate(_listed(factors))]
    call = gather(_empty(x, "x", dtype), own, side, 1, 0, None, precision, fuse)
    out = call.form.x(torch.empty(call.shape, dtype=dtype, device="meta"))
    canonical, matrices, _ = call.canonical()
    found = _workspace(call.text, call.options, canonical, matrices, out, device)
    return KronWorkspace(call.shape, *(found or (None, None, "torch")))


def _listed(factors: Any) -> list[Any]:
    """Return the factors as a list; ShapeError for what is none."""
    if not isinstance(factors, (list, tuple)):
        raise ShapeError(f"factors must be a list of shapes (rows, columns), not {factors!r}")
    return list(factors)


def _empty(shape: Any, name: str, dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor of a shape without memory; ShapeError for what is none."""
    if not isinstance(shape, (list, tuple)):
        raise ShapeError(f"{name} must be a shape, as (1024, 64), not {shape!r}")
    lengths = [integer(size, f"a length of {name}", 0) for size in shape]
    if math.prod(lengths) * dtype.itemsize >= 2**63:
        raise ShapeError(f"{name} of shape {tuple(lengths)} has more than 2**63 bytes")
    return torch.empty(lengths, dtype=dtype, device="meta")


def _workspace(
    text: str, options: str, x: torch.Tensor, factors: Sequence[torch.Tensor], out: torch.Tensor, device: str
) -> Found | None:
    """Return what a call takes for arrays on "meta"; None where no kernels run or an array is copied on the way."""
    modes = parse(text, factor_sizes(factors))
    if not out.numel():
        return 0, 0, "nothing: the result is empty"
    if (device not in PLANNED and target_for(torch.device(device)) is None) or not has_kernels(x.dtype, modes):
        return None
    arrays, on_cpu = arranged(x, factors, None, out), device == "cpu"
    if on_cpu:
        arrays = import_module(".cpu", __package__).arranged(modes, arrays, options)
    passes, route = _planned(modes, arrays, options, device)
    # Of the passes only the shapes matter here; to those of halves the rules of the CPU are not to apply.
    wide = arrays if on_cpu else arranged(x.float(), [factor.float() for factor in factors], None, out.float())
    launches: list[Launch | Dense] = []
    ready = prepare(passes, modes, wide, partial(_noted, launches))
    if ready is None:
        return None
    each, panels = _workspace_on_cpu(launches, x.dtype) if on_cpu else (0, 0)
    return between(ready) * x.element_size() + panels, each, route


def _planned(modes: tuple[Mode, ...], arrays: Arrays, options: str, device: str) -> tuple[tuple[Pass, ...], str]:
    if device == "cpu":
        plan, _ = import_module(".cpu", __package__).planned(modes, arrays, options)
        return plan.passes, f"llvm: {plan}"
    gpu = import_module(".cuda", __package__)
    plan, _ = gpu.planned_for(_limits(device), modes, arrays, options)
    eager = plan.eager or plan
    return eager.passes, f"cuda: {eager}"


def _limits(device: str) -> object:
    if device in PLANNED:
        return PLANNED[device]
    gpu = import_module("...torch_ops.cuda", __package__)
    return gpu.limits(gpu.index_of(torch.device(device)))


def unstarted(_launch: Launch) -> Start:
    """Return what starts nothing."""
    return lambda _pointers, _numbers: None


def between(ready: Prepared) -> int:
    """Most entries of what a pass reads and what it leaves, x and the result apart."""
    sizes = [0, *(torch.Size(stage.shape).numel() for stage in ready.stages if stage.shape is not None), 0]
    return max(before + after for before, after in pairwise(sizes))


def _noted(launches: list[Launch | Dense], launch: Launch | Dense) -> Start | Dense:
    """Return what starts nothing, or the product along one axis; the launch is added to a list."""
    launches.append(launch)
    return launch if isinstance(launch, Dense) else unstarted(launch)


def _workspace_on_cpu(launches: Sequence[Launch | Dense], dtype: torch.dtype) -> tuple[int, int]:
    """Return the most bytes of a thread in a launch, and of a factor in panels."""
    cpu = import_module(".cpu", __package__)
    compute = "f64" if dtype == torch.float64 else "f32"
    found = [cpu.workspace_along(launch) for launch in launches if isinstance(launch, Dense)]
    parts = [part for launch in launches if isinstance(launch, Launch) for part, _ in cpu.blocks(launch, compute)]
    found += [(cpu.workspace_bytes(part.run, width(part.run, part.right, compute), compute), 0) for part in parts]
    each, panels = zip(*found, strict=True) if found else ((0,), (0,))
    return max(each), max(panels)
