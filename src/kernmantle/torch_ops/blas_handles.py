"""Torch's handles of cuBLAS, which each thread has for each device."""

from __future__ import annotations

import threading

import torch


class BlasHandles(threading.local):
    """Devices of which this thread has torch's handle of cuBLAS.

    Calls that launch a product themselves leave it to torch's operations while a graph is captured. Torch makes a
    handle with the first product of a thread, which takes memory, and what is captured must not: calls before it are
    to leave a handle behind.
    """

    def __init__(self) -> None:
        self.devices = frozenset[int]()

    def take(self, index: int) -> None:
        """Have torch make the handle of this thread for a device."""
        with torch.cuda.device(index):
            torch.cuda.current_blas_handle()
        self.devices |= {index}


HANDLES = BlasHandles()
