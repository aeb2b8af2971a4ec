"""Plots of scales and errors: their content, on a terminal and in files."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.axes import Axes

from command_line import fail, succeed
from inspected import PER_AXIS, PER_TENSOR, SUB_CHANNEL, argument, grid_argument, inspect, show
from processes import run_python
from subquant.commands import plots
from subquant.commands.plots import errors_figure, render_errors, write_plot
from subquant.commands.scale_plots import render_scales, scales_figure
from subquant.commands.tables import render_table
from subquant.compiler.tensor_inspection import InspectedTensor
from subquant.errors import EnvironmentProblem, InputError, UsageError
from subquant.weights.quantizing import LayerError

SVG = "{http://www.w3.org/2000/svg}"
MARKUP = "<b>&\"'$x_1$ [red]r[/red] \x1b[31m\n\N{SNOWMAN}"
"""A name with the markup of XML, TeX and rich, control characters, and a glyph of no font."""

ESCAPED = "<b>&\"'$x_1$ [red]r[/red] \\x1b[31m\\n\N{SNOWMAN}"


def named(tensor: InspectedTensor, name: str) -> InspectedTensor:
    return replace(tensor, name=name)


def scales_with_zero() -> InspectedTensor:
    (tensor,) = inspect(
        """func.func @f(%q: tensor<4xi8>) {
          %s = arith.constant dense<[0.0, 1.0, 2.0, 4.0]> : tensor<4xf32>
          %y = "subquant.dequantize"(%q, %s)
            {block_sizes = array<i64: 1>, operandSegmentSizes = array<i32: 1, 1, 0, 0>,
             quantized_type = !quant.any<i8:f32>}
            : (tensor<4xi8>, tensor<4xf32>) -> tensor<4xf32>
          return
        }"""
    )
    return tensor


ERRORS = [
    LayerError("first", (64, 32), 4.5, 0.1, 0.3),  # 20 dB
    LayerError("second", (8,), 8.0, 0.0, 0.0),
    LayerError("third", (2, 2), 4.5, 2.0, 9.0),  # -6 dB
    LayerError("fourth", (2, 2), 4.5, 10**-1.75, 9.0),  # 35 dB
]


# -- on a terminal --------------------------------------------------------------------------------


def test_each_block_is_shown() -> None:
    rows = show(render_scales(grid_argument(2, 8))).splitlines()
    assert rows[0] == "Scales of %arg0 in @f"
    assert rows[1] == "2x256, i4:f32, sub-channel, 16 blocks of 1x32"
    assert rows[2] == "rows: axis 0, 2 elements, blocks of 1"
    assert rows[3] == "columns: axis 1, 256 elements, blocks of 32"
    assert rows[4].split() == ["0", "64", "128", "192"]
    # log2 of the scales is 0 to 7, in five shades of 7 / 5 each.
    levels = "··░▒▒▓██"
    assert rows[5].split("│")[1] == "".join(level * 4 for level in levels)
    assert rows[6].split("│")[1] == "".join(level * 4 for level in levels[1:] + levels[:1])
    assert rows[7].strip() == "1 ····░░░░▒▒▒▒▓▓▓▓████ 128 (log scale)"
    assert rows[8].strip() == "min 1, median 12, max 128"


def test_a_grid_is_reduced_to_the_terminal() -> None:
    text = show(render_scales(grid_argument(64, 32)), width=30, height=20)
    words = " ".join(text.split())
    assert "min 1, median 12, max 128; a cell is the geometric mean of 6x2 scales" in words
    cells = [line.split("│")[1] for line in text.splitlines() if "│" in line]
    assert [len(line) for line in cells] == [16] * 11
    assert set("".join(cells)) == set("·░▒▓█")  # the shades span the means, not the scales


def test_leading_axes_are_flattened_and_single_blocks_dropped() -> None:
    scales = "{{{{1.0, 2.0}}, {{2.0, 4.0}}}, {{{4.0, 8.0}}, {{8.0, 16.0}}}}"
    tensor = argument(f"tensor<2x2x5x8x!quant.uniform<i4:f32:{{0:1, 1:1, 3:4}}, {scales}>>")
    rows = show(render_scales(tensor)).splitlines()
    assert rows[2] == "rows: axes 0, 1 flattened, 2x2 blocks"
    assert rows[3] == "columns: axis 3, 8 elements, blocks of 4"
    cells = [line.split("│")[1] for line in rows if "│" in line]
    assert cells == ["····░░░░", "░░░░▒▒▒▒", "▒▒▒▒▓▓▓▓", "▓▓▓▓████"]
    axes = scales_figure(tensor).axes[0]
    np.testing.assert_allclose(values(axes), [[1, 2], [2, 4], [4, 8], [8, 16]])
    assert axes.get_ylabel() == "axes 0, 1 flattened, 2x2 blocks"
    assert axes.get_yticks().tolist() == [0, 1, 2, 3, 4]


def test_color_only_on_a_terminal() -> None:
    tensor = grid_argument(2, 8)
    for renderable in (render_table([tensor]), render_scales(tensor), render_errors(ERRORS)):
        assert "\x1b" not in show(renderable)
        assert "\x1b[" in show(renderable, terminal=True)
    shown = show(render_scales(tensor), terminal=True)
    assert re.sub(r"\x1b\[[0-9;]*m", "", shown) == show(render_scales(tensor))
    for end in ("68;1;84", "253;231;37"):  # of viridis
        assert f"38;2;{end};48;2;{end}m····" in shown or f"38;2;{end};48;2;{end}m████" in shown


def test_errors_are_a_table_with_bars() -> None:
    rows = show(render_errors(ERRORS, 80)).splitlines()
    assert rows[0].split() == ["tensor", "shape", "bits", "error", "signal/noise"]
    bars = [line[-24:].rstrip() for line in rows[1:]]
    # 40 dB are 24 columns, and so is no error.
    assert bars == ["━" * 12, "━" * 24, "", "━" * 21]
    assert "first   64x32  4.50   10.00%       20.0 dB" in rows[1]
    assert "exact" in rows[2]
    assert "-6.0 dB" in rows[3]
    assert "━" not in show(render_errors(ERRORS, 50))
    assert show(render_errors([])).split() == rows[0].split()


def test_names_on_a_terminal_are_no_markup() -> None:
    assert ESCAPED in show(render_errors([LayerError(MARKUP, (2,), 4.0, 0.1, 0.1)], 200), width=200)
    tensor = named(grid_argument(2, 8), MARKUP)
    assert show(render_scales(tensor)).splitlines()[0] == f"Scales of {ESCAPED} in @f"


# -- content of figures ---------------------------------------------------------------------------


def values(axes: Axes) -> np.ma.MaskedArray[Any, Any]:
    (image,) = axes.images
    return np.ma.asarray(image.get_array())


def test_the_heat_map_has_a_cell_a_block() -> None:
    figure = scales_figure(grid_argument(64, 32))
    axes, bar = figure.axes
    expected = 2.0 ** (np.add.outer(np.arange(64), np.arange(32)) % 8)
    np.testing.assert_allclose(values(axes), expected)
    assert figure.get_suptitle() == "Scales of %arg0 in @f"
    assert axes.get_title("left") == (
        "64x1024, i4:f32, sub-channel, 2,048 blocks of 1x32\nmin 1, median 12, max 128"
    )
    assert axes.get_xlabel() == "axis 1, 1,024 elements, blocks of 32"
    assert axes.get_ylabel() == "axis 0, 64 elements, blocks of 1"
    assert axes.get_xlim() == (0, 1024)
    assert axes.get_ylim() == (64, 0)  # the first row is at the top
    assert axes.get_xticks().tolist() == list(range(0, 1025, 128))
    assert bar.get_ylabel() == "scale (log)"
    (image,) = axes.images
    assert image.get_cmap().name == "viridis"
    np.testing.assert_allclose(image.norm([1, 2**3.5, 128]), [0, 0.5, 1], atol=1e-8)


def per_axis(scales: str) -> InspectedTensor:
    return argument(PER_AXIS.replace("f16", "f64").replace("1.0, 2.0, 4.0", scales))


@pytest.mark.parametrize(
    ("scales", "ticks"),
    [
        ("1.0, 2.0, 4.0", ["1", "2"]),
        ("0.5, 0.05, 0.2", ["0.05", "0.1", "0.2", "0.5"]),
        ("0.0331, 0.033, 0.0335", ["0.033", "0.0331", "0.0332", "0.0333", "0.0334", "0.0335"]),
        ("1.0e-3, 1.0, 1.0e3", ["0.001", "0.01", "0.1", "1", "10", "100", "1000"]),
        ("0.5, 0.5, 0.5", ["0.5"]),
    ],
)  # fmt: skip
def test_ticks_of_the_color_bar(scales: str, ticks: list[str]) -> None:
    """Ticks are 1, 2, 5 of each decade, or only 1, or evenly spaced, and include the ends."""
    figure = scales_figure(per_axis(scales))
    figure.draw_without_rendering()
    bar = figure.axes[1]
    low, high = bar.get_ylim()
    labels = zip(bar.get_yticklabels(), bar.get_yticks(), strict=True)
    assert [label.get_text() for label, y in labels if low <= y <= high] == ticks


def test_the_least_and_the_greatest_scale(tmp_path: Path) -> None:
    """Extreme scales neither overflow nor vanish, alone or together."""
    least, greatest = "4.940656458412465e-324", "1.7976931348623157e308"
    for scales in (f"{least}, 1.0, {greatest}", ", ".join([least] * 3), ", ".join([greatest] * 3)):
        tensor = per_axis(scales)
        show(render_scales(tensor))
        write_scales(tensor, tmp_path / "a.svg")


def test_an_axis_without_blocks_has_no_ticks() -> None:
    (axes, _) = scales_figure(argument(PER_AXIS)).axes
    assert axes.get_yticks().tolist() == []
    assert axes.get_xticks().tolist() == [0, 1, 2, 3]
    np.testing.assert_allclose(values(axes), [[1, 2, 4]])


def test_a_large_grid_is_reduced_to_geometric_means() -> None:
    axes = scales_figure(grid_argument(258, 600, block=1)).axes[0]
    rows, columns = np.arange(258)[:, None], np.arange(600)
    logs = ((rows + columns) % 8).reshape(129, 2, 300, 2).mean((1, 3))
    np.testing.assert_allclose(values(axes), 2.0**logs)
    assert "a cell is the geometric mean of 2x2 scales" in axes.get_title("left")
    assert axes.get_xlim() == (0, 600)


def test_one_scale_has_the_middle_color() -> None:
    (axes, bar) = scales_figure(argument(PER_TENSOR)).axes
    assert values(axes).tolist() == [[0.5]]
    assert axes.images[0].norm(0.5) == pytest.approx(0.5)
    assert axes.get_xlabel() == "one scale for the whole tensor"
    assert bar.get_yticks().tolist() == [0.5]


def test_scales_that_are_not_positive_and_finite() -> None:
    tensor = scales_with_zero()
    rows = show(render_scales(tensor)).splitlines()
    assert rows[1].endswith("4 blocks of 1, 1 not positive and finite")
    assert rows[4].split("│")[1] == "????····▒▒▒▒████"
    axes = scales_figure(tensor).axes[0]
    assert values(axes).mask.tolist() == [[True, False, False, False]]
    assert axes.images[0].cmap.get_bad().tolist() == pytest.approx([0xBB / 255] * 3 + [1])


def test_errors_are_bars() -> None:
    (axes,) = errors_figure(ERRORS).axes
    assert [patch.get_width() for patch in axes.patches] == pytest.approx([20, 40, 0, 35])
    assert [label.get_text() for label in axes.texts] == ["20.0 dB", "exact", "-6.0 dB", "35.0 dB"]
    assert [label.get_text() for label in axes.get_yticklabels()] == [e.name for e in ERRORS]
    assert axes.get_ylim() == (3.6, -0.6)  # the first at the top
    assert axes.get_xlabel() == "signal to noise (dB; 6 dB are one bit)"


def test_a_long_name_loses_its_middle() -> None:
    name = "model.layers.0." + "x" * 90 + ".weight"
    (axes,) = errors_figure([LayerError(name, (2,), 4.0, 0.1, 0.1)]).axes
    (label,) = [label.get_text() for label in axes.get_yticklabels()]
    assert len(label) == 64
    assert label.startswith("model.layers.0.x")
    assert label.endswith("x.weight")
    title = scales_figure(named(grid_argument(2, 8), name * 2)).get_suptitle()
    assert len(title) == 96
    assert title.startswith("Scales of model.layers.0.x")
    assert title.endswith("x.weight in @f")


def write_scales(tensor: InspectedTensor, path: Path) -> Path:
    write_plot(path, lambda: scales_figure(tensor))
    return path


def write_errors(errors: list[LayerError], path: Path) -> Path:
    write_plot(path, lambda: errors_figure(errors))
    return path


def texts_of(svg: Path) -> list[str | None]:
    root = ElementTree.fromstring(svg.read_text(encoding="utf-8"))
    return [element.text for element in root.iter(f"{SVG}text")]


# -- files ----------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("ending", ["svg", "png", "SVG"])
def test_a_plot_is_reproducible(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"plot.{ending}"
    for write, data in ((write_scales, grid_argument(4, 8)), (write_errors, ERRORS)):
        first = write(data, path).read_bytes()  # type: ignore[operator]
        assert first.startswith(b"\x89PNG" if ending == "png" else b"<?xml")
        assert b"atplotlib" not in first.split(b"<defs>")[0]
        assert write(data, path).read_bytes() == first  # type: ignore[operator]
        assert [path] == list(tmp_path.iterdir())


def test_matplotlib_settings_of_the_user_are_ignored(tmp_path: Path) -> None:
    import matplotlib

    write_errors(ERRORS, tmp_path / "a.svg")
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "red", "svg.fonttype": "path"}):
        write_errors(ERRORS, tmp_path / "b.svg")
        assert matplotlib.rcParams["font.size"] == 30
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_text_in_svg_is_text(tmp_path: Path) -> None:
    """Text is searchable and readable by screen readers, and no tensor name becomes markup."""
    path = write_scales(named(argument(SUB_CHANNEL), MARKUP), tmp_path / "plot.svg")
    title = f"Scales of {ESCAPED} in @f"
    assert {title, "axis 1, 6 elements, blocks of 3", "scale (log)"} <= set(texts_of(path))
    root = ElementTree.fromstring(path.read_text(encoding="utf-8"))
    assert [element.text for element in root.findall(f"{SVG}title")] == [title]
    assert ESCAPED in texts_of(write_errors([LayerError(MARKUP, (2,), 4.0, 0.1, 0.1)], path))


@pytest.mark.long
def test_png_of_any_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names that are invalid TeX, or have glyphs without a font, are drawn too."""
    monkeypatch.setattr(plots, "_DPI", 40)  # takes a quarter of the time
    for name in (MARKUP, "$", "$$", "$\\frac$", "\\", "\N{CJK UNIFIED IDEOGRAPH-4E2D}", ""):
        write_scales(named(argument(SUB_CHANNEL), name), tmp_path / "a.png")
        write_errors([LayerError(name, (2,), 4.0, 0.1, 0.1)], tmp_path / "a.png")


