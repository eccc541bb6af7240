"""Arrays that tests take, the same ones for the same arguments, and what stands for arrays of other libraries."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch


def normal(
    *shape: int, seed: int = 0, dtype: torch.dtype = torch.float64, device: str | torch.device = "cpu"
) -> torch.Tensor:
    """Return normal numbers, drawn in float64 on the CPU."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype).to(device)


def with_spectrum(values: Any, seed: int = 0) -> torch.Tensor:
    """Return a symmetric matrix of these eigenvalues."""
    basis = torch.linalg.qr(normal(len(values), len(values), seed=seed)).Q
    return (basis * torch.as_tensor(values, dtype=torch.float64)) @ basis.mT


def waves(n: int = 700, columns: int | None = None, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, ...]:
    """Return rows of three numbers, and targets that are waves with noise."""
    source = torch.Generator().manual_seed(n)
    x = torch.rand(n, 3, generator=source, dtype=torch.float64)
    shape = (n,) if columns is None else (n, columns)
    y = (4 * x.sum(1)).sin().reshape(n, *(1,) * (len(shape) - 1)) + 0.2 * torch.randn(shape, generator=source).double()
    return x.to(dtype), y.to(dtype)


class Module(torch.nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


class Foreign:
    """Array of a made-up library that knows DLPack and nothing else, as CuPy's."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


@contextlib.contextmanager
def nothing_waits() -> Iterator[None]:
    """Make anything of torch's that waits for the device an error."""
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")
