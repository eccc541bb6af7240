"""mm-kermac's programs: its stack bodies unchanged, against float64 formulas."""

import itertools
import math
import subprocess
import sys

import numpy as np
import pytest
import torch

from kernmantle.compat import install, mm_kermac
from kernmantle.compat.mm_kermac import PtxInstruction, Stack, hyper_semiring, hyper_semiring_gradient
from kernmantle.compat.mm_kermac.stack import value_of
from kernmantle.ir.node import var
from kernmantle.ir.ops import evaluate
from kernmantle.ir.traced import Traced
from kernmantle.testing import assert_close

f32, P = Stack.f32, PtxInstruction


def rows(*shape, seed=0, device="cpu", dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype).to(device)


def computed(*body, **values):
    return evaluate([value_of([Traced(var(e)) if isinstance(e, str) else e for e in body]).node], values)[0]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (["a", "b", P.sub_ftz_f32], 5.0),
        (["a", "b", P.div_approx_ftz_f32], -1.5),
        (["a", "b", "c", P.fma_rn_ftz_f32], 10.0),
        (["a", "b", P.copysign_f32], 2.0),
        (["a", "b", P.setp_gt_ftz_f32, "a", "b", P.selp_f32], 3.0),
        (["a", "b", P.setp_lt_ftz_f32, "a", "b", P.selp_f32], -2.0),
        (["a", "b", f32.swap, P.sub_ftz_f32], -5.0),
        (["a", f32.dup, P.mul_ftz_f32], 4.0),
        (["a", "b", "c", f32.rotate, P.sub_ftz_f32, P.add_ftz_f32], 3.0 - -2.0 + 4.0),
        (["a", f32.store(3), "b", Stack.load(3), P.sub_ftz_f32], -5.0),
        (["a", "b", Stack.meta_constant(1), f32.yank_dup, P.sub_ftz_f32, P.mul_ftz_f32], 10.0),
        (["a", "b", "c", Stack.meta_constant(2), f32.swap_with, P.sub_ftz_f32, P.mul_ftz_f32], -20.0),
        (["a", "b", "c", Stack.meta_constant(2), f32.replace, P.sub_ftz_f32], 3.0 - 4.0),
        (["a", "b", "c", Stack.meta_constant(2), f32.drop], -2.0),
        (["a", "b", f32.reverse, P.sub_ftz_f32], -5.0),
        (["a", f32.constant(0.5), P.mul_ftz_f32, P.ex2_approx_ftz_f32], 0.5),
        (["c", P.lg2_approx_ftz_f32, P.neg_ftz_f32, P.abs_ftz_f32], 2.0),
        (["a", "b", P.max_ftz_f32, "c", P.min_ftz_f32, P.rcp_approx_ftz_f32], 1 / 3.0),
        (["c", P.sqrt_approx_ftz_f32, "c", P.rsqrt_approx_ftz_f32, P.add_ftz_f32], 2.5),
    ],
)  # fmt: skip
def test_instructions_take_the_top_first(body, expected):
    assert computed(*body, a=-2.0, b=3.0, c=4.0) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("body", "kind", "text"),
    [
        (["a", P.sub_ftz_f32], ValueError, "entry 1 .* has 0"),
        (["a", "b"], ValueError, "leaves {'f32': 2}"),
        ([], ValueError, "leaves none"),
        (["a", 2.0], TypeError, "Stack.f32.constant"),
        (["a", Stack.load(0)], ValueError, "before anything is stored"),
        (["a", f32.drop], ValueError, "meta_constant"),
        (["a", "a", P.setp_gt_ftz_f32], ValueError, "pred"),
    ],
)
def test_malformed_bodies_are_refused(body, kind, text):
    with pytest.raises(kind, match=text):
        computed(*body, a=1.0, b=2.0)


def custom():
    return hyper_semiring.HyperSemiringKernel(
        mma_lambda=lambda a, b, c, reg: [a, b, P.sub_ftz_f32, reg["beta"], P.mul_ftz_f32, c, P.add_ftz_f32],
        epilogue_lambda=lambda e, reg: [e, reg["gamma"], P.mul_ftz_f32],
    )


@pytest.mark.parametrize("lead", [(), (3,)])
def test_a_stack_program_and_its_hyperparameters_by_name(lead, device):
    x, z = rows(*lead, 9, 5, device=device), rows(7, 5, seed=1, device=device)
    beta = torch.tensor([0.5, 2.0, 3.0] if lead else 0.5, device=device)
    expected = 2.0 * (beta.double().reshape(-1, 1, 1) * (z.double()[None, :] - x.double()[..., :, None, :]).sum(-1))
    for hyper in ({"beta": beta, "gamma": 2.0}, {"gamma": torch.tensor(2.0, device=device), "beta": beta}):
        found = custom()(a=x, b=z, hyper_dict=hyper)
        assert found.shape == (3 if lead else 1, 9, 7)
        assert_close(found, expected, depth=5)


