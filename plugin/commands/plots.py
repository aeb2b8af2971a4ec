"""Pictures: of a tensor's scales, and of the errors of quantized weights.

On a terminal they are drawn by rich, and in files by matplotlib, which is an optional extra
(``pip install "subquant[plots]"``) and imported only when a file is drawn. The name of the file
says whether it is SVG or PNG. The same picture is the same bytes: no date and no random identifier
is written, and the user's own settings of matplotlib do not count.

Scales are shown on a log scale, because that is how they act: a scale twice as large is one bit
less precise. Grids that do not fit are shown by the geometric means of neighbouring blocks. Errors
are shown as the ratio of signal to noise in decibels: 6 dB are one bit.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.color import Color, blend_rgb
from rich.color_triplet import ColorTriplet
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.progress_bar import ProgressBar
from rich.style import Style
from rich.table import Table
from rich.text import Text

from ..core.files import write_whole
from ..errors import EnvironmentProblem, InputError, UsageError, printable
from ..numerics.element_types import Array
from .tables import shape_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ..comparison.layers import Layer
    from ..compiler.inspected_tensors import InspectedTensor
    from ..weights.quantizing import LayerError

__all__ = [
    "check_plot",
    "errors_figure",
    "layers_figure",
    "render_errors",
    "render_layers",
    "render_scales",
    "scales_figure",
    "write_plot",
]

_UNDATED: dict[str, dict[str, object]] = {
    "svg": {"Date": None, "Creator": None},
    "png": {"Software": None},
}
"""The formats, and what of their metadata is not written."""

_SHADES, _ASCII_SHADES = "·░▒▓█", ".:+#@"
_VIRIDIS = [
    ColorTriplet(*bytes.fromhex(code))
    for code in (
        "440154", "472d7b", "3b528b", "2c728e", "21918c", "28ae80", "5ec962", "addc30", "fde725"
    )
]  # fmt: skip
"""Matplotlib's map viridis at each eighth: told apart by the colour-blind, and without colour."""

_UNKNOWN = "#bbbbbb"
_BLUE = "#0072b2"
_MOST_CELLS = (256, 512)
_DPI = 150
_MOST_PIXELS = 30_000  # of a side; the renderer of PNG takes less than 65,536


