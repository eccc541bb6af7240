"""Which tile a pass of a Kronecker product works in: the one measured to be quickest, where ``tune`` measured it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ..codegen import cuda
from ..contraction.kron_cuda import FmaPlan
from ..contraction.kron_mma import MmaPlan
from ..runtime.cache import Built, Key, current_cache, fingerprint
from .gpu_tiles import Tuned, measured, session
from .kron_run import Numbers, Start
from .launcher import Launcher, collecting

Plan = FmaPlan | MmaPlan
Make = Callable[[Plan], Start]


def starter(plans: Sequence[Plan], sizes: Mapping[str, int], card: str, make: Make) -> Start:
    """What runs a pass in the tile kept for its likes or in the first one; while tuning, what tries them all."""
    named = {plan.tile_name: plan for plan in reversed(plans)}
    key, tuned = _key(plans[0], sizes, card), session()
    if tuned is None:
        kept = current_cache().find(key)
        return make(plans[0] if kept is None else named.get(kept.binary.decode(), plans[0]))
    starts = {name: make(plan) for name, plan in named.items()} if collecting() else {}
    default, chosen = plans[0].tile_name, list[Start]()

    def begin(pointers: Sequence[int], numbers: Numbers) -> None:
        if pointers[1] == pointers[2] and plans[0].facts.added:  # it adds to what it writes: once only
            make(plans[0])(pointers, numbers)
            return
        if not chosen:
            found = {name: _launcher(make(plan), name) for name, plan in named.items()}
            result = Tuned(dict(sizes), default, measured(found, default, pointers, numbers))
            tuned.append(result)
            current_cache().put(key, Built(result.best.encode()))
            chosen.append(make(named[result.best]))
        chosen[0](pointers, numbers)

    return starts[default] if collecting() else begin


def _launcher(start: Start, name: str) -> Launcher:
    return Launcher(lambda pointers, numbers: start(pointers, (numbers[0], numbers[1])), name)


def _key(plan: Plan, sizes: Mapping[str, int], card: str) -> Key:
    """Device, factors, arithmetic and shape class: extents between two powers of 2 are alike."""
    alike = [(size - 1).bit_length() for size in sizes.values()]
    kind = plan.tensor if isinstance(plan, MmaPlan) else plan.compute
    return Key(card, "kron tile", f"{plan.run}, {plan.stored}, {kind}, {alike}", fingerprint(cuda.headers()))
