"""Steps of two factors with the batch last between them, with passes over transposed rows by torch on the CPU."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
import torch

from kernmantle.kronsparse import kron_sparse_matmul
from kernmantle.runtime.dispatch import PLANS
from kernmantle.structured.kronsparse import chain_batched, chain_cpu, chain_training

CHAINS = {
    "square": ((4, 16, 24, 1), (1, 40, 8, 8)), "narrow": ((8, 8, 8, 1), (1, 16, 32, 2)),
    "wide": ((2, 24, 16, 1), (1, 8, 24, 2)),
}  # fmt: skip


def rows_of_blocks(rows, a, extent, d):
    return rows.view(-1, a, extent, d).mT.flatten(1)


def bring_back(rows, out, a, extent, d):
    out.copy_(rows.view(-1, a, d, extent).mT.reshape(out.shape))


def weights_of_blocks(blocks, pattern):
    a, b, c, d = pattern
    return blocks.view(a, d, b, c).permute(0, 2, 3, 1).contiguous()


@pytest.fixture
def steps(monkeypatch):
    passes = SimpleNamespace(rows_of_blocks=rows_of_blocks, bring_back=bring_back, weights_of_blocks=weights_of_blocks)
    monkeypatch.setattr(chain_batched, "_transposing", lambda: passes)
    monkeypatch.setattr(chain_cpu, "bind", lambda *_: None)

    def use(kind):
        PLANS.clear()
        monkeypatch.setattr(chain_training, "kind_of", lambda *_: kind)
        monkeypatch.setattr(chain_training, "kind_for", lambda *_: kind)

    yield use
    PLANS.clear()


def operands(chain, batch):
    (a, _, c, d), (p, q, _, r) = chain
    source = torch.Generator().manual_seed(1)
    options = {"generator": source, "dtype": torch.float64}
    return [torch.randn(*batch, a * c * d, **options), *(torch.randn(own, **options) for own in (*chain, (p * q * r,)))]


def gradients(function, given):
    result = function(*given)
    wanted = [tensor for tensor in given if tensor.requires_grad]
    weight = torch.linspace(-1, 1, result.numel(), dtype=result.dtype).view(result.shape)
    return [result.detach(), *torch.autograd.grad(result, wanted, weight)]


def multiplied(x, first, second, bias):
    return kron_sparse_matmul(x, [first, second], bias=bias, activation="silu")


@pytest.mark.parametrize("chain", CHAINS.values(), ids=CHAINS)
@pytest.mark.parametrize("batch", [(8,), (2, 12)], ids=str)
def test_every_subset_of_gradients(chain, batch, steps):
    given = operands(chain, batch)
    for wanted in itertools.product((False, True), repeat=len(given)):
        if not any(wanted):
            continue
        for tensor, needed in zip(given, wanted, strict=True):
            tensor.requires_grad_(needed)
        steps("factors")
        expected = gradients(multiplied, given)
        steps("batched")
        for one, other in zip(gradients(multiplied, given), expected, strict=True):
            torch.testing.assert_close(one, other)


def test_compiled_steps_and_second_derivatives(steps):
    given = [tensor.requires_grad_() for tensor in operands(CHAINS["square"], (8,))]
    steps("factors")
    expected = gradients(multiplied, given)
    steps("batched")
    compiled = torch.compile(multiplied, fullgraph=True, backend="aot_eager")
    for one, other in zip(gradients(compiled, given), expected, strict=True):
        torch.testing.assert_close(one, other)
    torch.autograd.gradgradcheck(multiplied, given, fast_mode=True)


def test_batched_steps_take_whole_vectors_of_halves_with_the_batch_in_front():
    assert chain_batched.is_batched(CHAINS["square"], 8, "bf16", False)
    others = (
        ((24, 16, 24, 1), (8, 40, 48, 1)), ((4, 16, 24, 1), (1, 40, 64, 1)), ((4, 12, 24, 1), (1, 40, 24, 2)),
        ((4, 16, 24, 1), (1, 44, 8, 8)),
    )  # fmt: skip
    assert not any(chain_batched.is_batched(chain, 8, "bf16", False) for chain in others)
    for rest in ((9, "bf16", False), (8, "f32", False), (8, "bf16", True), (1 << 27, "f16", False)):
        assert not chain_batched.is_batched(CHAINS["square"], *rest)
    assert not chain_batched.is_batched(CHAINS["square"][:1], 8, "bf16", False)
