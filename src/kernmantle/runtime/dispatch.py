"""The one dispatch: a call of any family is a typed key, the bound call that ``PLANS`` has for it, and a launch.

A key holds everything that the checks and the plan of a call depend on. Values of numbers and addresses are not part
of it. A caller builds the key once, gets the bound call and calls it; on a miss it checks, plans, compiles, and stores
the bound call. What is called again and again with tensors of one shape has the bound call of its last key, while
torch's guards say that the key would be the same (``torch_ops.call_key.find``).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, NamedTuple, Protocol, TypeVar

from .kernel_store import compile_only
from .lru import LRUCache

TensorSpec = tuple[Hashable, ...]
"""Shape, strides, dtype, device and alignment of a tensor (its address modulo 16), and whether it requires a recorded
gradient."""


class CallKey(NamedTuple):
    """The key of a call: everything that its checks and its plan depend on.

    Parameters
    ----------
    operation : hashable
        Names the family and its static program, such as ``("program", text)``; its hash is cheap.
    options : tuple
        The call's own options: types, precision, algorithm, side, ...
    settings : tuple
        The fields of the configuration that plans depend on.
    tensors : tuple
        A TensorSpec for each tensor, None for one that is absent.
    """

    operation: Hashable
    options: tuple[Hashable, ...]
    settings: tuple[Hashable, ...]
    tensors: tuple[TensorSpec | None, ...]


class BoundCall(Protocol):
    """A call whose arguments are checked and whose kernels are loaded, ready to be launched on values.

    ``route`` names the backend, schedule and arithmetic that run.
    """

    @property
    def route(self) -> str:
        """Backend, schedule and arithmetic."""
        ...

    def __call__(self, tensors: Any, numbers: Any, outs: Any, /) -> Any:
        """Launch on tensors and numbers; write to ``outs`` if the call passes them."""
        ...


Bound = TypeVar("Bound", bound=BoundCall)
PLANS: LRUCache[Hashable, Any] = LRUCache(4096)
"""The bound calls of every family, by their keys, and by what is guarded. ``clear_all`` empties it."""


def bound(key: CallKey, make: Callable[[], Bound]) -> Bound:
    """Return the bound call of a key, made on a miss; racing threads all get the same one.

    While kernels are only collected, the bound call is made anew, so that its jobs are collected, and it is not stored,
    since it has nothing to launch.
    """
    if compile_only():
        return make()
    found = PLANS.get(key)
    return PLANS.setdefault(key, make()) if found is None else found
