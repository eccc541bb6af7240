"""Contractions in torch: operators, derivatives, the direct path of a call, kernels on torch's memory."""
