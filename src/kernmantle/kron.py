"""Kronecker products, under the name that users import; the code is in ``structured/kron``."""

from .structured.kron import *  # noqa: F403
from .structured.kron import __all__ as __all__  # noqa: PLC0414
