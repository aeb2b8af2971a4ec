"""A picture of the errors of quantized weights: a bar a layer, on the terminal or as SVG.

Errors are shown as the ratio of signal to noise in decibels: 6 dB are one bit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from pathlib import Path

from rich.console import RenderableType
from rich.table import Table

from .files import write_whole
from .weights.quantizing import LayerError

__all__ = ["render_errors", "write_errors_svg"]

_BAR = 24
_ROW, _LABELS, _BARS = 18, 320, 420


def _top(errors: Sequence[LayerError]) -> float:
    finite = [e.signal_to_noise for e in errors if math.isfinite(e.signal_to_noise)]
    return max(10.0, *(10 * math.ceil(value / 10) for value in finite)) if finite else 10.0


def _length(error: LayerError, top: float) -> float:
    """The part of the whole bar, from 0 to 1."""
    ratio = error.signal_to_noise
    return 1.0 if math.isinf(ratio) else min(max(ratio / top, 0.0), 1.0)


def _decibels(error: LayerError) -> str:
    return "exact" if math.isinf(error.signal_to_noise) else f"{error.signal_to_noise:.1f} dB"


def render_errors(errors: Sequence[LayerError], width: int = 80) -> RenderableType:
    """A table with a bar a layer, where the width has room for bars.

    Args:
        errors: of the layers.
        width: columns of the terminal.
    """
    names = max((len(error.name) for error in errors), default=0)
    shapes = max((len(_shape(error)) for error in errors), default=0)
    room = min(width - names - shapes - 38, _BAR)
    table = Table(box=None, pad_edge=False)
    table.add_column("tensor", overflow="fold")
    table.add_column("shape", no_wrap=True)
    table.add_column("bits", justify="right", no_wrap=True)
    table.add_column("error", justify="right", no_wrap=True)
    table.add_column("signal/noise", justify="right", no_wrap=True)
    if room > 4:
        table.add_column("", no_wrap=True)
    top = _top(errors)
    for error in errors:
        table.add_row(
            error.name,
            _shape(error),
            f"{error.bits_per_element:.2f}",
            f"{error.relative_error:.2%}",
            _decibels(error),
            *(["#" * round(_length(error, top) * room)] if room > 4 else []),
        )
    return table


def _shape(error: LayerError) -> str:
    return "x".join(map(str, error.shape))


def write_errors_svg(errors: Sequence[LayerError], path: str | Path) -> None:
    """Write the bars as an SVG file; OSError if it cannot be written."""
    top = _top(errors)
    height = _ROW * (len(errors) + 3)
    width = _LABELS + _BARS + 100
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="11">',
        "<title>Signal to noise of quantized weights, in decibels</title>",
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for mark in range(0, round(top) + 1, 10):
        x = _LABELS + _BARS * mark / top
        lines.append(
            f'<line x1="{x:.1f}" y1="{_ROW}" x2="{x:.1f}" y2="{height - 2 * _ROW}" stroke="#ddd"/>'
            f'<text x="{x:.1f}" y="{height - _ROW}" text-anchor="middle">{mark} dB</text>'
        )
    for number, error in enumerate(errors):
        y = _ROW * (number + 1)
        bar = _BARS * _length(error, top)
        lines.append(
            f'<text x="{_LABELS - 8}" y="{y + 12}" text-anchor="end">{escape(error.name)}</text>'
            f'<rect x="{_LABELS}" y="{y + 2}" width="{bar:.1f}" height="{_ROW - 4}" '
            'fill="#3b528b"/>'
            f'<text x="{_LABELS + bar + 5:.1f}" y="{y + 12}">{_decibels(error)}</text>'
        )
    lines.append("</svg>")
    write_whole(path, "\n".join(lines).encode() + b"\n")
