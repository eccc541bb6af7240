"""Torch operators: programs on tensors, with derivatives, through compiled kernels."""
