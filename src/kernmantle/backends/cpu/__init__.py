"""CPUs: blocking and tiles, LLVM IR, the just-in-time compiler, threads."""

from ...backend import Backend

BACKEND = Backend("llvm", "cpu", "torch_ops.cpu", "torch_ops.cpu_row_reduce", "structured.kron.cpu")
