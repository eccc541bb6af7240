"""Distances by name: a table of metrics, and all pairs of rows under each of them."""

from .condensed import pdist
from .metric import Form, Metric
from .pairwise import cdist
from .table import METRICS

__all__ = ["METRICS", "Form", "Metric", "cdist", "pdist"]
