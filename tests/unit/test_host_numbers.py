"""Numbers in tensors on the host beside operands on a device: which are read, and which are not."""

from __future__ import annotations

import pytest
import torch

import kernmantle as km
from kernmantle.torch_ops.checks import Call, is_host_number

ELSEWHERE = torch.device("meta")
NUMBER = torch.tensor(2.0)


def test_a_number_on_the_host_is_read_beside_operands_elsewhere():
    assert is_host_number(NUMBER, ELSEWHERE)
    assert is_host_number(torch.tensor(3), ELSEWHERE)
    assert not is_host_number(NUMBER, NUMBER.device)


@pytest.mark.parametrize(
    "value", [2.0, torch.ones(1), torch.ones((), device="meta"), torch.tensor(2.0, requires_grad=True)], ids=str
)
def test_other_values_are_not(value):
    assert not is_host_number(value, ELSEWHERE)


def test_what_a_transform_watches_is_not():
    asked = []

    def see(value):
        asked.append(is_host_number(value, ELSEWHERE))
        return value * 2

    torch.func.vmap(see)(torch.ones(3))
    torch.func.grad(see)(NUMBER)
    torch.func.jvp(see, (NUMBER,), (NUMBER,))
    with torch.autograd.forward_ad.dual_level():
        see(torch.autograd.forward_ad.make_dual(NUMBER, NUMBER))
    assert asked == [False] * 4


def test_a_parameter_on_the_host_is_a_number_of_the_call():
    own, x = km.Contraction("mk,nk->mn", lambda a, b, p: abs(a - b) ** p), torch.empty(4, 4, device="meta")
    assert Call.of(own.definition, [x, x], {"p": NUMBER}).numbers == {"p": 2.0}
    tracked = NUMBER.clone().requires_grad_()
    assert Call.of(own.definition, [x, x], {"p": tracked}).arrays[-1] is tracked
