"""Optimal transport between weighted points, by any cost, without a matrix of costs in memory."""

from .plan import Plan
from .sinkhorn import Transport, sinkhorn

__all__ = ["Plan", "Transport", "sinkhorn"]
