"""Tests by kernels: whether two samples have one distribution, whether two variables are independent."""

from .independence import hsic
from .permutation import PermutationTest
from .two_sample import mmd

__all__ = ["PermutationTest", "hsic", "mmd"]
