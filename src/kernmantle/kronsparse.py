"""Kronecker-sparse matrices, under the name that users import; the code is in ``structured/kronsparse``."""

from .structured.kronsparse import *  # noqa: F403
from .structured.kronsparse import __all__ as __all__  # noqa: PLC0414
