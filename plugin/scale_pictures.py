"""Pictures of a tensor's scales: a heat map on the terminal, or as an SVG file.

Scales are shown on a log scale, because that is how they act: a scale twice as large is one bit
less precise. Grids that do not fit are shown by the geometric means of neighbouring blocks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path

import numpy as np
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.text import Text

from .compiler.inspection import QuantizedTensor, extents_text
from .errors import InputError, UsageError
from .files import write_whole
from .quantization import Array

__all__ = ["render_scales", "write_scales_svg"]

_VIRIDIS = bytes.fromhex("440154 472d7b 3b528b 2c728e 21918c 28ae80 5ec962 addc30 fde725")
_UNKNOWN = "#bbbbbb"
_SHADES, _ASCII_SHADES = "·░▒▓█", ".:+#@"
_MAX_CELLS = (128, 256)


def _colour(fraction: float) -> str:
    """Return the colour of the map viridis at `fraction` (0 to 1), grey for NaN."""
    if math.isnan(fraction):
        return _UNKNOWN
    anchors = np.frombuffer(_VIRIDIS, np.uint8).reshape(-1, 3)
    at = fraction * (len(anchors) - 1)
    channels = [int(np.interp(at, range(len(anchors)), line) + 0.5) for line in anchors.T]
    return "#" + bytes(channels).hex()


@dataclass(frozen=True)
class _Picture:
    """Scales as a matrix of logarithms, and what is written around it.

    `labels` and `blocks` (elements in a cell) are those of the rows and columns; `low` and `high`
    are the logarithms that the ends of the colour map stand for.
    """

    logs: Array
    labels: tuple[str, str]
    blocks: tuple[int, int]
    title: str
    facts: str
    spread: str
    low: float
    high: float

    @classmethod
    def of(cls, tensor: QuantizedTensor) -> _Picture:
        parameters, shape = tensor.parameters, tensor.shape
        if tensor.scale_range is None:
            raise UsageError(f"scales of {tensor.name} are known at run time only")
        rank = max(parameters.min_rank, parameters.scales.ndim) if shape is None else len(shape)
        grid = parameters.grids(rank)[0].astype(np.float64)
        good = np.isfinite(grid) & (grid > 0)
        valid, bad = grid[good], grid.size - int(good.sum())
        if not valid.size:
            raise UsageError(f"scales of {tensor.name} must be positive and finite, got none")
        logs = np.log10(grid, out=np.full(grid.shape, np.nan), where=good)
        axes = [axis for axis in range(rank) if grid.shape[axis] > 1]
        *leading, last = [""] * max(2 - len(axes), 0) + [cls._label(tensor, axis) for axis in axes]
        rows, blocks = leading[-1], [parameters.block_size_of(axis) or 1 for axis in axes]
        blocks = [1, 1, *blocks][-2:]
        if len(leading) > 1:
            sizes = extents_text(tuple(grid.shape[axis] for axis in axes[:-1]))
            rows = f"axes {', '.join(map(str, axes[:-1]))} flattened, {sizes} blocks"
            blocks[0] = 1
        in_function = f" in @{tensor.function}" if tensor.function else ""
        block = "" if tensor.block_shape is None else f" of {extents_text(tensor.block_shape)}"
        return cls(
            logs.reshape(-1, grid.shape[axes[-1]] if axes else 1),
            (rows, last or "one scale for the whole tensor"),
            (blocks[0], blocks[1]),
            f"Scales of {tensor.name}{in_function}",
            f"{'unranked' if shape is None else extents_text(shape)}, {parameters.storage}:"
            f"{parameters.expressed.value}, {parameters.granularity}, {grid.size:,} "
            f"block{'' if grid.size == 1 else 's'}{block}"
            f"{f', {bad} not positive and finite' if bad else ''}",
            f"min {valid.min():.3g}, median {np.median(valid):.3g}, max {valid.max():.3g}",
            float(np.nanmin(logs)),
            float(np.nanmax(logs)),
        )

    @staticmethod
    def _label(tensor: QuantizedTensor, axis: int) -> str:
        extent = None if tensor.shape is None else tensor.shape[axis]
        elements = "" if extent is None else f"{extent:,} elements, "
        return f"axis {axis}, {elements}blocks of {tensor.parameters.block_size_of(axis)}"

    def reduced(self, limits: tuple[int, int]) -> _Picture:
        """Return a picture of at most `limits` rows and columns.

        A cell is then the geometric mean of its scales (the mean of their logarithms), and the
        colours span the cells: means lie much closer together than scales.
        """
        steps = [-(-n // limit) for n, limit in zip(self.logs.shape, limits, strict=True)]
        if steps == [1, 1]:
            return self
        valid = np.isfinite(self.logs)
        sums, counts = np.where(valid, self.logs, 0.0), valid.astype(np.float64)
        for axis, step in enumerate(steps):
            starts = np.arange(0, self.logs.shape[axis], step)
            sums, counts = (np.add.reduceat(a, starts, axis) for a in (sums, counts))
        means = np.divide(sums, counts, out=np.full(sums.shape, np.nan), where=counts > 0)
        return replace(
            self,
            logs=means,
            blocks=(self.blocks[0] * steps[0], self.blocks[1] * steps[1]),
            spread=f"{self.spread}; a cell is the geometric mean of {steps[0]}x{steps[1]} scales",
            low=float(np.nanmin(means)),
            high=float(np.nanmax(means)),
        )

    def fraction(self, log: float) -> float:
        """Return where a logarithm lies on the colour map, from 0 to 1; NaN for NaN."""
        if self.low == self.high:
            return log * 0 + 0.5
        return min(max((log - self.low) / (self.high - self.low), 0.0), 1.0)


@dataclass(frozen=True)
class _TerminalPicture:
    picture: _Picture
    width: int | None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        shades = _ASCII_SHADES if options.ascii_only else _SHADES
        rows, blocks = len(self.picture.logs), self.picture.blocks
        margin = len(str((rows - 1) * blocks[0])) + 3
        room = max((self.width or options.max_width) - margin - 1, 8)
        picture = self.picture.reduced((max(options.size.height - 9, 8), room))
        columns = picture.logs.shape[1]
        repeat = min(max(room // columns, 1), 4)
        yield Text.assemble((picture.title, "bold"), "\n", (picture.facts, "dim"))
        if picture.labels[0]:
            yield Text(f"rows: {picture.labels[0]}")
        yield Text(f"columns: {picture.labels[1]}")
        ticks = " " * margin
        for column in _ticks_of(columns, repeat, 7):
            ticks = f"{ticks:<{margin + column * repeat}}{column * picture.blocks[1]}"
        yield Text(ticks, "dim")
        for row, logs in enumerate(picture.logs):
            tick = "" if row % 4 else str(row * picture.blocks[0])
            line = Text(f"{tick:>{margin - 2}} ", "dim").append("|" if options.ascii_only else "│")
            for log in logs:
                line.append_text(self._shade(picture.fraction(log), shades, repeat))
            yield line
        legend = Text(f"{'':{margin}}{10**picture.low:.3g} ")
        for level in range(20):
            legend.append_text(self._shade(level / 19, shades, 1))
        yield legend.append(f" {10**picture.high:.3g} (log scale)")
        yield Text(f"{'':{margin}}{picture.spread}", "dim")

    @staticmethod
    def _shade(fraction: float, shades: str, repeat: int) -> Text:
        """Return a cell: its shade is seen without colour, its background with it."""
        if math.isnan(fraction):
            return Text("?" * repeat)
        shade = shades[min(int(fraction * len(shades)), len(shades) - 1)]
        colour = _colour(fraction)
        return Text(shade * repeat, f"{colour} on {colour}")


def render_scales(tensor: QuantizedTensor, width: int | None = None) -> RenderableType:
    """Return a picture of the scales for rich: a heat map of shades, in colour on a terminal.

    Args:
        tensor: a tensor whose scales are known.
        width: columns to use, by default all. Larger grids are down-sampled to fit the terminal.

    Raises:
        UsageError: the scales are not known, or none is positive and finite.

    """
    return _TerminalPicture(_Picture.of(tensor), width)


def write_scales_svg(tensor: QuantizedTensor, path: str | Path) -> None:
    """Write the heat map of a tensor's scales as a self-contained SVG file, whole or not at all.

    Raises:
        UsageError: the scales are not known, or none is positive and finite.
        InputError: the file cannot be written.
    """
    text = _svg(_Picture.of(tensor))
    try:
        write_whole(path, text.encode())
    except OSError as error:
        raise InputError(f"cannot write '{path}': {error.strerror}") from None


def _svg(picture: _Picture) -> str:
    picture = picture.reduced(_MAX_CELLS)
    rows, columns = picture.logs.shape
    cell_width = min(max(720 // columns, 2), max(360 // columns, 48))
    cell_height = min(max(360 // rows, 3), 48)
    wide, high = cell_width * columns, cell_height * rows
    left, top, bar, bar_high = 90, 84, 90 + wide + 32, max(high, 120)
    body = [_text(left, 30, picture.title, 'class="title"'), _text(left, 50, picture.facts)]
    body.append(_text(left, 67, picture.spread))
    body.append(
        f'<g class="cells" transform="translate({left} {top}) scale({cell_width} {cell_height})" '
        'shape-rendering="crispEdges">'
    )
    body += [
        f'<rect x="{x}" y="{y}" width="1" height="1" fill="{_colour(picture.fraction(log))}"/>'
        for y, line in enumerate(picture.logs)
        for x, log in enumerate(line)
    ]
    body.append(f'</g><path class="axis" d="M{left} {top}h{wide}v{high}h-{wide}z"/>')
    for column in _ticks_of(columns, cell_width, 56):
        x = left + column * cell_width
        body.append(f'<path class="axis" d="M{x} {top + high}v5"/>')
        tick = f"{column * picture.blocks[1]:,}"
        body.append(_text(x, top + high + 19, tick, 'text-anchor="middle"'))
    for row in _ticks_of(rows, cell_height, 36) if picture.labels[0] else ():
        y = top + row * cell_height
        body.append(f'<path class="axis" d="M{left} {y}h-5"/>')
        tick = f"{row * picture.blocks[0]:,}"
        body.append(_text(left - 9, y + 4, tick, 'text-anchor="end"'))
    body.append(_text(left + wide / 2, top + high + 42, picture.labels[1], 'class="label"'))
    turned = 'transform="rotate(-90)" class="label"'
    body.append(_text(-top - high / 2, 24, picture.labels[0], turned))
    body.append(f'<rect x="{bar}" y="{top}" width="16" height="{bar_high}" fill="url(#scale)"/>')
    body.append(f'<path class="axis" d="M{bar} {top}h16v{bar_high}h-16z"/>')
    for value in _log_ticks(10**picture.low, 10**picture.high):
        y = top + bar_high * (1 - picture.fraction(math.log10(value)))
        body.append(f'<path class="axis" d="M{bar + 16} {y:.1f}h5"/>')
        body.append(_text(bar + 26, y + 4, f"{value:.3g}"))
    body.append(_text(bar, top - 10, "scale (log)"))
    logs = np.linspace(picture.low, picture.high, 17)
    stops = "".join(
        f'<stop offset="{n / 16:g}" stop-color="{_colour(picture.fraction(log))}"/>'
        for n, log in enumerate(logs)
    )
    longest = max(len(picture.facts), len(picture.spread))
    width = max(bar + 100, left + 7 * longest)
    height = top + max(high + 60, bar_high + 20)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}">',
            f"<title>{escape(picture.title)}</title>",
            f"<style>{_CSS}</style>",
            '<defs><linearGradient id="scale" x1="0" y1="1" x2="0" y2="0">'
            f"{stops}</linearGradient></defs>",
            f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
            *body,
            "</svg>\n",
        ]
    )


_CSS = (
    "text{font:12px Helvetica,Arial,sans-serif;fill:#444}"
    ".title{font-size:17px;font-weight:bold;fill:#111}"
    ".label{font-size:13px;fill:#111;text-anchor:middle}"
    ".axis{fill:none;stroke:#444}"
)


def _text(x: float, y: float, text: str, attributes: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}" {attributes}>{escape(text)}</text>'


def _ticks_of(count: int, cell: int, apart: int) -> range:
    """Return cells of size `cell` to number, a power of two and at least `apart` apart."""
    step = 1
    while step * cell < apart:
        step *= 2
    return range(0, count, step)


def _log_ticks(low: float, high: float) -> list[float]:
    """Return numbers for a logarithmic axis: 1, 2, 5 of each decade, or else evenly spaced ones."""
    if low == high:
        return [low]
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for digits in ((1, 2, 5), (1,)):
        ticks = [float(f"{digit}e{decade}") for decade in decades for digit in digits]
        ticks = [tick for tick in ticks if low * (1 - 1e-9) <= tick <= high * (1 + 1e-9)]
        if 3 <= len(ticks) <= 9:
            return ticks
    return [float(tick) for tick in np.geomspace(low, high, 5)]
