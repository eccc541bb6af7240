"""Patterns as pictures, for notebooks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

SIDE = 180
STROKES = 4096
"""Diagonals that are drawn one by one; a block of more is one grey square."""


class Support(NamedTuple):
    """Numbers of a pattern (a, b, c, d)."""

    a: int
    b: int
    c: int
    d: int


def _blocks(own: Support) -> str:
    """The blocks on the diagonal, as one path of rectangles."""
    height, width = own.b * own.d, own.c * own.d
    return "".join(f"M{i * width} {i * height}h{width}v{height}h{-width}z" for i in range(own.a))


def _diagonals(own: Support) -> str:
    """The diagonals inside the blocks, as one path."""
    a, b, c, d = own
    return "".join(
        f"M{i * c * d + k * d} {i * b * d + j * d}l{d} {d}" for i in range(a) for j in range(b) for k in range(c)
    )


def svg(pattern: Sequence[int]) -> str:
    """The support as a drawing: rectangles for dense blocks, diagonals for interleaved ones."""
    own = Support(*pattern)
    rows, columns = own.a * own.b * own.d, own.a * own.c * own.d
    scale = SIDE / max(rows, columns)
    if own.a > STROKES:
        inner = f'<path d="M0 0L{columns} {rows}" stroke="#1b6ca8" stroke-width="{1 / scale:g}"/>'
    elif own.d == 1:
        inner = f'<path d="{_blocks(own)}" fill="#1b6ca8"/>'
    elif own.a * own.b * own.c <= STROKES:
        inner = f'<path d="{_diagonals(own)}" stroke="#1b6ca8" stroke-width="{max(1.0, 0.7 / scale):g}"/>'
    else:
        inner = f'<path d="{_blocks(own)}" fill="#1b6ca8" fill-opacity="0.4"/>'
    return (
        f'<svg width="{columns * scale:.0f}" height="{rows * scale:.0f}" viewBox="0 0 {columns} {rows}" '
        f'style="border: 1px solid #c5ccd3" fill="none">{inner}</svg>'
    )


def html(patterns: Sequence[Sequence[int]], text: str) -> str:
    """Drawings side by side, in the order in which a matrix product is written, over a line of text."""
    pictures = "".join(f'<div style="margin-right: 12px">{svg(pattern)}</div>' for pattern in reversed(patterns))
    return f'<div><div style="display: flex; align-items: center">{pictures}</div><code>{text}</code></div>'
