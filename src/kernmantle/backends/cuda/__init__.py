"""NVIDIA GPUs: tiles and plans, CUDA C++ around the templates of ``kernels``, NVRTC, launches."""

from ...backend import Backend

BACKEND = Backend(
    "cuda", "cuda", "torch_ops.cuda_contract", "torch_ops.cuda_row_reduce", "structured.kron.cuda",
    "torch_ops.cuda_softmax",
)  # fmt: skip
