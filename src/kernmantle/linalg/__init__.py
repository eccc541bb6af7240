"""Solvers: dense factorisations, spectra, and what needs no more than products with the matrix."""

from .cg import Iterations, cg
from .cholesky import CholeskyFactor, cholesky_factor, cholesky_solve, solve_cholesky
from .definite import inverse_spd, logdet_spd
from .eigh import Spectrum, eigh
from .falkon import CentreSolution, falkon
from .kernel import KernelSolution, solve_kernel
from .lu import LUFactor, lu_factor, lu_solve, solve_lu
from .masked import MaskedKronecker
from .multi_gpu import eigh_multi_gpu
from .pathwise import Posterior, pathwise_posterior
from .preconditioners import LowRank, nystrom, pivoted_cholesky
from .sketch_and_project import sketch_and_project
from .solution import Solution
from .stochastic import Estimate, logdet, trace
from .svd import SVD, svd
from .workspace import Workspace, workspace

_INSTEAD = {
    "solve": "solve_cholesky and solve_lu solve systems of a matrix, solve_kernel of a kernel, cg of any operator",
    "inv": "solve_lu and solve_cholesky need no inverse, inverse_spd is that of a positive definite matrix",
    "lstsq": "solve_kernel and falkon fit kernels with a penalty; torch.linalg.lstsq is as fast as LAPACK",
    "det": "logdet_spd and logdet are logarithms of determinants",
    "slogdet": "logdet_spd and logdet are logarithms of determinants",
    "eigvalsh": "eigh has eigenvalues, also only some of them",
    "svdvals": "svd has the largest singular values, and torch.linalg.svdvals all",
    "qr": "torch.linalg.qr is what there is",
    "norm": "torch.linalg.norm is what there is",
}
"""Replacements for functions of ``numpy.linalg`` that are not here."""


def __getattr__(name: str) -> object:
    hint = f"; {_INSTEAD[name]}" if name in _INSTEAD else ""
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")


__all__ = [
    "SVD",
    "CentreSolution",
    "CholeskyFactor",
    "Estimate",
    "Iterations",
    "KernelSolution",
    "LUFactor",
    "LowRank",
    "MaskedKronecker",
    "Posterior",
    "Solution",
    "Spectrum",
    "Workspace",
    "cg",
    "cholesky_factor",
    "cholesky_solve",
    "eigh",
    "eigh_multi_gpu",
    "falkon",
    "inverse_spd",
    "logdet",
    "logdet_spd",
    "lu_factor",
    "lu_solve",
    "nystrom",
    "pathwise_posterior",
    "pivoted_cholesky",
    "sketch_and_project",
    "solve_cholesky",
    "solve_kernel",
    "solve_lu",
    "svd",
    "trace",
    "workspace",
]
