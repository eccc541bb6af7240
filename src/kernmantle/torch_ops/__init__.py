"""Contractions in torch: operators, derivatives, the direct path of eager calls, and kernels on torch's memory."""
