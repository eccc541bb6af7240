"""What a GPU would be given for kernels: one kernel for a composition, whose source ``golden.cuda_code`` records."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from unittest import mock

import pytest
import torch

from kernmantle.backends.cuda import vjp_plan
from kernmantle.backends.cuda.emit import emit
from kernmantle.backends.cuda.gram_plan import CudaPlan, plan
from kernmantle.backends.cuda.squares_plan import SquaresPlan, squares_plan
from kernmantle.backends.cuda.vjp_plan import VjpPlan, plan_vjp
from kernmantle.compiler.nest import Layout, sizes_of, strides_of
from kernmantle.ir.functions import FUNCTIONS
from kernmantle.pairwise import CONSTRUCTORS
from kernmantle.runtime.launcher import Launcher, nothing
from kernmantle.torch_ops.contract import Contraction
from kernmantle.torch_ops.cpu import CpuTarget

from .test_cuda_compile import CARDS

HOPPER = CARDS["sm_90"]
Plan = VjpPlan | SquaresPlan | CudaPlan
sign = FUNCTIONS["sign"]


@contextmanager
def planned() -> Iterator[list[Plan]]:
    """Inside, nothing runs: the plans of a GPU gather for what is called on the CPU."""
    plans: list[Plan] = []

    def prepare(_, nest, integers, alignment, device):
        values = integers.tolist()
        sizes, facts = sizes_of(values), Layout(strides_of(values), tuple(alignment))
        found = plan_vjp(nest, sizes, HOPPER, facts) or squares_plan(nest, sizes, HOPPER, facts)
        plans.append(found or plan(nest, sizes, HOPPER, facts))
        return Launcher(nothing, "noted")

    with (
        mock.patch.object(CpuTarget, "prepare", prepare),
        mock.patch.object(CpuTarget, "parallel", return_value=HOPPER.sm_count),
        mock.patch.object(CpuTarget, "takes_vjp", lambda _, *given: vjp_plan.takes_vjp(*given)),
    ):
        yield plans


@cache
def composition() -> CudaPlan:
    """The plan of three kernels of which two share a sum, made once: a call that is warm makes none."""
    laplace, matern, linear = (CONSTRUCTORS[name] for name in ("Laplace", "Matern", "Linear"))
    kernel = 0.5 * laplace(3.0, p=2) + matern(2.0, nu=2.5) * linear(1.0)
    with planned() as plans:
        kernel(torch.empty(4096, 256), torch.empty(5000, 256))
    (found,) = plans
    assert isinstance(found, CudaPlan)
    return found


def test_a_composition_of_three_emits_one_kernel():
    assert emit(composition()).count("__global__") == 1


@pytest.mark.parametrize(("outputs", "engine"), [(1, "scalar"), (16, "wgmma"), (32, "wgmma")])
@pytest.mark.parametrize("p", [1, 1.3])
def test_many_outputs_run_on_tensor_cores(outputs, engine, p):
    z, x, weights = torch.empty(6000, 96), torch.empty(6001, 96), torch.empty(6000, 6001)
    if p == 1:
        slope = Contraction("mk,nk,mn,no->omk", lambda z, x, w, c: c * w * sign(z - x))
    else:
        slope = Contraction("mk,nk,mn,no->omk", lambda z, x, w, c, p: c * w * sign(z - x) * abs(z - x) ** (p - 1))
    named = {} if p == 1 else {"p": p}
    for precision, wanted in ((None, engine), ("ieee", "scalar")):
        with planned() as plans:
            slope(z, x, weights, torch.empty(6001, outputs), precision=precision, **named)
        assert isinstance(plans[-1], VjpPlan)
        assert plans[-1].tile.engine == wanted
        assert plans[-1].slope.kind == ("signs" if p == 1 else "powers")


@pytest.mark.parametrize("p", [1, 1.3])
def test_gradients_of_kernels_are_vjps(p):
    with planned() as plans:
        CONSTRUCTORS["Laplace"](2.0, p).gradient(torch.empty(2000, 96), torch.empty(20000, 96), torch.empty(20000, 16))
    assert any(isinstance(found, VjpPlan) and found.tile.engine == "wgmma" for found in plans)
