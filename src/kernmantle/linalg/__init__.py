"""Solvers: dense factorisations, spectra, and what needs no more than products with the matrix."""

from .cholesky import CholeskyFactor, cholesky_factor, cholesky_solve, inverse_spd, logdet_spd, solve_cholesky
from .eigh import Spectrum, eigh
from .lu import LUFactor, lu_factor, lu_solve, solve_lu
from .solution import Solution

__all__ = [
    "CholeskyFactor",
    "LUFactor",
    "Solution",
    "Spectrum",
    "cholesky_factor",
    "cholesky_solve",
    "eigh",
    "inverse_spd",
    "logdet_spd",
    "lu_factor",
    "lu_solve",
    "solve_cholesky",
    "solve_lu",
]
