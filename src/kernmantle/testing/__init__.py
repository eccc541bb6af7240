"""Public tools for testing code built on the library: tolerances, asserts, cases and hypothesis strategies.

The strategies need hypothesis and are imported from ``kernmantle.testing.strategies``.
"""

from .cases import CASES, Case
from .tolerances import assert_close, tolerance

__all__ = ["CASES", "Case", "assert_close", "tolerance"]
