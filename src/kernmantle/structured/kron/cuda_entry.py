"""The way into a kernel of a Kronecker pass: its parameters, in one order for every kind of pass."""

from __future__ import annotations

ENTRY = "km_kron"
LATER = "is_later"  # the parameter that says whether another pass of the same product is launched ahead
AXES = ("a", "b", "c", "run", "right")
_BATCH = ("a", "b", "c")
# How a kernel begins that reads nothing before the one ahead of it is complete; the next one may then begin (kron.cuh).
OVERLAP = "    km::ptx::griddepcontrol_wait();\n    km::ptx::griddepcontrol_launch_dependents();"


def parameters(factors: int, added: bool, varies: bool) -> list[str]:
    """Return the names of the integer parameters of a pass, in their order: those it does not read are left out."""
    arrays = ("x", "y", "out") if added else ("x", "out")
    names = [f"{array}_{axis}" for array in ("size", *arrays) for axis in AXES]
    batch_axes = _BATCH if varies else ()
    names += [f"f{number}_{axis}" for number in range(factors) for axis in ("row", "column", *batch_axes)]
    return [*names, LATER]


def entry(
    factors: int, threads: int, added: bool, varies: bool, body: str, blocks: int = 1, cluster: int = 0
) -> str:  # fmt: skip
    """Return the kernel: its parameters, collected for the template.

    So many ``blocks`` are to share a multiprocessor; ``cluster`` blocks start together if there are several.
    """
    names = parameters(factors, added, varies)
    pointers = ["const void* x", "const void* y", "void* out", *(f"const void* f{i}" for i in range(factors))]
    integers = [f"long long {name}" for name in names]
    text = [
        f'extern "C" __global__ void __launch_bounds__({threads}, {blocks})'
        + f" __cluster_dims__({cluster})" * (cluster > 1),
        f"{ENTRY}({', '.join([*pointers, *integers, 'double alpha', 'double beta'])}) {{",
        f"    km::KronArguments<{factors}> g;",
        "    g.x = x;\n    g.y = y;\n    g.out = out;\n    g.alpha = alpha;\n    g.beta = beta;",
        f"    g.is_later = {LATER};",
    ]
    text += [f"    g.factor[{i}] = f{i};" for i in range(factors)]
    for index, axis in enumerate(AXES):
        text.append(f"    g.size[{index}] = size_{axis};")
        text += [
            f"    g.{array}_stride[{index}] = {array}_{axis};"
            for array in ("x", "y", "out")
            if f"{array}_{axis}" in names
        ]
    for number in range(factors):
        for index, axis in enumerate(("row", "column", *_BATCH)):
            value = f"f{number}_{axis}" if f"f{number}_{axis}" in names else "0"
            text.append(f"    g.factor_stride[{number}][{index}] = {value};")
    return "\n".join([*text, f"    {body}", "}"])
