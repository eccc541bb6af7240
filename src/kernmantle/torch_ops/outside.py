"""Calls outside of compiled graphs: solvers, whose next step depends on values, and nested forward derivatives."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")


def outside(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function so that torch.compile ends its graph before it, calls it as it is, and goes on after it."""

    @wraps(function)
    def call(*args: P.args, **options: P.kwargs) -> R:
        if torch.compiler.is_dynamo_compiling():
            return torch._dynamo.disable(function)(*args, **options)  # pyright: ignore
        return function(*args, **options)

    return call
