"""Powers from a table of exponents and intervals, computed here as the kernel does, in float32."""

from struct import pack, unpack

import numpy as np
import pytest

from kernmantle.backends.cuda.pow_tables import MIDDLES, gathered, interval_polynomial, least_degree, power_arguments

from ..cuda.nests import T, X, Y, gram, op

PROMISE = 2e-6
POWERS = (-0.2, 0.1, 0.3, 0.5, 0.9, 1.1, 1.3, 1.5, 1.9, 2.5, 3.1)
STEEPER = {-2.9: 5, -1.0: 4, 3.3: 4, 4.2: 4, 5.1: 4, 5.2: 5, 7.9: 5}


def by_table(sizes: np.ndarray, power: float) -> np.ndarray:
    """The kernel's arithmetic: fused multiply-adds round once."""
    degree = least_degree(power)
    good, *pairs = power_arguments(power, degree)
    assert good == 1
    numbers = unpack(f"{2 * len(pairs)}f", pack(f"{len(pairs)}q", *pairs))
    slopes, octave = numbers[:degree], np.array(numbers[-4:], np.float32)
    exponent = np.frexp(sizes)[1] - 1
    interval = ((np.ldexp(sizes, -exponent) - 1) * 4).astype(int)
    scale = np.float32(2.0 ** (power * exponent)) * octave[interval]
    inverse = np.ldexp((1 / np.array(MIDDLES, np.float32))[interval], -exponent)
    r = np.float32(sizes.astype(np.float64) * inverse - 1)
    value = np.full_like(r, slopes[-1])
    for slope in (*slopes[-2::-1], 1.0):
        value = np.float32(value.astype(np.float64) * r + slope)
    return scale.astype(np.float64) * value


@pytest.mark.parametrize("power", [*POWERS, *STEEPER])
def test_within_the_promise(power):
    reach = min(24, 120 / abs(power))
    sizes = np.exp2(np.random.default_rng(0).uniform(-reach, reach, 100_000)).astype(np.float32)
    error = np.abs(by_table(sizes, power) / sizes.astype(np.float64) ** power - 1)
    assert error.max() <= PROMISE


@pytest.mark.parametrize("power", [0.0, -3.1, 8.2, 1000.0, float("inf"), float("nan")])
def test_powers_out_of_reach_are_refused(power):
    assert least_degree(power) is None
    assert power_arguments(power)[0] == 0


def test_steeper_powers_take_more_terms():
    assert {power: least_degree(power) for power in STEEPER} == STEEPER
    assert {least_degree(power) for power in POWERS} == {3}
    assert interval_polynomial(4.2) is None
    assert power_arguments(4.2)[0] == 0
    assert len(power_arguments(4.2, 4)) == len(power_arguments(1.3))


@pytest.mark.parametrize(("square", "exponent"), [(False, 1.5), (True, 2.5)])
def test_a_power_and_its_root_are_one_power(square, exponent):
    gap = op("sub", X, Y)
    size = op("abs", gap)
    found = gathered(gram(op("mul", op("mul", gap, gap) if square else size, op("sqrt", size))))
    assert found.map == (op("pow", size, exponent),)
    apart = gram(op("mul", op("abs", op("sub", X, T)), op("sqrt", size)), t="nk")
    assert gathered(apart).map == apart.map
