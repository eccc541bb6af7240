"""What each form of structured products gains over the others, by the models that choose them, on an H200.

``python scripts/forms.py [SEED COUNT]`` takes the random products of ``benchmarks/random_structured.py``, or so many
Kronecker-sparse ones that are drawn anew, powers of the tables and Monarch matrices, needs no GPU, and prints for each
form how many products take it, by how much the next best would be slower in the median and at most, and how many of
them by 3 % and more.
"""

from __future__ import annotations

import itertools
import math
import random
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch

from benchmarks import random_structured
from kernmantle.backends.cuda.tiles import CARDS
from kernmantle.errors import KernmantleError
from kernmantle.kronsparse import monarch
from kernmantle.structured.kron import gradient_cost, gradient_steps
from kernmantle.structured.kron.cuda import tensor_for
from kernmantle.structured.kron.cuda_plan import KINDS, plan
from kernmantle.structured.kron.modes import Mode, text_of
from kernmantle.structured.kronsparse import chain_training
from kernmantle.structured.mode_product import (
    block_sum_plan,
    cluster_plan,
    column_sum_plan,
    cost,
    cuda,
    fma_plan,
    fma_sum_plan,
    row_sum_plan,
    stream_mma_plan,
    stream_plan,
    tiles,
)
from kernmantle.structured.mode_product.narrow_plan import narrow_seconds
from kernmantle.structured.mode_product.plan import contiguous
from kernmantle.structured.mode_product.vendor_cost import MOST_DENSE

OWN = next(card for card in CARDS.values() if card.has(("measured",)))
DEVICE = torch.device("cuda", 0)
POWERS = ((16,) * 4, 1024), ((8,) * 5, 1024), ((64,) * 3, 320), ((32,) * 3, 1024), ((5,) * 6, 1024), ((128,) * 3, 20)
BYTES = {"f32": 4, "f16": 2, "bf16": 2}
SHAPES = (1536, 384), (384, 1536), (768, 768), (3072, 768), (1024, 1024), (4096, 4096)
Times = Mapping[str, float]


def drawn(kind: str) -> list[random_structured.Drawn]:
    """Random products of a kind."""
    return [case for case in random_structured.cases("cuda") if case.kind == kind]


def powers() -> Iterator[random_structured.KronCase]:
    """Powers of the tables."""
    for (sizes, rows), dtype in itertools.product(POWERS, ("f32", "bf16")):
        wanted = (True,) * (len(sizes) + 1)
        yield random_structured.KronCase(tuple((size, size) for size in sizes), rows, dtype, wanted)


def kron_product(case: random_structured.KronCase) -> Times:
    """Seconds of a product by all kernels, and without each kind."""
    tensor = tensor_for(case.dtype, "default", OWN.arch)
    assert tensor is not None
    widths = [math.prod(size[side] for size in case.sizes) for side in (0, 1)]
    is_aligned = all(width * BYTES[case.dtype] % 16 == 0 for width in widths)
    tensor = replace(tensor, has_wgmma=True, is_aligned=is_aligned)
    modes = tuple(Mode(p, q, index) for index, (p, q) in enumerate(case.sizes))

    def seconds(kinds: tuple[str, ...]) -> float:
        try:
            return plan(modes, 1, case.dtype, OWN, True, tensor, case.rows, kinds).seconds
        except AssertionError:
            return math.inf

    return {"": seconds(KINDS)} | {kind: seconds(tuple(own for own in KINDS if own != kind)) for kind in KINDS}


def kron_gradients(case: random_structured.KronCase) -> Times:
    """Seconds of all gradients by all kernels, and without each kind of pass."""
    shapes = tuple((q, p) for p, q in case.sizes)
    tensor = tensor_for(case.dtype, "default", OWN.arch)
    price = gradient_cost.GpuPrice(shapes, case.rows, 1, case.dtype, OWN, tensor, True)

    def seconds() -> float:
        for cache in (gradient_steps._quickest, gradient_steps._prices, gradient_cost.pass_over):
            cache.cache_clear()
        text = text_of(list(range(len(shapes))))
        return gradient_steps.seconds_of_steps(text, shapes, case.wanted[1:], case.wanted[0], (), price)

    found = {"": seconds()}
    for name in ("chain", "back_wgmma", "back_axis", "back_registers"):
        original = getattr(gradient_cost, name)
        setattr(gradient_cost, name, lambda *_: None)
        found[name] = seconds()
        setattr(gradient_cost, name, original)
    return found


def sparse_product(case: random_structured.SparseCase) -> Times:
    """Seconds of a product of weights as they are given, by each kernel."""
    problem = contiguous(case.pattern, case.rows, case.dtype, not case.last)
    arranged = cost.rearranging_seconds(case.pattern, case.dtype, False)
    found = {"tile": tiles.tiled_seconds(problem, OWN) + arranged}
    found["narrow"] = narrow_seconds(problem, OWN)
    found |= {type(own).__name__: own.seconds(problem, OWN) for own in fma_plan.candidates(problem, OWN)}
    if stream_plan.stream_plan(problem, True, OWN) is not None:
        found["stream"] = stream_plan.stream_seconds(problem, OWN)
    chosen = stream_mma_plan.stream_choice(problem, True, OWN)
    if chosen is not None and isinstance(chosen[1], stream_mma_plan.StreamMmaPlan):
        found["stream by mma"] = chosen[0]
    found["transposed"] = cost.transposed_seconds(problem, OWN) + arranged
    others = cost.seconds(case.pattern, case.rows, case.dtype, "cuda", case.last)
    return found | {name: seconds for name, seconds in others.items() if name != "kernel"}


