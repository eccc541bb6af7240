"""The suite of whole models: a vision transformer and a language model, some of their layers Kronecker-sparse."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from kernmantle.kronsparse import KSLinear, KSPattern, monarch, replace_linears

from .case import DTYPES, Arrays, Case, Exact, Peer, Picks, Prepare, Problem, Suite
from .kronsparse import clock_of, graph
from .work import Work

PARTS = ("model", "block", "ffn", "attention", "up", "down", "qkv", "proj")
TYPES = ("f32", "bf16")
_ROUNDINGS = 32  # of a layer: what is normalised, four products, two sums, and attention, which magnifies them


class Kind(NamedTuple):
    """A model with random weights, what it is given, the shape of what it gives and the number of its layers.

    ``independent``: each row of the result is that of an input alone.
    """

    title: str
    make: Callable[[], nn.Module]
    inputs: Callable[[str], torch.Tensor]
    shape: tuple[int, int]
    layers: int
    independent: bool


def _vit() -> nn.Module:
    return import_module("timm").create_model("vit_small_patch16_224", pretrained=False)


def _gpt() -> nn.Module:
    library = import_module("transformers")
    return library.GPT2Model(library.GPT2Config(n_embd=1024, n_layer=24, n_head=16, use_cache=False))


def _images(device: str) -> torch.Tensor:
    return torch.randn(128, 3, 224, 224, generator=torch.Generator(device).manual_seed(0), device=device)


def _words(device: str) -> torch.Tensor:
    return torch.randint(50257, (1, 1024), generator=torch.Generator(device).manual_seed(0), device=device)


KINDS = {
    "ViT-S/16": Kind("ViT-S/16, 128 images", _vit, _images, (128, 1000), 12, True),
    "GPT-2-medium": Kind("GPT-2-medium, 1024 words", _gpt, _words, (1024, 1024), 24, False),
}


def rule(_: str, layer: Any) -> list[KSPattern]:
    """Two factors with a third of the weights or less: blocks of 64 x 64, then four interleaved ones."""
    rows, columns = (layer.nf, layer.weight.shape[0]) if hasattr(layer, "nf") else layer.weight.shape
    return monarch((rows, columns), columns // 64, 4, 16)


@lru_cache(maxsize=1)
def _models(kind: str, part: str, dtype: str, device: str) -> dict[str, nn.Module]:
    """One with sparse layers, and one of the same function whose layers have their matrices."""
    torch.manual_seed(0)
    with torch.device(device):
        sparse = KINDS[kind].make().eval().requires_grad_(False)
        replace_linears(sparse, rule, part=part, project=False)
    sparse = sparse.requires_grad_(False).to(DTYPES[dtype])
    full = copy.deepcopy(sparse)
    for parent in list(full.modules()):
        for name, child in parent.named_children():
            if isinstance(child, KSLinear):
                setattr(parent, name, filled(child))
    for parent in list(sparse.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, KSLinear):
                setattr(parent, name, child.pack())
    return {"sparse": sparse, "dense": full}


def filled(layer: KSLinear) -> nn.Linear:
    """The dense layer of the same function."""
    own = nn.Linear(layer.in_features, layer.out_features, layer.bias is not None, device="meta")
    own.weight = nn.Parameter(layer.to_dense().detach(), requires_grad=False)
    own.register_parameter("bias", layer.bias)
    return own


def _result(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """What a model gives, the numbers of an image or of a word in a row."""
    found = model(x)
    value = found if isinstance(found, torch.Tensor) else found.last_hidden_state
    return value.flatten(0, -2)


def _call(chosen: str, kind: str, part: str, dtype: str, captured: bool) -> Prepare:
    def prepare(given: Arrays) -> Callable[[], Any]:
        x = given["x"]
        model = _models(kind, part, dtype, x.device.type)[chosen]

        def call() -> torch.Tensor:
            with torch.no_grad():
                return _result(model, x)

        return graph(call, x.device.type) if captured else call

    return prepare


def case(kind: str, part: str, dtype: str, captured: bool, device: str = "cuda") -> Case:
    """A model with some layers Kronecker-sparse against the same with their matrices."""
    own = KINDS[kind]

    def make(device: str) -> Arrays:
        x = own.inputs(device)
        return {"x": x.to(DTYPES[dtype]) if x.is_floating_point() else x}

    def cut(given: Arrays, picks: Picks) -> Arrays:
        x, rows = given["x"], torch.tensor(picks.rows, device=given["x"].device)
        x = x.index_select(0, rows) if own.independent else x
        model = copy.deepcopy(_models(kind, part, dtype, x.device.type)["dense"]).double()
        with torch.no_grad():
            value = _result(model, x.double() if x.is_floating_point() else x)
        return {"value": value if own.independent else value.index_select(0, rows)}

    def exact(given: Exact, picks: Picks) -> np.ndarray[Any, Any]:
        return given["value"][:, picks.columns]

    how = "in a graph" if captured else "eager"
    problem = Problem(make, exact, own.shape, own.shape[1], dtype, cut)
    return Case(
        f"{kind} {part} {dtype} {how}", f"{own.title}, {part} sparse, {dtype}, {how}", problem,
        _call("sparse", kind, part, dtype, captured), (Peer("dense", _call("dense", kind, part, dtype, captured)),),
        Work(), (), clock_of(device), roundings=_ROUNDINGS * own.layers,
    )  # fmt: skip


def suite() -> Suite:
    """Both models by part, in two types, each call in a graph and started alone."""
    rows = [
        case(kind, part, dtype, captured)
        for captured, part, kind, dtype in itertools.product((True, False), PARTS, KINDS, TYPES)
    ]
    return Suite("kronsparse-models", "cuda", tuple(rows))
