"""Calls whose plan is there already: with out=, params= and named operands they take the same path as without."""

import numpy as np
import pytest
import torch

import kernmantle as km
from kernmantle import errors
from kernmantle.testing import assert_close

WEIGHTED = km.Contraction("mk,nk,w:k->mn", lambda a, b, w: w * abs(a - b))


def weighted(x, y, w):
    return (w * (x[:, None, :] - y[None, :, :]).abs()).double().sum(-1)


def arrays(seed):
    generator = torch.Generator().manual_seed(seed)
    x, y, w = (torch.rand(shape, generator=generator) for shape in ((7, 5), (9, 5), (5,)))
    return x, y, w


@pytest.mark.parametrize("given", ["name", "params"])
def test_named_operands_are_read_at_each_call(given):
    for seed in range(4):
        x, y, w = arrays(seed)
        found = WEIGHTED(x, y, w=w) if given == "name" else WEIGHTED(x, y, params={"w": w})
        assert_close(found, weighted(x, y, w), depth=5)
    assert len(WEIGHTED.recall._known) > 0


def test_named_operands_of_other_layouts_are_other_calls():
    for seed in range(3):
        x, y, w = arrays(seed)
        for own in (w, torch.stack([w, -w], 1)[:, 0], w.expand(5)):
            assert_close(WEIGHTED(x, y, w=own), weighted(x, y, own), depth=5)
    with pytest.raises(errors.ShapeError, match="takes 2 operands, got 3"):
        WEIGHTED(x, y, w, w=w)
    with pytest.raises(errors.ParameterError, match="missing"):
        WEIGHTED(x, y)


def test_out_is_written_at_each_call():
    contraction = km.Contraction("mk,nk->mn", lambda a, b, p: abs(a - b) ** p)
    out = torch.full((7, 9), float("nan"))
    for seed in range(4):
        x, y, _ = arrays(seed)
        before = out._version
        assert contraction(x, y, p=1.5 + seed, out=out) is out
        wanted = ((x[:, None, :] - y[None, :, :]).abs().double() ** (1.5 + seed)).sum(-1)
        assert_close(out, wanted, depth=5)
        assert out._version > before
        assert km.cdist(x, y, p=1, out=out) is out
        assert_close(out, torch.cdist(x.double(), y.double(), p=1), depth=5)
    assert len(contraction.recall._known) > 0


def test_out_of_other_layouts_is_another_call():
    x, y, _ = arrays(0)
    wanted = torch.cdist(x.double(), y.double(), p=1)
    for _ in range(3):
        for out in (torch.empty(7, 9), torch.empty(9, 7).T, torch.empty(7, 18)[:, ::2]):
            assert_close(km.cdist(x, y, p=1, out=out), wanted, depth=5)
        found = np.empty((7, 9), np.float32)
        assert km.cdist(x.numpy(), y.numpy(), p=1, out=found) is found
        assert_close(torch.from_numpy(found), wanted, depth=5)


def test_what_out_may_not_be_is_refused_at_each_call():
    memory = torch.rand(7, 7)
    own = km.Contraction("mk,nk->mn", lambda a, b: abs(a - b))
    own(memory[:, :7], torch.rand(7, 7), out=torch.empty(7, 7))
    for _ in range(2):
        own(memory, torch.rand(7, 7), out=torch.empty(7, 7))
        with pytest.raises(errors.OutputError, match="overlaps an operand"):
            own(memory, torch.rand(7, 7), out=memory)
        with pytest.raises(errors.GradientError, match="out requires a gradient"):
            own(memory, torch.rand(7, 7), out=torch.empty(7, 7, requires_grad=True))
        with pytest.raises(errors.GradientError, match="out= cannot be combined"):
            own(memory.clone().requires_grad_(), torch.rand(7, 7), out=torch.empty(7, 7))
        with pytest.raises(errors.OutputError, match="shape"):
            own(memory, torch.rand(7, 7), out=torch.empty(7, 8))
    with pytest.raises(errors.ParameterError, match="by name and in params="):
        WEIGHTED(*arrays(0)[:2], w=memory[0, :5], params={"w": memory[0, :5]})
