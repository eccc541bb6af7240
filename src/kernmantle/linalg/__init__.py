"""Solvers: dense factorisations, spectra, and what needs no more than products with the matrix."""

from .cg import Iterations, cg
from .cholesky import CholeskyFactor, cholesky_factor, cholesky_solve, solve_cholesky
from .definite import inverse_spd, logdet_spd
from .eigh import Spectrum, eigh
from .kernel import KernelSolution, solve_kernel
from .lu import LUFactor, lu_factor, lu_solve, solve_lu
from .multi_gpu import eigh_multi_gpu
from .preconditioners import LowRank, nystrom, pivoted_cholesky
from .solution import Solution
from .stochastic import Estimate, logdet, trace
from .workspace import Workspace, workspace

__all__ = [
    "CholeskyFactor",
    "Estimate",
    "Iterations",
    "KernelSolution",
    "LUFactor",
    "LowRank",
    "Solution",
    "Spectrum",
    "Workspace",
    "cg",
    "cholesky_factor",
    "cholesky_solve",
    "eigh",
    "eigh_multi_gpu",
    "inverse_spd",
    "logdet",
    "logdet_spd",
    "lu_factor",
    "lu_solve",
    "nystrom",
    "pivoted_cholesky",
    "solve_cholesky",
    "solve_kernel",
    "solve_lu",
    "trace",
    "workspace",
]
