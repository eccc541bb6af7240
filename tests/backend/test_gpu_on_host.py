"""Host code of GPU plans, with their kernels interpreted: 200 random products with gradients, against float64."""

from __future__ import annotations

import pytest

from ..gpu_on_host import gpu_on_host
from ..random_structured import check, generate

CHUNKS, STRUCTURES = 20, 10


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_random_products_and_gradients(chunk: int) -> None:
    """A second call of one kind takes what the first one bound, on other tensors; a graph takes plans of its own."""
    for structure in range(STRUCTURES * chunk, STRUCTURES * (chunk + 1)):
        for captured, variants in ((False, (0, 4, 0)), (True, (1,))):
            with gpu_on_host(captured):
                for variant in variants:
                    case = generate(structure, variant)
                    if case.name.startswith("sparse"):
                        continue
                    try:
                        check(structure, variant, "cpu")
                    except (AssertionError, RuntimeError) as error:
                        raise AssertionError(f"{case.name}: {error}") from error
