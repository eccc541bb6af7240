"""Steps of one product after the other whose passes are launches alone, on a GPU against float64."""

from __future__ import annotations

import pytest
import torch

import kernmantle as km
from kernmantle.runtime.dispatch import PLANS
from kernmantle.structured.kronsparse import chain_launches, chain_training
from kernmantle.testing import assert_close

pytestmark = pytest.mark.cuda

CHAINS = {
    "vit": ((6, 64, 64, 1), (1, 768, 192, 2)),
    "monarch": ((32, 32, 32, 1), (1, 32, 32, 32)),
    "one": ((4, 96, 64, 2),),
    "three": ((4, 64, 64, 4), (2, 64, 64, 8), (1, 128, 64, 16)),
}


def exact(x: torch.Tensor, layer: km.KSLinear, slope: torch.Tensor) -> list[list[torch.Tensor]]:
    """Result and gradients in float64, and bounds of the sizes of the terms of each."""
    found = []
    for own in (lambda value: value, torch.abs):
        leaves = [own(each.detach().double()).requires_grad_() for each in (x, *layer.parameters())]
        named = dict(zip(("x", *[name for name, _ in layer.named_parameters()]), leaves, strict=True))
        value = named["x"]
        for number, (a, _, c, d) in enumerate(layer.patterns):
            weight = named[f"weights.{number}"]
            value = torch.einsum("nikl,ijkl->nijl", value.reshape(-1, a, c, d), weight).flatten(1)
        value = value + named["bias"] if "bias" in named else value
        found.append([value.detach(), *torch.autograd.grad(value, leaves, own(slope.double()))])
    return found


@pytest.mark.parametrize("name", CHAINS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_values_and_gradients(dtype, name, monkeypatch) -> None:
    PLANS.clear()
    monkeypatch.setattr(chain_training, "kind_of", lambda *_: "factors")
    ran, run = [], chain_launches.BothPasses.run

    def counted(*operands):
        ran.append(1)
        return run(*operands)

    monkeypatch.setattr(chain_launches.BothPasses, "run", counted)
    chain = CHAINS[name]
    (a, _, c, d), (p, q, _, r) = chain[0], chain[-1]
    for bias, rows in ((True, 4096), (False, 264), (True, 1000)):
        torch.manual_seed(0)
        layer = km.KSLinear(a * c * d, p * q * r, chain, bias, device="cuda", dtype=dtype)
        x, slope = (torch.randn(rows, size, device="cuda").to(dtype) for size in (a * c * d, p * q * r))
        wanted, sizes = exact(x, layer, slope)
        x.requires_grad_()
        ran.clear()
        for _ in range(3):
            value = layer(x)
            found = [value.detach(), *torch.autograd.grad(value, [x, *layer.parameters()], slope)]
            for one, two, size in zip(found, wanted, sizes, strict=True):
                assert_close(one, two, dtype=dtype, depth=1024 + rows, magnitude=size)
    PLANS.clear()
