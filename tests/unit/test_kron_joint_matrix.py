"""Factors that a pass multiplies out and hands to the vendor's product as one matrix; the same calls run on GPUs."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kernmantle.structured.kron.modes import Mode
from kernmantle.structured.kron.passes import Pass
from kernmantle.structured.kron.run import arranged, multiplied_out, prepare
from kernmantle.testing import assert_close


def _no_kernel(*_: Any) -> Any:
    pytest.fail("no kernel of our own is in the pass")


@pytest.mark.parametrize("is_transposed", [False, True])
def test_factors_multiplied_out_lie_row_by_row(is_transposed: bool) -> None:
    """Products of transposed matrices would lie transposed, and are read by their rows."""
    drawn = [torch.randn(3, 2, dtype=torch.float64), torch.randn(4, 5, dtype=torch.float64)]
    factors = [factor.mT.contiguous().mT for factor in drawn] if is_transposed else drawn
    found = multiplied_out(factors)
    assert found.is_contiguous()
    assert_close(found, torch.kron(*drawn), depth=1)


@pytest.mark.parametrize("is_transposed", [False, True])
@pytest.mark.parametrize("right", [1, 7])
def test_a_joint_matrix_multiplies(right: int, is_transposed: bool) -> None:
    sizes = [(6, 5), (4, 7), (3, 3)]
    modes = tuple(Mode(columns, rows, place) for place, (rows, columns) in enumerate(sizes))
    joint = Pass("matmul", 0, 3, (Mode(5 * 7 * 3, 6 * 4 * 3, 0),), ((0, 1, 2),))
    factors = [torch.randn(rows, columns, dtype=torch.float64) for rows, columns in sizes]
    if is_transposed:
        factors = [factor.mT.contiguous().mT for factor in factors]
    x = torch.randn(9, 5 * 7 * 3, right, dtype=torch.float64)
    out = torch.empty(9, 6 * 4 * 3, right, dtype=torch.float64)
    ready = prepare([joint], modes, arranged(x, factors, None, out), _no_kernel)
    assert ready is not None
    ready(x, factors, None, out, (1.0, 0.0))
    matrix = torch.kron(torch.kron(factors[0], factors[1]), factors[2])
    assert_close(out, matrix @ x, depth=5 * 7 * 3, magnitude=matrix.abs() @ x.abs())
    # A bound call hands over what its caller holds, which may be the transpose at the same address.
    out.zero_()
    ready(x, [factor.mT for factor in factors], None, out, (1.0, 0.0))
    assert_close(out, matrix @ x, depth=5 * 7 * 3, magnitude=matrix.abs() @ x.abs())
