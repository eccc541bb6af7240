"""The suite of layers: training steps and single tokens of Kronecker-sparse layers against dense ones.

The layer of a vision transformer, and those of a language model as Monarch matrices of 32 and 64 blocks; whole blocks
of both; each call in a CUDA graph, started alone, and compiled.
"""

from __future__ import annotations

from .blocks import BLOCKS, FORMS, STACKS, block_case
from .case import Case, Suite
from .kronsparse import CHAIN, layer_case

VIT = "ViT"
CHAINS = {
    VIT: CHAIN,
    "4096 to 4096, 32 blocks": ((32, 128, 128, 1), (1, 128, 128, 32)),
    "4096 to 4096, 64 blocks": ((64, 64, 64, 1), (1, 64, 64, 64)),
    "4096 to 11008, 32 blocks": ((32, 128, 128, 1), (1, 344, 128, 32)),
    "4096 to 11008, 64 blocks": ((64, 64, 64, 1), (1, 172, 64, 64)),
}
"""Patterns by the name of a layer, the first applied first."""
ROWS, LONG_ROWS, TOKENS = (16, 256, 1024, 4096, 16384, 65536), (4096, 16384), (1, 16, 64)
EAGER, COMPILED = (16, 1024, 4096), (16, 4096)
TYPES = ("bf16", "f32")


def _case(name: str, rows: int, dtype: str, step: bool, how: str = "", bias: bool = False) -> Case:
    return layer_case(rows, dtype, step, "cuda", how, CHAINS[name], name, bias)


def suite() -> Suite:
    """All layers, what takes long to compile last."""
    models = [name for name in CHAINS if name != VIT]
    steps = [_case(name, rows, dtype, True) for name in models for rows in LONG_ROWS for dtype in TYPES]
    steps += [_case(name, LONG_ROWS[0], "bf16", True, bias=True) for name in models]
    tokens = [_case(name, rows, dtype, False) for name in models for rows in TOKENS for dtype in TYPES]
    own = [_case(VIT, rows, dtype, True) for rows in ROWS for dtype in TYPES]
    own += [_case(VIT, rows, dtype, True, bias=True) for rows in ROWS for dtype in TYPES]
    first, biased = list(CHAINS)[:2], (False, True)
    eager = [
        _case(name, rows, dtype, True, "eager", bias) for bias in biased for name in first for rows in EAGER
        for dtype in TYPES
    ]  # fmt: skip
    late = [
        _case(name, rows, dtype, True, "compiled", bias) for bias in biased for name in first for rows in COMPILED
        for dtype in TYPES
    ]  # fmt: skip
    blocks, compiled = (
        [block_case(name, shape, dtype, how) for how in hows for name, shape in BLOCKS.items() for dtype in TYPES]
        for hows in (("", "eager"), ("compiled",))
    )
    forms = [
        block_case(name, shape, "bf16", "eager", form=form) for name, shape in BLOCKS.items() for form in FORMS if form
    ]  # fmt: skip
    forms += [
        block_case(name, shape, "bf16", "eager", form=form) for name, shape in STACKS.items() for form in ("", "group")
    ]
    compiled += [
        block_case(name, shape, dtype, "compiled", form="group") for name, shape in BLOCKS.items() for dtype in TYPES
    ]
    return Suite("layers", "cuda", (*tokens, *own, *blocks, *forms, *steps, *eager, *late, *compiled))
