"""2000 random Kronecker and Kronecker-sparse products with gradients on the GPU, against float64."""

from __future__ import annotations

import pytest

from ..random_structured import check, generate

pytestmark = [pytest.mark.cuda, pytest.mark.slow]

CHUNKS, STRUCTURES, VARIANTS = 40, 5, 10


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_random_products_and_gradients(chunk: int) -> None:
    """Variants of a structure share kernels, which take longer to compile than to run."""
    for structure in range(STRUCTURES * chunk, STRUCTURES * (chunk + 1)):
        for variant in range(VARIANTS):
            try:
                check(structure, variant, "cuda")
            except (AssertionError, RuntimeError) as error:  # a kernel that reads what is not there is no assertion
                raise AssertionError(f"{generate(structure, variant).name}: {error}") from error
