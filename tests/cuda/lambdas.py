"""Random maps on random shapes with cuda.core alone, for compute-sanitizer: no user's map may leave its arrays.

``compute-sanitizer python -m tests.cuda.lambdas [count]``; their values are compared in ``test_random.py``.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np
from hypothesis import Phase, given, settings

from kernmantle.ir.node import Node
from kernmantle.testing.strategies import expressions

from .harness import Machine, compile_all, limits
from .nests import Case, gram

COUNT = 200
EXTENTS = (1, 2, 3, 7, 15, 16, 17, 31, 33, 63, 64, 65, 70, 129)
DEPTHS = (1, 2, 3, 5, 8, 15, 16, 17, 33, 40)
REDUCTIONS = ("sum", "min", "max", "logsumexp", "argmin", "prod")
LAYOUTS = ({}, {"x0": "abckm"}, {"x1": "abckn"}, {"x0": "abckm", "x1": "abckn"})


def maps(count: int) -> list[Node]:
    """So many different maps of both operands and a number."""
    found: dict[Node, None] = {}

    @settings(
        max_examples=4 * count, phases=(Phase.generate,), database=None, derandomize=True, deadline=None,
    )  # fmt: skip
    @given(expressions(("x0", "x1", "p"), depth=3, kind="any"))
    def gather(node: Node) -> None:
        found.setdefault(node)

    gather()
    return list(found)[:count]


def cases(count: int = COUNT) -> list[Case]:
    """A nest for each map, its reduction, extents and layouts in turn."""
    random = np.random.default_rng(0)
    return [
        Case(
            f"lambda_{place}",
            gram(node, REDUCTIONS[place % len(REDUCTIONS)], numbers=("p",)),
            {"m": int(random.choice(EXTENTS)), "n": int(random.choice(EXTENTS)), "k": int(random.choice(DEPTHS))},
            (0.7,),
            dict(LAYOUTS[place % len(LAYOUTS)]),
        )
        for place, node in enumerate(maps(count))
    ]


def main(arguments: Sequence[str]) -> int:
    """Run them all."""
    wanted = cases(int(arguments[0]) if arguments else COUNT)
    machine = Machine()
    compile_all(wanted, limits())
    for case in wanted:
        machine.run(case)
    sys.stdout.write(f"{len(wanted)} maps ran\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
