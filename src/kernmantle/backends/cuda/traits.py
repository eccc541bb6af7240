"""C++ structs of types and constants: templates read their parameters from one by name, not by position."""

from __future__ import annotations

from collections.abc import Mapping

SCALARS = {"f16": "km::f16", "bf16": "km::bf16", "f32": "float", "f64": "double"}


def members(types: Mapping[str, str], constants: Mapping[str, int | bool | str]) -> list[str]:
    """Return the lines that declare C++ types and constants in a struct, by name; a text is an enumerator, say."""
    integers = {name: value for name, value in constants.items() if not isinstance(value, bool)}
    flags = {name: str(value).lower() for name, value in constants.items() if isinstance(value, bool)}
    code = [f"    typedef {kind} {name};" for name, kind in types.items()]
    for kind, values in (("int", integers), ("bool", flags)):
        if values:
            declared = ", ".join(f"{name} = {value}" for name, value in values.items())
            code.append(f"    static constexpr {kind} {declared};")
    return code


def struct(name: str, types: Mapping[str, str], constants: Mapping[str, int | bool | str]) -> list[str]:
    """Return the lines of a struct that has nothing but types and constants."""
    return [f"struct {name} {{", *members(types, constants), "};"]


def shared_check(bytes_of: str, planned: int) -> str:
    """Return the assertion that a kernel uses as many bytes of shared memory as its launch reserves."""
    return f'static_assert({bytes_of} == {planned}, "bytes of shared memory differ from the plan");'
