"""Random Kronecker and Kronecker-sparse products with gradients on the CPU, against float64."""

from __future__ import annotations

import pytest

from tests.random_structured import check, generate


@pytest.mark.parametrize("chunk", range(2))
def test_random_products_and_gradients(chunk: int) -> None:
    for structure in range(1000 + 10 * chunk, 1010 + 10 * chunk):
        for variant in range(2):
            try:
                check(structure, variant, "cpu")
            except AssertionError as error:
                raise AssertionError(f"{generate(structure, variant).name}: {error}") from error