def test_a_png_of_many_layers_can_be_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The side of a PNG is limited, since matplotlib refuses 65,536 pixels."""
    monkeypatch.setattr(plots, "_MAX_PIXELS", 300)
    data = write_errors(ERRORS * 3, tmp_path / "a.png").read_bytes()
    assert 290 <= max(int.from_bytes(data[at : at + 4], "big") for at in (16, 20)) <= 300


def test_a_plot_is_written_atomically(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot write '.*scales.svg': No such file"):
        write_scales(argument(PER_TENSOR), tmp_path / "missing" / "scales.svg")
    (tmp_path / "folder.svg").mkdir()
    with pytest.raises(InputError, match="cannot write"):
        write_errors(ERRORS, tmp_path / "folder.svg")
    assert [entry.name for entry in tmp_path.iterdir()] == ["folder.svg"]


@pytest.mark.parametrize("name", ["scales", "scales.pdf", "svg", "a.svg.gz"])
def test_other_suffixes_are_usage_errors(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"'.*{name}' must end in .svg or .png"):
        write_errors(ERRORS, tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_without_matplotlib_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "m.mlir"
    module.write_text(f"func.func @f(%w: {SUB_CHANNEL}) {{ return }}")
    plot = tmp_path / "a.svg"
    for missing in ("matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(EnvironmentProblem, match=r"run: pip install \"subquant\[plots\]\""):
        write_errors(ERRORS, plot)
    arguments = ["inspect", str(module), "--scales", "0"]
    assert fail(1, *arguments, "--plot", plot) == (
        "error: plots are drawn by matplotlib, which is not installed; "
        'run: pip install "subquant[plots]"\n'
    )
    succeed(*arguments)  # on the terminal it needs none


def test_matplotlib_is_imported_only_for_a_file() -> None:
    code = (
        "import sys, rich.console, subquant.commands.plots as p\n"
        "from subquant.weights.quantizing import LayerError\n"
        "rich.console.Console().print(p.render_errors([LayerError('a', (2,), 4., .1, .1)]))\n"
        "assert 'matplotlib' not in sys.modules\n"
    )
    run_python(code)


def test_the_command_writes_the_plot(tmp_path: Path) -> None:
    module, plot = tmp_path / "m.mlir", tmp_path / "a.png"
    module.write_text(f"func.func @f(%w: {SUB_CHANNEL}) {{ return }}")
    arguments = ["inspect", str(module), "--scales", "0", "--plot", str(plot)]
    assert succeed(*arguments).stderr == f"wrote {plot}\n"
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert "must end in .svg or .png" in fail(2, *arguments[:-1], "a.gif")
