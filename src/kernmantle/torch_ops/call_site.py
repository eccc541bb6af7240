"""Calls of operators in code that Inductor writes: of a Python function, past torch's dispatcher.

Inductor writes an operator that it does not know as a call of ``torch.ops``, which takes the host 8 us and more before
it comes to Python again, where a key of the tensors finds what was bound for them. A lowering of ours has it write a
call of a ``CallSite``, one for each operator in its code, which asks torch's guard whether the tensors are as before.
Where Inductor writes C++, and where it is not as we know it, operators are called as before.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from typing import Any

import torch

from .call_key import find, keep
from .torch_private import in_callers_context, is_capturing

Bind = Callable[..., Callable[..., Any]]
"""Function of an operator's arguments that returns what gives the results of any that are laid out alike."""
BINDS: dict[str, Bind] = {}
"""Functions that bind the operators that have call sites, by their names."""


class CallSite:
    """A call of an operator, which finds what was bound for its last tensors.

    Code that Inductor stores on disk for other processes imports this class, so that its name and arguments stay.
    """

    __slots__ = ("_lists", "_singles", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self._singles: list[int] | None = None  # the positions of tensors, and of lists of them, alike in each call
        self._lists = list[int]()

    @in_callers_context
    def __call__(self, *args: Any) -> Any:
        """Return the results of the operator."""
        singles = self._singles
        if singles is None:
            self._lists = [at for at, each in enumerate(args) if type(each) is list and any(map(torch.is_tensor, each))]
            singles = self._singles = [at for at, each in enumerate(args) if isinstance(each, torch.Tensor)]
        tensors = [args[at] for at in singles]
        for at in self._lists:
            tensors += args[at]
        if is_capturing():
            return BINDS[self.name](*args)(*args)
        found = find(self, tensors)
        if found is None:
            found = BINDS[self.name](*args)
            keep(self, tensors, found)
        return found(*args)


def lower(operator: Any) -> None:
    """Have Inductor write call sites of an operator, if Inductor is there and is as we know it."""
    lowering = sys.modules.get("torch._inductor.lowering")
    if lowering is None or operator in lowering.lowerings:
        return
    try:
        node, wrap = _node(), sys.modules["torch._inductor.ir"].TensorBox.create
        constraint, tree_map = lowering.constrain_to_fake_tensors, lowering.pytree.tree_map
        enter = lowering.register_lowering(operator, type_promotion_kind=None)
        lowering.add_needs_realized_inputs(operator)
        lowering.add_layout_constraint(operator, constraint)
    except (AttributeError, ImportError, KeyError, TypeError):
        return

    def create(*args: Any, **kwargs: Any) -> Any:
        """Return the results of the operator in Inductor's terms."""
        return tree_map(lambda each: each if each is None else wrap(each), node.create(operator, *args, **kwargs))

    # For a process that only compiles and has no lowering of ours.
    setattr(create, "_is_fallback_handler", True)  # noqa: B010
    enter(create)


@lru_cache(maxsize=1)
def _node() -> Any:
    """Return Inductor's node of an operator that it does not know, which is written as a call site."""
    private: Any = sys.modules["torch._inductor.ir"]
    graph = import_module("torch._inductor.virtualized").V

    class CallSiteKernel(private.FallbackKernel):
        """An operator in a graph, written as a call site."""

        def codegen(self, wrapper: Any) -> None:
            """Write the call."""
            root = wrapper
            while hasattr(root, "parent_wrapper"):
                root = root.parent_wrapper
            name, operator = f"kernmantle_{self.get_name()}", self.op_overload._schema.name.partition("::")[2]
            if not graph.graph.cpp_wrapper and hasattr(root, "header") and hasattr(root, "add_import_once"):
                root.add_import_once(f"from {__name__} import {CallSite.__name__}")
                root.header.writeline(f"{name} = {CallSite.__name__}({operator!r})")
                self.python_kernel_name = name
            super().codegen(wrapper)

    return CallSiteKernel