# -- scales ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _ScaleGrid:
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
        # Ticks beside the scales are floats too: nothing is told apart beyond 1e200.
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
class _TerminalHeatMap:
    grid: _ScaleGrid

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        shades = _ASCII_SHADES if options.ascii_only else _SHADES
        rows, blocks = len(self.grid.logs), self.grid.blocks
        margin = len(str((rows - 1) * blocks[0])) + 3
        room = max(options.max_width - margin - 1, 8)
        grid = self.grid.reduced((max(options.size.height - 9, 8), room))
        columns = grid.logs.shape[1]
        repeat = min(max(room // columns, 1), 4)
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
        """Return a cell: its shade is seen without colour, its background with it."""
        if math.isnan(fraction):
            return Text("?" * repeat)
        shade = shades[min(int(fraction * len(shades)), len(shades) - 1)]
        part, between = divmod(fraction * (len(_VIRIDIS) - 1), 1)
        ends = _VIRIDIS[int(part)], _VIRIDIS[min(int(part) + 1, len(_VIRIDIS) - 1)]
        colour = Color.from_triplet(blend_rgb(*ends, between))
        return Text(shade * repeat, Style(color=colour, bgcolor=colour))


def render_scales(tensor: InspectedTensor) -> RenderableType:
    """Return a heat map of the scales for rich, of shades, and in colour on a terminal.

    Raises:
        UsageError: the scales are not known, or none is positive and finite.
    """
    return _TerminalHeatMap(_ScaleGrid.of(tensor))


def scales_figure(tensor: InspectedTensor) -> Figure:
    """Return the heat map of a tensor's scales; its axes count elements.

    Raises:
        UsageError: the scales are not known, or none is positive and finite.
    """
    from matplotlib import colormaps
    from matplotlib.colors import LogNorm
    from matplotlib.figure import Figure
    from matplotlib.ticker import FormatStrFormatter, LogLocator, NullLocator

    grid = _ScaleGrid.of(tensor).reduced(_MOST_CELLS)
    rows, columns = grid.logs.shape
    figure = Figure((8.5, min(3.5 + 0.2 * rows, 6.5)), layout="constrained")
    _entitle(figure, _shortened(grid.title, 96))
    axes = figure.add_subplot()
    axes.set_title(f"{grid.facts}\n{grid.spread}", loc="left", size="small", parse_math=False)
    # Wider than the scales: a little for ticks at the ends, and for one scale to be in the middle.
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
    """The least power of two that is not below: ticks lie where blocks begin."""
    return 1 << max(math.ceil(math.log2(least)), 0)


# -- errors ----------------------------------------------------------------------------------------


def _top(ratios: Sequence[float]) -> float:
    """The decibels that a whole bar stands for: the most, rounded up to tens."""
    finite = [ratio for ratio in ratios if math.isfinite(ratio)]
    return max([10.0, *(10.0 * math.ceil(value / 10) for value in finite)])


def _length(ratio: float, top: float) -> float:
    """The decibels that a bar shows: none below 0, and a whole bar where nothing is lost."""
    return min(max(ratio, 0.0), top)


def _decibels(ratio: float) -> str:
    if math.isinf(ratio):
        return "exact" if ratio > 0 else "noise"
    return f"{ratio:.1f} dB"


def _steps(steps: float | None) -> str:
    if steps is None:
        return ""
    return f"{steps:,.0f}" if steps >= 100 else f"{steps:.3g}"


def render_layers(layers: Sequence[Layer], width: int = 80) -> RenderableType:
    """Return a table for rich of the layers of a comparison, with bars where there is room."""
    room = min(width - 76, 24)
    table = Table(box=None, pad_edge=False)
    table.add_column("", justify="right", no_wrap=True)
    table.add_column("operator", overflow="fold")
    table.add_column("result", no_wrap=True)
    for column in ("equal", "steps", "difference", "signal/noise"):
        table.add_column(column, justify="right", no_wrap=True)
    if room > 4:
        table.add_column("", no_wrap=True)
    top = _top([layer.sqnr for layer in layers])
    for layer in layers:
        bar = ProgressBar(top, _length(layer.sqnr, top), room, complete_style=_BLUE,
                          finished_style=_BLUE)  # fmt: skip
        share = layer.equal / layer.elements if layer.elements else 1.0
        table.add_row(
            str(layer.operator),
            Text(printable(layer.name)),
            f"{shape_text(layer.shape)} {layer.type.lower()}".rstrip(),
            "all" if layer.equal == layer.elements else f"{math.floor(share * 1e4) / 100:.2f}%",
            ""
            if layer.steps is None
            else f"{layer.steps:,.0f}"
            if layer.steps >= 100
            else f"{layer.steps:.3g}",
            f"{layer.difference:.3g}",
            _decibels(layer.sqnr),
            *([bar] if room > 4 else []),
        )
    return table


def render_errors(errors: Sequence[LayerError], width: int = 80) -> RenderableType:
    """Return a table for rich, with a bar a layer where the width has room for bars.

    Args:
        errors: of the layers.
        width: columns of the terminal.
    """
    names = [printable(error.name) for error in errors]
    shapes = ["x".join(map(str, error.shape)) for error in errors]
    taken = max(map(len, names), default=0) + max(map(len, shapes), default=0) + 38
    room = min(width - taken, 24)
    table = Table(box=None, pad_edge=False)
    table.add_column("tensor", overflow="fold")
    table.add_column("shape", no_wrap=True)
    for column in ("bits", "error", "signal/noise"):
        table.add_column(column, justify="right", no_wrap=True)
    if room > 4:
        table.add_column("", no_wrap=True)
    top = _top([error.signal_to_noise for error in errors])
    for error, name, shape in zip(errors, names, shapes, strict=True):
        length = _length(error.signal_to_noise, top)
        bar = ProgressBar(top, length, room, complete_style=_BLUE, finished_style=_BLUE)
        table.add_row(
            Text(name),
            shape,
            f"{error.bits_per_element:.2f}",
            f"{error.relative_error:.2%}",
            _decibels(error.signal_to_noise),
            *([bar] if room > 4 else []),
        )
    return table


def errors_figure(errors: Sequence[LayerError]) -> Figure:
    """Return a bar a layer, the first at the top, as long as its signal is above its noise."""
    bars = [(printable(error.name), error.signal_to_noise) for error in errors]
    return _noise_figure("Errors of quantized weights", bars)


def layers_figure(layers: Sequence[Layer], against: str) -> Figure:
    """Return a bar an operator, the first at the top, as long as it agrees with a reference."""
    bars = [(f"{layer.operator} {layer.name}", layer.sqnr) for layer in layers]
    return _noise_figure(f"Layers beside {_REFERENCES[against]}", bars)


_REFERENCES = {
    "litert": "LiteRT's reference kernels",
    "onnxruntime": "ONNX Runtime",
    "float": "the reals that they stand for",
}


def _noise_figure(title: str, bars: Sequence[tuple[str, float]]) -> Figure:
    from matplotlib.figure import Figure

    names = [_shortened(name, 64) for name, _ in bars]
    ratios = [ratio for _, ratio in bars]
    top, rows = _top(ratios), range(len(bars))
    width = 6.0 + 0.075 * max(map(len, names), default=0)
    figure = Figure((width, 1.4 + 0.22 * len(bars)), layout="constrained")
    _entitle(figure, title)
    axes = figure.add_subplot()
    drawn = axes.barh(rows, [_length(ratio, top) for ratio in ratios], 0.7, color=_BLUE)
    axes.bar_label(drawn, [_decibels(ratio) for ratio in ratios], padding=4, size="small")
    axes.set_yticks(rows, names, size="small", parse_math=False)
    axes.set_ylim(len(bars) - 0.4, -0.6)
    axes.set_xlim(0, top * 1.12)
    axes.set_xlabel("signal to noise (dB; 6 dB are one bit)")
    axes.set_axisbelow(True)
    axes.grid(axis="x", color="#dddddd")
    axes.tick_params("y", length=0)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


# -- files -----------------------------------------------------------------------------------------


def check_plot(path: str | os.PathLike[str]) -> None:
    """Check that a picture can be drawn to a file of this name, before the work that it shows.

    Raises:
        UsageError: the name does not end in .svg or .png.
        EnvironmentProblem: matplotlib is not installed.
    """
    if _format_of(path) not in _UNDATED:
        raise UsageError(f"the plot '{os.fspath(path)}' must end in .svg or .png")
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise EnvironmentProblem(
            "plots are drawn by matplotlib, which is not installed; "
            'run: pip install "subquant[plots]"'
        ) from None


def _entitle(figure: Figure, title: str) -> None:
    figure.suptitle(title, x=0.01, ha="left", size="medium", weight="bold", parse_math=False)


def _format_of(path: str | os.PathLike[str]) -> str:
    return Path(path).suffix[1:].lower()


def write_plot(path: str | os.PathLike[str], draw: Callable[[], Figure]) -> None:
    """Write a picture whole or not at all, drawn by matplotlib's own defaults and no user's.

    Args:
        path: of the file; its ending says the format.
        draw: makes the figure.

    Raises:
        UsageError, EnvironmentProblem: as of `check_plot`.
        InputError: the file cannot be written.
    """
    check_plot(path)
    from matplotlib import style

    kind = _format_of(path)
    settings: dict[str, Any] = {"svg.hashsalt": "subquant", "svg.fonttype": "none"}
    picture = BytesIO()
    with style.context(["default", settings]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # shown as a box
        figure = draw()
        dpi = min(_DPI, _MOST_PIXELS / max(figure.get_size_inches()))
        metadata = {"Title": figure.get_suptitle(), **_UNDATED[kind]}
        figure.savefig(picture, format=kind, dpi=dpi, metadata=metadata)
    try:
        write_whole(path, picture.getvalue())
    except OSError as error:
        raise InputError(f"cannot write '{os.fspath(path)}': {error.strerror}") from None


def _shortened(text: str, most: int) -> str:
    """A text that does not push aside what it labels: the middle of a long one is left out."""
    half = most // 2
    return text if len(text) <= most else f"{text[: half - 1]}…{text[-half:]}"