def test_a_column_major_result_keeps_the_roles(device):
    x, z = rows(9, 5, device=device), rows(7, 5, seed=1, device=device)
    hyper = {"beta": 1.0, "gamma": 1.0}
    out = torch.empty(7, 9, device=device).T
    custom()(a=x, b=z, hyper_dict=hyper, out=out)
    assert_close(out, (z.double()[None] - x.double()[:, None]).sum(-1), depth=5)


def test_expressions_and_reductions_have_their_identities(device):
    x, z = rows(9, 5, device=device) + 10, rows(7, 5, seed=1, device=device) + 10
    sums = x.double()[:, None] + z.double()[None]
    for body, expected in [
        (lambda a, b, c, _: [a, b, P.add_ftz_f32, c, P.min_ftz_f32], sums.amin(-1)),
        (lambda a, b, c, _: [a, b, P.add_ftz_f32, c, P.mul_ftz_f32], sums.prod(-1)),
        (lambda a, b, c, _: torch.maximum(a + b, c), sums.amax(-1)),
        (lambda a, b, c, _: c - (a + b), -sums.sum(-1)),
    ]:
        kernel = hyper_semiring.HyperSemiringKernel(body, lambda e, _: e)
        assert_close(kernel(x, z)[0], expected, depth=5)


def test_any_other_body_is_a_fold_from_zero(device):
    x, z = rows(4, 3, device=device), rows(2, 3, seed=1, device=device)
    expected = torch.zeros(4, 2, dtype=torch.float64, device=device)
    for k in range(3):
        expected = 0.5 * expected + x.double()[:, None, k] * z.double()[None, :, k]
    kernel = hyper_semiring.HyperSemiringKernel(lambda a, b, c, reg: reg["decay"] * c + a * b, lambda e, _: [e])
    assert_close(kernel(x, z, {"decay": 0.5})[0], expected, depth=3)


def test_ready_kernels(device):
    x, z = rows(9, 5, device=device), rows(7, 5, seed=1, device=device)
    a, b = x.double(), z.double()
    assert_close(hyper_semiring.Gemm()(x=x, z=z)[0], a @ b.T, depth=5)
    assert_close(hyper_semiring.NormL1()(x=x, z=z)[0], torch.cdist(a, b, p=1), depth=5)
    assert_close(hyper_semiring.NormL2()(x=x, z=z)[0], torch.cdist(a, b), depth=5)
    p = torch.tensor([1.3, 2.5], device=device)
    found = hyper_semiring.NormLp(epsilon=1.0)(x=x, z=z, p_inner=p, p_outer=1 / p)
    for i in range(2):
        expected = torch.cdist(a, b, p=float(p[i]))
        assert_close(found[i], torch.where(expected < 1, 0, expected), depth=5)


def gradient(a, b, c, d, slope):
    gap = d.double()[:, :, None] - b.double()[:, None, :]
    return torch.einsum("ok,km,nmk->onm", c.double(), a.double(), slope(gap))


@pytest.mark.parametrize("o", [1, 3])
def test_gradients(o, device):
    a, b, c, d = (rows(*s, seed=i, device=device) for i, s in enumerate([(6, 4), (5, 6), (o, 6), (5, 4)]))
    d[0, 0] = b[0, 0]
    given = {"x": b, "z": d, "coefs": c, "grad_kernel_matrix": a}
    ready = hyper_semiring_gradient
    assert_close(ready.NormL1()(**given)[0], gradient(a, b, c, d, torch.sign), depth=6)
    assert_close(ready.NormL2()(**given)[0], gradient(a, b, c, d, lambda g: g), depth=6)
    found = ready.NormLp(epsilon=1e-6)(**given, p_power_grad=torch.tensor(0.3, device=device))[0]
    assert_close(found, gradient(a, b, c, d, lambda g: torch.sign(g) * g.abs().clamp(min=1e-6) ** 0.3), depth=6)


def test_a_gradient_of_three_bodies(device):
    a, b, c, d = (rows(*s, seed=i, device=device) for i, s in enumerate([(6, 4), (5, 6), (3, 6), (5, 4)]))
    kernel = hyper_semiring_gradient.HyperSemiringGradientKernel(
        multiply_lambda=lambda d, b, a, reg: [
            b, d, P.sub_ftz_f32, reg["alpha"], P.mul_ftz_f32, a, P.mul_ftz_f32,
        ],
        accumulate_lambda=lambda c, diff, e, _: [c, diff, P.mul_ftz_f32, e, P.add_ftz_f32],
        epilogue_lambda=lambda e, reg: [e, reg["scale"], P.mul_ftz_f32],
    )  # fmt: skip
    out = torch.empty(3, 5, 4, device=device)
    kernel(a=a, b=b, c=c, d=d, hyper_dict={"alpha": torch.tensor(0.25, device=device), "scale": 2.0}, out=out)
    assert_close(out, gradient(a, b, c, d, lambda g: 0.5 * g), depth=6)


