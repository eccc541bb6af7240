"""mm-kermac's names: semiring kernels from stack programs or from lambdas, on CPU tensors too."""

from ..timer import CudaTimer
from .stack import PtxInstruction, Stack

__all__ = ["CudaTimer", "PtxInstruction", "Stack"]
