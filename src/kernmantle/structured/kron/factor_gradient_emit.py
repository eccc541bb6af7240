"""CUDA C++ of the gradient of a Kronecker factor."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ...backends.cuda.traits import SCALARS, shared_check, struct
from .cuda_entry import OVERLAP
from .factor_gradient_plan import TOTAL_THREADS, GramPlan, RegisterGramPlan, Size

ENTRY = "km_gram"
ORDERS = {"rows": "km::GRAM_ROWS", "along": "km::GRAM_ALONG", "flat": "km::GRAM_FLAT"}


def emit(plan: GramPlan | RegisterGramPlan) -> str:
    """Return CUDA C++; the same plan always gives the same text."""
    if isinstance(plan, RegisterGramPlan):
        constants = {
            "Q": plan.rows, "P": plan.columns, "VEC": plan.vec, "VEC_V": plan.vec_v, "VEC_U": plan.vec_u,
            "THREADS": plan.threads, "ROWS": plan.order == "rows", "APPLIES": bool(plan.factors),
        }  # fmt: skip
        return _kernel(plan, "kron_gram_registers", "KronGramRegisters", constants)
    (down, across, along), (rows, columns) = plan.warps, plan.fragments
    constants = {
        "Q": plan.rows, "P": plan.columns, "WARPS_Q": down, "WARPS_P": across, "WARPS_K": along, "MQ": rows,
        "NP": columns, "DEEP": plan.deep, "STAGES": plan.stages, "VEC_V": plan.vec_v, "VEC_U": plan.vec_u,
        "ORDER": ORDERS[plan.order], "RIGHT": plan.right, "APPLIES": bool(plan.factors),
    }  # fmt: skip
    header, kernel = ("kron_gram_split", "KronGramSplit") if plan.stored == "f32" else ("kron_gram", "KronGram")
    return _kernel(plan, header, kernel, constants)


def _kernel(
    plan: GramPlan | RegisterGramPlan, header: str, kernel: str, constants: Mapping[str, int | bool | str]
) -> str:
    parameters = ["const void* v", "const void* u", "void* out", "long long count", "long long right"]
    arguments = ["(const Body::T*)v", "(const Body::T*)u", "out", "count", "right"]
    body: list[str] = []
    if plan.factors:
        parameters += ["void* applied", "double slope"]
        for number in range(len(plan.factors)):
            parameters += [f"const void* f{number}", f"long long row{number}", f"long long column{number}"]
        arguments += ["(Body::T*)applied", "(float)slope", "factor"]
        body = [f"    const auto factor = [=](int q, int p) {{ return {_product(plan.factors)}; }};"]
    text = [
        f"// {plan}",
        f'#include "{header}.cuh"',
        *struct("Body", {"T": SCALARS[plan.stored]}, constants),
        shared_check(f"km::{kernel}<Body>::SHARED_BYTES", plan.shared),
        f'extern "C" __global__ void __launch_bounds__({plan.threads}, {plan.blocks})',
        f"{ENTRY}({', '.join(parameters)}) {{",
        OVERLAP,
        *body,
        f"    km::{kernel}<Body>::run({', '.join(arguments)});",
        "}",
    ]
    return "\n".join(text) + "\n"


def _product(factors: Sequence[Size]) -> str:
    """Return the entry (q, p) of the Kronecker product of factors."""
    terms = list[str]()
    for number, (rows, columns) in enumerate(factors):
        down, across = (math.prod(size[side] for size in factors[number + 1 :]) for side in (0, 1))
        index = f"q / {down} % {rows} * row{number} + p / {across} % {columns} * column{number}"
        terms.append(f"km::convert<float>(((const Body::T*)f{number})[{index}])")
    return " * ".join(terms)


def emit_total(stored: str, transposed: Sequence[tuple[int, int]] = ()) -> str:
    """Return CUDA C++ of the sum of shares, which are in float32.

    Those of matrices of the sizes ``transposed`` (rows, columns), one behind the other, go to their transposes.
    """
    targets, offset = list[str](), 0
    for rows, columns in transposed:
        entry = f"(entry - {offset})" if offset else "entry"
        offset += rows * columns
        targets.append(
            f"entry < {offset} ? {entry} % {columns} * {rows} + {entry} / {columns} + {offset - rows * columns}"
        )
    text = [
        '#include "kron_gram.cuh"',
        f'extern "C" __global__ void __launch_bounds__({TOTAL_THREADS})',
        f"{ENTRY}(const void* parts, void* out, long long shares, long long size) {{",
        OVERLAP,
        f"    km::kron_gram_total((const float*)parts, ({SCALARS[stored]}*)out, (int)shares, (int)size,",
        f"                        [](int entry) {{ return {' : '.join([*targets, 'entry'])}; }});",
        "}",
    ]
    return "\n".join(text) + "\n"
