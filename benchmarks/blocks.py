"""Training steps of whole transformer blocks with Kronecker-sparse layers, against the same with matrices."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from kernmantle.kronsparse import KSLinear, attention, group, mlp, replace_linears

from .case import DTYPES, Arrays, Case, Exact, Peer, Picks, Prepare, Problem
from .kronsparse import clock_of, graph
from .kronsparse_models import filled, rule
from .work import Work

_ROUNDINGS = 96  # of a block and its derivative: three times those of what it gives


class Shape(NamedTuple):
    """Sequences, their tokens, the numbers of a token, the heads, and whether a token sees only those before it.

    ``blocks`` follow one another.
    """

    sequences: int
    tokens: int
    width: int
    heads: int
    causal: bool
    blocks: int = 1


BLOCKS = {
    "ViT-S/16 block": Shape(128, 197, 384, 6, False), "GPT-2-medium block": Shape(4, 1024, 1024, 16, True),
}  # fmt: skip
STACKS = {f"4 {name}s": shape._replace(blocks=4) for name, shape in BLOCKS.items()}


class Block(nn.Module):
    """Attention, then two layers with a GELU between, each added to its normalised input."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width = shape.width
        self.heads, self.causal = shape.heads, shape.causal
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(sequences, tokens, width) to the same shape."""
        x = x + self.attend(self.norm1(x))
        return x + self.fc2(functional.gelu(self.fc1(self.norm2(x))))

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        """Return the attention of each token to others."""
        heads = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(*heads, is_causal=self.causal)
        return self.proj(mixed.transpose(1, 2).flatten(2))


class OneStepBlock(Block):
    """The same, both layers behind the attention as one step of autograd."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(sequences, tokens, width) to the same shape."""
        x = x + self.attend(self.norm1(x))
        return mlp(self.norm2(x), self.fc1, self.fc2, residual=x)


class TwoStepBlock(Block):
    """The same, the attention with its layers as one step of autograd, and both layers behind it as another one."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(sequences, tokens, width) to the same shape."""
        x = attention(self.norm1(x), self.qkv, self.proj, self.heads, self.causal, residual=x)
        return mlp(self.norm2(x), self.fc1, self.fc2, residual=x)


FORMS = {
    "": "", "mlp": ", an MLP of one step", "attention": ", attention and MLP of one step each",
    "group": ", layers in a group",
}  # fmt: skip
"""Forms of a block of ours, and what the names of their rows have for them."""


@lru_cache(maxsize=1)
def _blocks(shape: Shape, dtype: str, device: str) -> dict[str, nn.Module]:
    """Ones whose layers are Kronecker-sparse, by their form, and one of the same function."""
    torch.manual_seed(0)
    with torch.device(device):
        sparse = nn.Sequential(*[Block(shape) for _ in range(shape.blocks)])
        replace_linears(sparse, rule, project=False)
    sparse = sparse.to(DTYPES[dtype])
    full = copy.deepcopy(sparse)
    for block in full:
        for name, child in list(block.named_children()):
            if isinstance(child, KSLinear):
                setattr(block, name, filled(child))
    own = {"": sparse, "mlp": copy.deepcopy(sparse), "attention": copy.deepcopy(sparse)}
    for form, kind in (("mlp", OneStepBlock), ("attention", TwoStepBlock)):
        for block in own[form]:
            block.__class__ = kind
    own["group"] = group(copy.deepcopy(sparse))
    return {**own, "dense": full.requires_grad_()}


def _slope(block: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, others: list[Any]) -> torch.Tensor:
    """Forward pass, and backward pass to the gradients of everything; gives that of x, added over the tokens."""
    result = block(x)
    slope = torch.linspace(-1, 1, result.shape[-1], dtype=x.dtype, device=x.device).expand_as(result)
    return torch.autograd.grad(result, [x, *others], slope)[0].sum(1)


def _step(chosen: str, shape: Shape, dtype: str, how: str) -> Prepare:
    def prepare(given: Arrays) -> Callable[[], Any]:
        x = given["x"].detach().requires_grad_()
        block = _blocks(shape, dtype, x.device.type)[chosen]
        own = torch.compile(block, dynamic=False) if how == "compiled" else block
        others = list(block.parameters())
        return graph(lambda: _slope(own, x, others), "" if how else x.device.type)

    return prepare


def block_case(name: str, shape: Shape, dtype: str, how: str = "", device: str = "cuda", form: str = "") -> Case:
    """A training step: by the device's own clock in replays of a graph, or in all if ``how`` is "eager", "compiled".

    ``form`` is one of ``FORMS``.
    """

    def make(device: str) -> Arrays:
        source = torch.Generator(device).manual_seed(0)
        x = torch.randn(shape.sequences, shape.tokens, shape.width, generator=source, device=device)
        return {"x": x.to(DTYPES[dtype])}

    def cut(given: Arrays, picks: Picks) -> Arrays:
        x = given["x"][picks.rows].double().requires_grad_()
        block = copy.deepcopy(_blocks(shape, dtype, x.device.type)["dense"]).double()
        return {"value": _slope(block, x, []).detach()}

    def exact(given: Exact, picks: Picks) -> np.ndarray[Any, Any]:
        return given["value"][:, picks.columns]

    after, clock = (f" {how}", "wall") if how else ("", clock_of(device))
    after += FORMS[form]
    whole = name if shape.blocks > 1 else f"a {name}"
    title = f"training step of {whole}, {shape.sequences} x {shape.tokens} tokens, {dtype}{after}"
    dense = Peer("dense", _step("dense", shape, dtype, how), compiles=how == "compiled")
    size, depth = (shape.sequences, shape.width), shape.tokens * shape.width
    return Case(
        f"{name} training step {dtype}{after}", title, Problem(make, exact, size, depth, dtype, cut, picked=2),
        _step(form, shape, dtype, how), (dense,), Work(), (), clock,
        roundings=_ROUNDINGS * shape.blocks,
    )  # fmt: skip
