"""Replace the linear layers of a vision transformer and a language model by Kronecker-sparse ones, part by part.

Both models are built with random weights, so nothing is downloaded. The example needs timm and transformers, and skips
the model whose package is missing. On a GPU the models have their usual sizes, on a CPU a few narrow blocks.
"""
# ruff: noqa: T201

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from statistics import median
from typing import Any

import torch
from torch import nn

import kernmantle as km

PARTS = ("qkv", "proj", "up", "down", "attention", "ffn", "block")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def vision_transformer() -> tuple[nn.Module, torch.Tensor]:
    """ViT-S/16 and a batch of images."""
    sizes = (
        {"embed_dim": 384, "depth": 12, "num_heads": 6}
        if DEVICE == "cuda"
        else {"embed_dim": 96, "depth": 2, "num_heads": 3}
    )
    model = import_module("timm.models.vision_transformer").VisionTransformer(patch_size=16, **sizes)
    return model, torch.randn(128 if DEVICE == "cuda" else 2, 3, 224, 224)


def language_model() -> tuple[nn.Module, torch.Tensor]:
    """GPT-2, the medium one, and a batch of texts."""
    transformers = import_module("transformers")
    sizes = (
        {"n_embd": 1024, "n_layer": 24, "n_head": 16} if DEVICE == "cuda" else {"n_embd": 96, "n_layer": 2, "n_head": 3}
    )
    model = transformers.GPT2Model(transformers.GPT2Config(use_cache=False, **sizes))
    return model, torch.randint(1000, (8 if DEVICE == "cuda" else 2, 512))


MODELS: dict[str, tuple[str, Callable[[], tuple[nn.Module, torch.Tensor]]]] = {
    "vision transformer": ("timm", vision_transformer),
    "language model": ("transformers", language_model),
}


def rule(_: str, layer: Any) -> list[km.KSPattern]:
    """Two Monarch factors with about a quarter of the weights."""
    rank = max(1, layer.weight.numel() // (16 * sum(layer.weight.shape)))
    return km.kronsparse.monarch(layer, p=4, q=4, rank=min(rank, *(size // 4 for size in layer.weight.shape)))


def seconds(models: Sequence[nn.Module], given: torch.Tensor, calls: int = 5) -> list[float]:
    """Of a forward pass of each in turn, the medians."""

    def once(model: nn.Module) -> float:
        begin = time.perf_counter()
        model(given)
        if DEVICE == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - begin

    with torch.inference_mode(), torch.autocast(DEVICE, torch.bfloat16, enabled=DEVICE == "cuda"):
        rounds = [[once(model) for model in models] for _ in range(calls + 1)]
    return [median(taken) for taken in zip(*rounds[1:], strict=True)]


def main() -> None:
    """Times and sizes, dense and with each part replaced."""
    for name, (package, make) in MODELS.items():
        if find_spec(package) is None:
            print(f"{name}: {package} is not installed")
            continue
        torch.manual_seed(0)
        model, given = make()
        model, given = model.eval().to(DEVICE), given.to(DEVICE)
        count = sum(parameter.numel() for parameter in model.parameters())
        print(f"{name}: {count / 1e6:.1f} million parameters")
        for part in PARTS:
            changed = copy.deepcopy(model)
            report = km.replace_linears(changed, rule, part=part, project=False)
            assert report.layers
            dense, taken = seconds([model, changed], given)
            print(
                f"  {part:9} {len(report.layers):3} layers, {report.after / 1e6:.1f} million parameters, "
                f"{1e3 * taken:.2f} ms, dense {1e3 * dense:.2f} ms, {dense / taken:.2f} x"
            )


if __name__ == "__main__":
    main()
