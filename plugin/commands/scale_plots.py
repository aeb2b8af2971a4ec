"""Heat maps of a tensor's scales, by rich on a terminal, and by matplotlib in a file.

Scales have a log axis, because twice the scale is one bit less of precision. A grid that does not
fit is reduced to geometric means of neighboring blocks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from rich.color import Color, blend_rgb
from rich.color_triplet import ColorTriplet
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.style import Style
from rich.text import Text

from ..errors import UsageError, printable, shape_text
from ..numerics.element_types import Array
from .plots import set_title, shortened

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ..compiler.inspected_tensors import InspectedTensor

_SHADES, _ASCII_SHADES = "·░▒▓█", ".:+#@"
_VIRIDIS = [
    ColorTriplet(*bytes.fromhex(code))
    for code in (
        "440154", "472d7b", "3b528b", "2c728e", "21918c", "28ae80", "5ec962", "addc30", "fde725"
    )
]  # fmt: skip
"""Matplotlib's color map viridis at each eighth, distinct for the color-blind and in gray."""
_UNKNOWN = "#bbbbbb"
_MAX_CELLS = (256, 512)
"""The greatest numbers of rows and columns of a heat map; larger grids of scales are reduced."""


@dataclass(frozen=True)
class _ScaleGrid:
    """Scales as a matrix of logarithms, with title, axes and color range.

    `labels` and `blocks` (elements of a cell) describe rows and columns; `low` and `high` are the
    logarithms at the ends of the color map.
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
    def of(cls, tensor: InspectedTensor) -> _ScaleGrid:
        parameters, shape = tensor.parameters, tensor.shape
        name = printable(tensor.name)
        if tensor.scale_range is None:
            raise UsageError(f"scales of {name} are known at run time only")
        rank = max(parameters.min_rank, parameters.scales.ndim) if shape is None else len(shape)
        grid = parameters.grids(rank)[0].astype(np.float64)
        good = np.isfinite(grid) & (grid > 0)
        valid, bad = grid[good], grid.size - int(good.sum())
        if not valid.size:
            raise UsageError(f"scales of {name} must be positive and finite, got none")
        # Ticks next to the scales are floats too: they cannot differ beyond 1e200.
        logs = np.log10(grid, out=np.full(grid.shape, np.nan), where=good).clip(-200, 200)
        axes = [axis for axis in range(rank) if grid.shape[axis] > 1]
        *leading, last = [""] * max(2 - len(axes), 0) + [cls._label(tensor, axis) for axis in axes]
        rows, blocks = leading[-1], [parameters.block_size_of(axis) or 1 for axis in axes]
        blocks = [1, 1, *blocks][-2:]
        if len(leading) > 1:
            sizes = shape_text(tuple(grid.shape[axis] for axis in axes[:-1]))
            rows = f"axes {', '.join(map(str, axes[:-1]))} flattened, {sizes} blocks"
            blocks[0] = 1
        in_function = f" in @{printable(tensor.function)}" if tensor.function else ""
        block = "" if tensor.block_shape is None else f" of {shape_text(tensor.block_shape)}"
        return cls(
            logs.reshape(-1, grid.shape[axes[-1]] if axes else 1),
            (rows, last or "one scale for the whole tensor"),
            (blocks[0], blocks[1]),
            f"Scales of {name}{in_function}",
            f"{'unranked' if shape is None else shape_text(shape)}, {parameters.storage}:"
            f"{parameters.expressed.value}, {parameters.granularity}, {grid.size:,} "
            f"block{'' if grid.size == 1 else 's'}{block}"
            f"{f', {bad} not positive and finite' if bad else ''}",
            f"min {valid.min():.3g}, median {np.median(valid):.3g}, max {valid.max():.3g}",
            float(np.nanmin(logs)),
            float(np.nanmax(logs)),
        )

    @staticmethod
    def _label(tensor: InspectedTensor, axis: int) -> str:
        extent = None if tensor.shape is None else tensor.shape[axis]
        elements = "" if extent is None else f"{extent:,} elements, "
        return f"axis {axis}, {elements}blocks of {tensor.parameters.block_size_of(axis)}"

    def reduced(self, limits: tuple[int, int]) -> _ScaleGrid:
        """Return a grid of at most `limits` rows and columns.

        A cell is then the geometric mean of its scales (the mean of their logarithms), and the
        colors span the range of the cells, since means vary much less than scales.
        """
        steps = [-(-n // limit) for n, limit in zip(self.logs.shape, limits, strict=True)]
        if steps == [1, 1]:
            return self
        valid = np.isfinite(self.logs)
        totals, counts = np.where(valid, self.logs, 0.0), valid.astype(np.float64)
        for axis, step in enumerate(steps):
            starts = np.arange(0, self.logs.shape[axis], step)
            totals, counts = (np.add.reduceat(a, starts, axis) for a in (totals, counts))
        means = np.divide(totals, counts, out=np.full(totals.shape, np.nan), where=counts > 0)
        return replace(
            self,
            logs=means,
            blocks=(self.blocks[0] * steps[0], self.blocks[1] * steps[1]),
            spread=f"{self.spread}; a cell is the geometric mean of {steps[0]}x{steps[1]} scales",
            low=float(np.nanmin(means)),
            high=float(np.nanmax(means)),
        )

    def fraction(self, log: float) -> float:
        """Return the position of a logarithm on the color map, from 0 to 1; NaN for NaN."""
        if self.low == self.high:
            return log * 0 + 0.5
        return min(max((log - self.low) / (self.high - self.low), 0.0), 1.0)


@dataclass(frozen=True)
class _TerminalHeatMap:
    grid: _ScaleGrid

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        shades = _ASCII_SHADES if options.ascii_only else _SHADES
        rows, blocks = len(self.grid.logs), self.grid.blocks
        margin = len(str((rows - 1) * blocks[0])) + 3
        width = max(options.max_width - margin - 1, 8)
        grid = self.grid.reduced((max(options.size.height - 9, 8), width))
        columns = grid.logs.shape[1]
        repeat = min(max(width // columns, 1), 4)
        yield Text.assemble((grid.title, "bold"), "\n", (grid.facts, "dim"))
        if grid.labels[0]:
            yield Text(f"rows: {grid.labels[0]}")
        yield Text(f"columns: {grid.labels[1]}")
        ticks = " " * margin
        for column in range(0, columns, _power_of_two(7 / repeat)):
            ticks = f"{ticks:<{margin + column * repeat}}{column * grid.blocks[1]}"
        yield Text(ticks, "dim")
        for row, logs in enumerate(grid.logs):
            tick = "" if row % 4 else str(row * grid.blocks[0])
            line = Text(f"{tick:>{margin - 2}} ", "dim").append("|" if options.ascii_only else "│")
            for log in logs:
                line.append_text(self._shade(grid.fraction(log), shades, repeat))
            yield line
        legend = Text(f"{'':{margin}}{10**grid.low:.3g} ")
        for level in range(20):
            legend.append_text(self._shade(level / 19, shades, 1))
        yield legend.append(f" {10**grid.high:.3g} (log scale)")
        yield Text(f"{'':{margin}}{grid.spread}", "dim")

    @staticmethod
    def _shade(fraction: float, shades: str, repeat: int) -> Text:
        """Return a cell: a shade for output without color, and a background color."""
        if math.isnan(fraction):
            return Text("?" * repeat)
        shade = shades[min(int(fraction * len(shades)), len(shades) - 1)]
        index, weight = divmod(fraction * (len(_VIRIDIS) - 1), 1)
        ends = _VIRIDIS[int(index)], _VIRIDIS[min(int(index) + 1, len(_VIRIDIS) - 1)]
        color = Color.from_triplet(blend_rgb(*ends, weight))
        return Text(shade * repeat, Style(color=color, bgcolor=color))


def render_scales(tensor: InspectedTensor) -> RenderableType:
    """Return a heat map of the scales for rich, in shades, and in color on a terminal.

    Raises:
        UsageError: the scales are not known, or none is positive and finite.
    """
    return _TerminalHeatMap(_ScaleGrid.of(tensor))


def scales_figure(tensor: InspectedTensor) -> Figure:
    """Return the heat map of a tensor's scales, axes in elements; errors as `render_scales`."""
    from matplotlib import colormaps
    from matplotlib.colors import LogNorm
    from matplotlib.figure import Figure
    from matplotlib.ticker import FormatStrFormatter, LogLocator, NullLocator

    grid = _ScaleGrid.of(tensor).reduced(_MAX_CELLS)
    rows, columns = grid.logs.shape
    figure = Figure((8.5, min(3.5 + 0.2 * rows, 6.5)), layout="constrained")
    set_title(figure, shortened(grid.title, 96))
    axes = figure.add_subplot()
    axes.set_title(f"{grid.facts}\n{grid.spread}", loc="left", size="small", parse_math=False)
    # The range is widened to include ticks at its ends, and to center a single scale.
    wider = 2 if grid.low == grid.high else 1 + 1e-9
    image = axes.imshow(
        np.ma.masked_invalid(10**grid.logs),
        cmap=colormaps["viridis"].with_extremes(bad=_UNKNOWN),
        norm=LogNorm(10**grid.low / wider, 10**grid.high * wider),
        aspect="auto",
        interpolation="none",
        extent=(0, columns * grid.blocks[1], rows * grid.blocks[0], 0),
    )
    axes.set_xlabel(grid.labels[1])
    axes.set_ylabel(grid.labels[0])
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.yaxis.set_major_formatter("{x:,.0f}")
    for set_ticks, label, count, block in (
        (axes.set_xticks, grid.labels[1], columns, grid.blocks[1]),
        (axes.set_yticks, grid.labels[0], rows, grid.blocks[0]),
    ):
        step = block * _power_of_two(count / 8)
        set_ticks(range(0, count * block + 1, step) if label.startswith("ax") else [])
    bar = figure.colorbar(image, label="scale (log)")
    bar.ax.yaxis.set_minor_locator(NullLocator())
    digits = (1, 2, 5) if grid.high - grid.low < 4 else (1,)  # of a tick, in each decade
    bar.set_ticks([10**grid.low] if grid.low == grid.high else LogLocator(subs=digits))
    bar.formatter = FormatStrFormatter("%g")
    return figure


def _power_of_two(least: float) -> int:
    """Return the next power of two, so that ticks are at block boundaries."""
    return 1 << max(math.ceil(math.log2(least)), 0)
