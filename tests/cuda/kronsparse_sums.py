"""Gradients of the weights of Kronecker-sparse products, by a plan of one kind of kernel, against float64."""

from __future__ import annotations

import math

import torch

from kernmantle.structured.mode_product import weight_gradient
from kernmantle.testing import assert_close

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


def terms(x, grad, pattern):
    """The gradient of the weights in the type of its operands."""
    a, b, c, d = pattern
    return torch.einsum("gnikl,gnijl->gijkl", x.unflatten(2, (a, c, d)), grad.unflatten(2, (a, b, d)))


def bound(monkeypatch, kind, x, grad, pattern, plan=None):
    """The sums of a kind, "row", "column" or "fma", by a plan; by that which should be quickest without one."""
    if kind != "fma":
        monkeypatch.setattr(weight_gradient, "_by_fma", lambda *_: [])
    choose = getattr(weight_gradient, f"{kind}_sum_choice")
    monkeypatch.setattr(weight_gradient, f"{kind}_sum_choice", lambda *own: (0.0, plan or choose(*own)[1]))
    found = weight_gradient.bind_gradient(x, grad, pattern, "")
    assert found is not None
    return found


def check(monkeypatch, kind, x, grad, pattern, every=(None,)):
    """Compare what every plan sums."""
    exact, size = terms(x.double(), grad.double(), pattern), terms(x.double().abs(), grad.double().abs(), pattern)
    for plan in every:
        sums = bound(monkeypatch, kind, x, grad, pattern, plan)
        assert_close(sums(x, grad), exact, depth=x.shape[1], magnitude=size)


def check_what_is_no_number(monkeypatch, kind, x, grad, pattern):
    """NaN of an entry reaches the weights that it is multiplied for, and no others."""
    x[0, 7, 0], grad[0, 99, -1] = math.nan, math.nan
    lost = bound(monkeypatch, kind, x, grad, pattern)(x, grad)[0].isnan()
    wanted = torch.zeros_like(lost)
    wanted[0, :, 0, 0] = wanted[1, -1, :, -1] = True
    assert torch.equal(lost, wanted)
