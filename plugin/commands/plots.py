"""Plots: their files, and bar charts of errors of quantized weights and of layers.

Rich draws plots on a terminal, and matplotlib in files (SVG or PNG, by the suffix). Matplotlib is
an optional extra (``pip install "subquant[plots]"``), and is imported only for a file. Plots are
reproducible: a file has no date and no random identifier, and does not depend on the user's
settings of matplotlib. Errors are signal-to-noise ratios in decibels: 6 dB are one bit.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ..core.files import write_atomically, writing
from ..errors import EnvironmentProblem, UsageError, printable, shape_text
from ..weights.quantizing import LayerError, decibels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ..comparison.layers import Layer
    from ..comparison.model_weights import ComparedWeight

_UNDATED: dict[str, dict[str, object]] = {
    "svg": {"Date": None, "Creator": None},
    "png": {"Software": None},
}
"""Metadata to omit, by format."""


_BLUE = "#0072b2"
_DPI = 150
"""The resolution of a PNG file, in pixels an inch."""
_MAX_PIXELS = 30_000
"""Pixels of a side of a plot, at most; matplotlib renders PNG up to 65,535."""


# -- bar charts -----------------------------------------------------------------------------------


def _top(ratios: Sequence[float]) -> float:
    """Return the decibels of a full bar: the maximum, rounded up to tens."""
    finite = [ratio for ratio in ratios if math.isfinite(ratio)]
    return max([10.0, *(10.0 * math.ceil(value / 10) for value in finite)])


def _length(ratio: float, top: float) -> float:
    """Return the decibels of a bar: 0 for negative ratios, a full bar for an exact result."""
    return min(max(ratio, 0.0), top)


def _decibels(ratio: float) -> str:
    if math.isinf(ratio):
        return "exact" if ratio > 0 else "noise"
    return f"{ratio:.1f} dB"


def _bar_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], ratios: Sequence[float], bar_width: int
) -> Table:
    """Return a table with a column of signal-to-noise ratios, and bars of more than 4 columns."""
    table = Table(box=None, pad_edge=False)
    for title in (*columns, "signal/noise"):
        is_text = title in ("operator", "result", "tensor", "shape", "type")
        is_name = title in ("operator", "tensor")
        table.add_column(
            title,
            justify="left" if is_text else "right",
            no_wrap=not is_name,
            overflow="fold" if is_name else "ellipsis",
        )
    has_bars = bar_width > 4
    if has_bars:
        table.add_column("", no_wrap=True)
    top = _top(ratios)
    for row, ratio in zip(rows, ratios, strict=True):
        bar = ProgressBar(top, _length(ratio, top), min(bar_width, 24), complete_style=_BLUE,
                          finished_style=_BLUE)  # fmt: skip
        table.add_row(*map(Text, row), _decibels(ratio), *([bar] if has_bars else []))
    return table


def render_layers(layers: Sequence[Layer], width: int = 80) -> RenderableType:
    """Return a table of the layers of a comparison, with bars on a wide terminal."""
    rows = [
        (
            str(layer.operator),
            printable(layer.name),
            f"{shape_text(layer.shape)} {layer.type.lower()}".rstrip(),
            _percent(layer.equal, layer.elements),
            "" if layer.steps is None else _three_digits(layer.steps),
            f"{layer.difference:.3g}",
        )
        for layer in layers
    ]
    columns = ("", "operator", "result", "equal", "steps", "difference")
    return _bar_table(columns, rows, [layer.sqnr for layer in layers], width - 76)


def _percent(equal: int, elements: int) -> str:
    """Return the share of equal elements, rounded down, so that only all of them are "all"."""
    return "all" if equal == elements else f"{math.floor(equal / elements * 1e4) / 100:.2f}%"


def _three_digits(steps: float) -> str:
    return f"{steps:,.0f}" if steps >= 100 else f"{steps:.3g}"


def render_errors(errors: Sequence[LayerError], width: int = 80) -> RenderableType:
    """Return a table of the errors of quantized weights, with bars on a wide terminal.

    Layers of a calibration have errors of outputs, too, and bars for these.
    """
    if any(error.output_error is not None for error in errors):
        return _render_calibrated(errors, width)
    rows = [
        (
            printable(error.name),
            shape_text(error.shape),
            f"{error.bits_per_element:.2f}",
            f"{error.relative_error:.2%}",
        )
        for error in errors
    ]
    text_width = sum(max((len(row[column]) for row in rows), default=0) for column in (0, 1))
    ratios = [error.signal_to_noise for error in errors]
    return _bar_table(("tensor", "shape", "bits", "error"), rows, ratios, width - text_width - 38)


def _render_calibrated(errors: Sequence[LayerError], width: int) -> RenderableType:
    rows = [
        (
            printable(error.name),
            f"{error.bits_per_element:.2f}",
            f"{error.relative_error:.2%}",
            _percentage(error.output_error),
            _percentage(error.held_out_error),
            "" if error.seconds is None else f"{error.seconds:.2f} s",
        )
        for error in errors
    ]
    columns = ("tensor", "bits", "weights", "outputs", "held-out", "time")
    text_width = max((len(row[0]) for row in rows), default=0)
    ratios = [decibels(_error_of_outputs(error)) for error in errors]
    return _bar_table(columns, rows, ratios, width - text_width - 60)


def _percentage(share: float | None) -> str:
    return "" if share is None else f"{share:.2%}"


def _error_of_outputs(error: LayerError) -> float:
    """Return the error of the outputs for held-out tokens, else for those of the calibration."""
    if error.held_out_error is not None:
        return error.held_out_error
    return error.relative_error if error.output_error is None else error.output_error


def errors_figure(errors: Sequence[LayerError]) -> Figure:
    """Return a bar chart of the signal-to-noise ratio of each weight, or of each layer's outputs.

    Bits are part of the labels where they differ between layers of a calibration.
    """
    bits = {round(error.bits_per_element, 2) for error in errors}
    is_calibrated = any(error.output_error is not None for error in errors)
    bars = []
    for error in errors:
        label = f" ({error.bits_per_element:.2f} bits)" if is_calibrated and len(bits) > 1 else ""
        noise = _error_of_outputs(error) if is_calibrated else error.relative_error
        bars.append((printable(error.name) + label, decibels(noise)))
    if not is_calibrated:
        return _noise_figure("Errors of quantized weights", bars)
    has_held_out = any(error.held_out_error is not None for error in errors)
    kind = "held-out" if has_held_out else "calibration"
    return _noise_figure(f"Errors of layers' outputs, {kind} tokens", bars)


def render_weight_errors(weights: Sequence[ComparedWeight], width: int = 80) -> RenderableType:
    """Return a table of the tensors that differ from an original, with bars on a wide terminal."""
    different = [each for each in weights if each.greatest_error]
    has_outputs = any(each.output_error is not None for each in different)
    rows = [
        (
            printable(each.name),
            printable(each.kind),
            f"{each.bits_per_element:.2f}",
            f"{each.relative_error:.2%}",
            *([_percentage(each.output_error)] if has_outputs else []),
        )
        for each in different
    ]
    columns = ("tensor", "type", "bits", "weights", *(["outputs"] if has_outputs else []))
    text_width = sum(max((len(row[column]) for row in rows), default=0) for column in (0, 1))
    ratios = [decibels(each.relative_error) for each in different]
    return _bar_table(columns, rows, ratios, width - text_width - 48)


def weights_figure(weights: Sequence[ComparedWeight]) -> Figure:
    """Return a bar chart of the signal-to-noise ratio of each tensor that differs."""
    bars = [
        (f"{printable(each.name)} ({each.bits_per_element:.2f} bits)",
         decibels(each.relative_error))
        for each in weights
        if each.greatest_error
    ]  # fmt: skip
    return _noise_figure("Weights compared with their original", bars)


def layers_figure(layers: Sequence[Layer], against: str) -> Figure:
    """Return a bar chart of the signal-to-noise ratio of each operator's result."""
    bars = [(f"{layer.operator} {layer.name}", layer.sqnr) for layer in layers]
    return _noise_figure(f"Layers compared with {_REFERENCES[against]}", bars)