BAD = [
    (lambda x: custom()(x, x[:, :2], {"beta": 1.0, "gamma": 1.0}), ValueError, "K dimensions"),
    (lambda x: custom()(x, x, {"beta": 1.0}), KeyError, "gamma"),
    (lambda x: custom()(x, x, {"beta": "1", "gamma": 1.0}), TypeError, "beta"),
    (lambda x: custom()(x, x, [1.0]), TypeError, "hyper_dict"),
    (lambda x: custom()(x, x, {"beta": torch.ones(2), "gamma": torch.ones(3)}), ValueError, "batch size"),
    (lambda x: hyper_semiring.Gemm()(x, x.double()), TypeError, "dtype"),
    (lambda x: hyper_semiring.Gemm()(x, x, out=torch.empty(2, 2)), ValueError, "out must have shape"),
    (lambda x: hyper_semiring_gradient.NormL1()(x, x, x, x[:, :2]), ValueError, "Expected shape"),
]


@pytest.mark.parametrize(("call", "kind", "text"), BAD, ids=range(len(BAD)))
def test_bad_input(call, kind, text):
    with pytest.raises(kind, match=text):
        call(rows(4, 3))


def test_an_existing_program_runs():
    code = """
import kernmantle.compat
kernmantle.compat.install("mm_kermac")
import torch
from mm_kermac import Stack, PtxInstruction, CudaTimer
import mm_kermac.hyper_semiring as kermac
from mm_kermac.hyper_semiring_gradient import HyperSemiringGradientKernel
x = torch.randn(4, 3)
assert torch.allclose(kermac.NormL1()(x=x, z=x)[0], torch.cdist(x, x, p=1.0))
print("ran")
"""
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=120)
    assert done.stdout == "ran\n", done.stderr
    assert mm_kermac.Stack is Stack


def test_submodules_of_existing_programs():
    from kernmantle.compat.mm_kermac import Stack, stack_ptx_types

    assert stack_ptx_types.Stack is Stack
    assert stack_ptx_types.ArgType.f32.value is Stack.f32
    with pytest.raises(AttributeError, match="no PTX text"):
        _ = stack_ptx_types.compiler


def test_helpers_are_found_under_their_name(monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "mm_kermac"]:
        monkeypatch.delitem(sys.modules, name)
    install("mm_kermac")
    from mm_kermac.helpers import compare_tensors
    from mm_kermac.stack_ptx_types import PtxInstruction as found

    assert found is PtxInstruction
    assert callable(compare_tensors)
    for name in [name for name in sys.modules if name.partition(".")[0] == "mm_kermac"]:
        del sys.modules[name]


def test_formulas_that_examples_compare_with(capsys):
    from kernmantle.compat.mm_kermac import formulas as helpers

    x, z, coefs, matrix = rows(2, 3, 5), rows(2, 3, 4, seed=1), rows(2, 6, 5, seed=2), rows(2, 5, 4, seed=3)
    x, z, coefs, matrix = (value.double() for value in (x, z, coefs, matrix))
    wanted = torch.zeros(2, 6, 3, 4, dtype=torch.float64)
    power = torch.zeros_like(wanted)
    for b, o, d, j, i in itertools.product(range(2), range(6), range(3), range(4), range(5)):
        u = float(z[b, d, j] - x[b, d, i])
        scale = float(coefs[b, o, i] * matrix[b, i, j])
        wanted[b, o, d, j] += scale * u
        power[b, o, d, j] += scale * math.copysign(max(abs(u), 0.1) ** 0.3, u)
    assert_close(helpers.torch_einsum_L2_norm(x, z, coefs, matrix), wanted, depth=50)
    assert_close(helpers.torch_inefficient_p_norm(x, z, coefs, matrix, 2.0), wanted, depth=50)
    assert_close(helpers.torch_inefficient_p_norm(x, z, coefs, matrix, 1.3, 0.1), power, depth=50)
    helpers.compare_tensors(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 4.0]))
    numbers = [float(line.split()[-1]) for line in capsys.readouterr().out.splitlines()]
    assert_close(np.array(numbers), np.array([2**0.5, 2.0, 1.0]), dtype=torch.float32)
