"""mm-kermac's names: semiring kernels from stack programs or from lambdas, on CPU tensors too."""

from ..timer import CudaTimer
from .stack import PtxInstruction, Stack

# What programs import, and the module here.
RENAMED = {"helpers": "formulas"}

__all__ = ["CudaTimer", "PtxInstruction", "Stack"]
