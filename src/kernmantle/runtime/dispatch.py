"""The one dispatch: a call of any family is a typed key, the bound call that ``PLANS`` has for it, and a launch.

A key says everything that the checks and the plan of a call depend on. Values of numbers and addresses are not part
of it. Whoever makes a call builds its key once, takes the bound call and calls it; on a miss it goes through all
checks, plans, compiles, and stores what it bound.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, NamedTuple, Protocol, TypeVar

from .kernel_store import collecting
from .lru import LRUCache

TensorSpec = tuple[Hashable, ...]
"""Shape, strides, dtype, device and alignment of a tensor (its address modulo 16), and whether a gradient by it is
recorded."""


class CallKey(NamedTuple):
    """The key of a call: everything that its plan depends on.

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
    """A call whose checks are passed and whose kernels are loaded: what is left is to launch it on values.

    ``route`` names the backend, schedule and arithmetic that run.
    """

    @property
    def route(self) -> str:
        """Backend, schedule and arithmetic."""
        ...

    def __call__(self, tensors: Any, numbers: Any, outs: Any, /) -> Any:
        """Launch on tensors and numbers, writing to ``outs`` where the call has given some."""
        ...


Bound = TypeVar("Bound", bound=BoundCall)
PLANS: LRUCache[CallKey, Any] = LRUCache(4096)
"""The bound calls of every family. ``clear_all`` empties it."""


def bound(key: CallKey, make: Callable[[], Bound]) -> Bound:
    """Return the bound call of a key, made on a miss; of threads that race, all get the same.

    While kernels are only collected, a call is made anew, so that its jobs are collected, and not stored, as it has
    nothing to launch.
    """
    if collecting():
        return make()
    found = PLANS.get(key)
    return PLANS.setdefault(key, make()) if found is None else found
