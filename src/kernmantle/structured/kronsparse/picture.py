"""Drawings of patterns for notebooks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

SIDE = 180  # of the longer side of a picture, in pixels
STROKES = 4096
"""Most diagonals that are drawn separately; a block with more is one grey square."""


class Support(NamedTuple):
    """Numbers of a pattern (a, b, c, d)."""

    a: int
    b: int
    c: int
    d: int


def _blocks(own: Support) -> str:
    """Return the blocks on the diagonal, as one path of rectangles."""
    height, width = own.b * own.d, own.c * own.d
    return "".join(f"M{i * width} {i * height}h{width}v{height}h{-width}z" for i in range(own.a))


def _diagonals(own: Support) -> str:
    """Return the diagonals inside the blocks, as one path."""
    a, b, c, d = own
    return "".join(
        f"M{i * c * d + k * d} {i * b * d + j * d}l{d} {d}" for i in range(a) for j in range(b) for k in range(c)
    )


def svg(pattern: Sequence[int], side: int = SIDE, attributes: str = "") -> str:
    """Return the support as a drawing: rectangles for dense blocks, diagonals for interleaved ones."""
    own = Support(*pattern)
    rows, columns = own.a * own.b * own.d, own.a * own.c * own.d
    scale = side / max(rows, columns)
    if own.a > STROKES:
        inner = f'<path d="M0 0L{columns} {rows}" stroke="#1b6ca8" stroke-width="{1 / scale:g}"/>'
    elif own.d == 1:
        inner = f'<path d="{_blocks(own)}" fill="#1b6ca8"/>'
    elif own.a * own.b * own.c <= STROKES:
        inner = f'<path d="{_diagonals(own)}" stroke="#1b6ca8" stroke-width="{max(1.0, 0.7 / scale):g}"/>'
    else:
        inner = f'<path d="{_blocks(own)}" fill="#1b6ca8" fill-opacity="0.4"/>'
    edge = f'<rect width="{columns}" height="{rows}" stroke="#c5ccd3" stroke-width="{2 / scale:g}"/>'
    return (
        f'<svg {attributes}width="{columns * scale:.0f}" height="{rows * scale:.0f}" viewBox="0 0 {columns} {rows}" '
        f'fill="none">{inner}{edge}</svg>'
    )


def html(patterns: Sequence[Sequence[int]], text: str) -> str:
    """Return drawings side by side, in the order in which a matrix product is written, over a line of text."""
    pictures = "".join(f'<div style="margin-right: 12px">{svg(pattern)}</div>' for pattern in reversed(patterns))
    return f'<div><div style="display: flex; align-items: center">{pictures}</div><code>{text}</code></div>'


def table(chains: Mapping[str, Sequence[Sequence[int]]], side: int = 80, gap: int = 26) -> str:
    """Return a picture of its own: a line a chain, its name and its factors in the order of a matrix product."""
    parts: list[str] = []
    left, most = 9 * max(map(len, chains)), max(map(len, chains.values()))
    for stroke, (name, patterns) in enumerate(chains.items()):
        top = stroke * (side + gap)
        parts.append(f'<text x="0" y="{top + side // 2 + 5}">{name}</text>')
        for column, pattern in enumerate(reversed(patterns)):
            x = left + column * (side + gap)
            if column:
                parts.append(f'<text x="{x - gap // 2}" y="{top + side // 2 + 5}" text-anchor="middle">·</text>')
            parts.append(svg(pattern, side, f'x="{x}" y="{top}" '))
    width, height = left + most * (side + gap), len(chains) * (side + gap)
    style = 'font-family="monospace" font-size="14" fill="#78838f"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" {style}>'
        + "\n".join(parts)
        + "</svg>\n"
    )