def sparse_sums(case: random_structured.SparseCase) -> Times:
    """Seconds of the gradient of the weights, by each kernel."""
    sizes = case.pattern, case.rows, case.dtype
    found = dict(cost.gradient_seconds(*sizes, "cuda", case.last))
    found["fma"] = fma_sum_plan.fma_seconds(*sizes, case.last, OWN)
    if case.last:
        found["columns"] = column_sum_plan.columns_seconds(*sizes, OWN)
        found["blocks"] = block_sum_plan.block_sums_seconds(*sizes, OWN)
    else:
        access = [math.gcd(16, BYTES[case.dtype] * extent * case.pattern[3]) for extent in case.pattern[2:0:-1]]
        found["rows"] = row_sum_plan.row_sum_choice(*sizes, *access, 3, OWN)[0]
    return {name: seconds for name, seconds in found.items() if name != "kernel"}


def sparse_step(case: random_structured.SparseCase) -> Times:
    """Seconds of a training step of one factor in a graph, by each kind."""
    found = chain_training.expected((case.pattern,), case.rows, case.dtype, case.last, DEVICE)
    return {name: seconds - chain_training._WITH_OTHERS[name] for name, seconds in found.items()}


def chains() -> Iterator[tuple[tuple[tuple[int, int, int, int], ...], int, str]]:
    """Monarch matrices, rows and types."""
    for (high, wide), blocks, rank in itertools.product(SHAPES, (4, 8, 16, 32, 64), (2, 8, 16, 32, 64)):
        try:
            patterns = tuple((a, b, c, d) for a, b, c, d in monarch((high, wide), blocks, rank))
        except KernmantleError:
            continue
        for rows, dtype in itertools.product((1, 16, 256, 4096, 25088), ("f32", "bf16")):
            yield patterns, rows, dtype


def packed_chain(patterns: tuple[tuple[int, int, int, int], ...], rows: int, dtype: str) -> Times:
    """Seconds of a chain of packed weights, by each kind."""
    by_factors, grouped = chain_training._forward_seconds(patterns, rows, dtype, False, DEVICE, True, False, True)
    found = {"factors": by_factors, "grouped": grouped}
    cluster = cluster_plan.cluster_plan(patterns[0], patterns[1], rows, dtype, True, "", OWN)
    if cluster is not None:
        found["cluster"] = cluster_plan.cluster_seconds(cluster, rows)
    (a, _, c, d), (e, f, _, h) = patterns
    if e * f * h * a * c * d <= MOST_DENSE:
        found["dense"] = cost.dense_seconds((e * f * h, a * c * d), rows, dtype, "cuda")
    return found


def show(title: str, slower: Mapping[str, list[float]], count: int) -> None:
    """Print a table: of how many products a form is the quickest, and by how much."""
    lines = [
        f"{title}, {count}",
        "",
        "| form | products | next best, median | most | by 3 % and more |",
        "|---|---|---|---|---|",
    ]
    for name, times in sorted(slower.items(), key=lambda item: -len(item[1])):
        surely = sum(own >= 1.03 for own in times)
        lines.append(f"| {name} | {len(times)} | {statistics.median(times):.2f} | {max(times):.2f} | {surely} |")
    sys.stdout.write("\n".join(lines) + "\n\n")


def without(title: str, every: list[Times]) -> None:
    """Show what products take without each form."""
    slower = defaultdict[str, list[float]](list)
    for times in every:
        for name, seconds in times.items():
            if name and seconds > 1.0001 * times[""]:
                slower[name].append(seconds / times[""])
    show(title, slower, len(every))


def best(title: str, every: list[Times]) -> None:
    """Show by how much the quickest form is ahead of the next one."""
    slower = defaultdict[str, list[float]](list)
    for times in every:
        (first, least), *others = sorted(times.items(), key=lambda item: item[1])
        slower[first].append(others[0][1] / least if others else math.inf)
    show(title, slower, len(every))


def main() -> None:
    """Print all tables."""
    cuda.limits, cuda.index_of = lambda _: OWN, lambda _: 0  # no GPU is asked
    kron, sparse = [*drawn("kron"), *powers()], drawn("kronsparse")
    if sys.argv[1:]:
        source = random.Random(int(sys.argv[1]))
        sparse = [random_structured._sparse(source, "cuda") for _ in range(int(sys.argv[2]))]
    without("Kronecker products", [kron_product(case) for case in kron])  # pyright: ignore[reportArgumentType]
    without("Gradients of Kronecker products", [kron_gradients(case) for case in kron])  # pyright: ignore
    best("Kronecker-sparse products", [sparse_product(case) for case in sparse])  # pyright: ignore
    best("Gradients of the weights of Kronecker-sparse products", [sparse_sums(case) for case in sparse])  # pyright: ignore
    best("Steps of one Kronecker-sparse factor in a graph", [sparse_step(case) for case in sparse])  # pyright: ignore
    best("Chains of two packed factors", [packed_chain(*chain) for chain in chains()])


if __name__ == "__main__":
    main()
