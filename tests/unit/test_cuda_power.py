"""Powers from a table of exponents and intervals, computed here as the kernel does, in float32."""

from struct import pack, unpack

import numpy as np
import pytest

from kernmantle.backends.cuda.pow_tables import MIDDLES, SLOPES, gathered, interval_polynomial, power_arguments

from ..cuda.nests import T, X, Y, gram, op

PROMISE = 2e-6
POWERS = (-0.2, 0.1, 0.3, 0.5, 0.9, 1.1, 1.3, 1.5, 1.9, 2.5, 3.1)


def by_table(sizes: np.ndarray, power: float) -> np.ndarray:
    """The kernel's arithmetic: fused multiply-adds round once."""
    good, *pairs = power_arguments(power)
    assert good == 1
    numbers = unpack("8f", pack("4q", *pairs))
    slopes, octave = numbers[: len(SLOPES)], np.array(numbers[4:], np.float32)
    exponent = np.frexp(sizes)[1] - 1
    interval = ((np.ldexp(sizes, -exponent) - 1) * 4).astype(int)
    scale = np.float32(2.0 ** (power * exponent)) * octave[interval]
    inverse = np.ldexp((1 / np.array(MIDDLES, np.float32))[interval], -exponent)
    r = np.float32(sizes.astype(np.float64) * inverse - 1)
    value = np.full_like(r, slopes[-1])
    for slope in (*slopes[-2::-1], 1.0):
        value = np.float32(value.astype(np.float64) * r + slope)
    return scale.astype(np.float64) * value


@pytest.mark.parametrize("power", POWERS)
def test_within_the_promise(power):
    sizes = np.exp2(np.random.default_rng(0).uniform(-24, 24, 100_000)).astype(np.float32)
    error = np.abs(by_table(sizes, power) / sizes.astype(np.float64) ** power - 1)
    assert error.max() <= PROMISE


@pytest.mark.parametrize("power", [0.0, -0.7, 4.6, 1000.0, float("inf"), float("nan")])
def test_powers_out_of_reach_are_refused(power):
    assert interval_polynomial(power) is None
    assert power_arguments(power)[0] == 0


@pytest.mark.parametrize(("square", "exponent"), [(False, 1.5), (True, 2.5)])
def test_a_power_and_its_root_are_one_power(square, exponent):
    gap = op("sub", X, Y)
    size = op("abs", gap)
    found = gathered(gram(op("mul", op("mul", gap, gap) if square else size, op("sqrt", size))))
    assert found.map == (op("pow", size, exponent),)
    apart = gram(op("mul", op("abs", op("sub", X, T)), op("sqrt", size)), t="nk")
    assert gathered(apart).map == apart.map
