"""The form and the values of a kernel without code: texts, numbers and arrays."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch

from ..ir.definition import Definition
from .kernel_form import TABLE, Form, Operand, Squares, gram


def _spelled(operand: Operand) -> list[str]:
    if isinstance(operand, Squares):
        return ["squares", operand.role, operand.weight]
    return ["weight", operand] if isinstance(operand, str) else ["table"]


def _operand(spelled: list[str]) -> Operand:
    kind, *rest = spelled
    return Squares(*rest) if kind == "squares" else rest[0] if kind == "weight" else TABLE


def as_text(form: Form) -> str:
    """Return a text from which ``of_text`` makes the form."""
    return json.dumps([gram(form).text, list(form.parameters), [_spelled(operand) for operand in form.operands]])


def of_text(text: str) -> Form:
    """Return the form of a text."""
    program, parameters, operands = json.loads(text)
    found = Definition.parse(program)
    return Form(found.map, found.reductions, found.outputs[0], tuple(parameters), tuple(map(_operand, operands)))


def plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values with arrays in place of tensors."""
    return {
        name: value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else value
        for name, value in values.items()
    }