_REFERENCES = {
    "litert": "LiteRT's reference kernels",
    "onnxruntime": "ONNX Runtime",
    "float": "float arithmetic",
}


def _noise_figure(title: str, bars: Sequence[tuple[str, float]]) -> Figure:
    from matplotlib.figure import Figure

    names = [shortened(name, 64) for name, _ in bars]
    ratios = [ratio for _, ratio in bars]
    top, rows = _top(ratios), range(len(bars))
    width = 6.0 + 0.075 * max(map(len, names), default=0)
    figure = Figure((width, 1.4 + 0.22 * len(bars)), layout="constrained")
    set_title(figure, title)
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


# -- files ----------------------------------------------------------------------------------------


def check_plot(path: str | os.PathLike[str]) -> None:
    """Check that a plot can be written to a file of this name, before the computation.

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


def set_title(figure: Figure, title: str) -> None:
    """Set the title of a figure at its left edge."""
    figure.suptitle(title, x=0.01, ha="left", size="medium", weight="bold", parse_math=False)


def _format_of(path: str | os.PathLike[str]) -> str:
    return Path(path).suffix[1:].lower()


def write_plot(path: str | os.PathLike[str], draw: Callable[[], Figure]) -> None:
    """Write a plot atomically, with matplotlib's defaults instead of the user's settings.

    Raises:
        UsageError, EnvironmentProblem: as `check_plot`.
        InputError: the file cannot be written.
    """
    check_plot(path)
    from matplotlib import style

    kind = _format_of(path)
    settings: dict[str, Any] = {"svg.hashsalt": "subquant", "svg.fonttype": "none"}
    image = BytesIO()
    with style.context(["default", settings]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # shown as a box
        figure = draw()
        dpi = min(_DPI, _MAX_PIXELS / max(figure.get_size_inches()))
        metadata = {"Title": figure.get_suptitle(), **_UNDATED[kind]}
        figure.savefig(image, format=kind, dpi=dpi, metadata=metadata)
    with writing(path):
        write_atomically(path, image.getvalue())


def shortened(text: str, max_length: int) -> str:
    """Return a label of bounded length, without the middle of a longer text."""
    half = max_length // 2
    return text if len(text) <= max_length else f"{text[: half - 1]}…{text[-half:]}"
