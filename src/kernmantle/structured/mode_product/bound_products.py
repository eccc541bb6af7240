"""Products with a factor on NVIDIA GPUs as launches on addresses."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import torch

from ...backends.cuda.launch import BoundLaunch, Kernel
from ...torch_ops.cuda import bind_launch
from ...torch_ops.execute import allocate
from .pack import PackedWeights

Maybe = torch.Tensor | None
Launches = list[tuple[BoundLaunch, tuple[int, ...]]]
"""Launches that follow one another, with the positions of their operands in a table of addresses."""


@dataclass(frozen=True, eq=False)
class DirectProduct:
    """The launch of a kernel that reads x and weights where they lie."""

    launch: BoundLaunch

    def __call__(
        self, x: torch.Tensor, weight: torch.Tensor, bias: Maybe, out: torch.Tensor, _: PackedWeights | None
    ) -> None:
        """Multiply."""
        bias_at = 0 if bias is None else bias.data_ptr()
        self.launch((x.data_ptr(), weight.data_ptr(), 0, bias_at, 0, out.data_ptr()))

    def on_addresses(self, x: int, weight: int, bias: int, out: int, _: Callable[[int], int]) -> Launches:
        """Return the launches on a table of addresses."""
        return [(self.launch, (x, weight, 0, bias, 0, out))]


@dataclass(frozen=True, eq=False)
class WideProduct:
    """The launch of a kernel that reads an image of the weights, and the one that makes it.

    Behind the image, in one piece with it, is what undoes the scale of each column.
    """

    prepare: BoundLaunch
    launch: BoundLaunch
    image_bytes: int
    scale_bytes: int
    arrangement: Hashable

    def _made(self, weight: torch.Tensor) -> torch.Tensor:
        """Return the weights in the order in which the kernel reads them, and the scales of their columns."""
        image = allocate((self.image_bytes + self.scale_bytes,), torch.uint8, weight.device)
        at = image.data_ptr()
        self.prepare((weight.data_ptr(), at, at + self.image_bytes))
        return image

    def __call__(
        self, x: torch.Tensor, weight: torch.Tensor, bias: Maybe, out: torch.Tensor, packed: PackedWeights | None
    ) -> None:
        """Multiply, by an image that is packed or made here."""
        if packed is None:
            image = self._made(weight)
        else:
            image = packed.get_or_pack(self.arrangement, lambda: self._made(weight), x.device)
        at, bias_at = image.data_ptr(), 0 if bias is None else bias.data_ptr()
        self.launch((x.data_ptr(), weight.data_ptr(), at, bias_at, at + self.image_bytes, out.data_ptr()))

    def on_addresses(self, x: int, weight: int, bias: int, out: int, part: Callable[[int], int]) -> Launches:
        """Return the launches on a table of addresses, in which ``part`` gives the position of so many bytes."""
        image = part(self.image_bytes)
        scales = part(self.scale_bytes) if self.scale_bytes else image
        return [(self.prepare, (weight, image, scales)), (self.launch, (x, weight, image, bias, scales, out))]


def bind_ready(kernel: Kernel, addresses: int, rest: tuple[int, ...], index: int, blocks: int) -> BoundLaunch:
    """Return launches on so many addresses, behind which the arguments are always the same."""
    return bind_launch(kernel, (*addresses * (0,), *rest), range(addresses), index, blocks)


def no_launch(_: Sequence[int]) -> None:
    """Launch nothing, of a kernel that was only collected."""
