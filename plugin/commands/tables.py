"""Rich tables: quantized tensors of a module, weights of a file, operators of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import RenderableType
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from ..core.strict_json import shown
from ..errors import counted, printable, shape_text

if TYPE_CHECKING:
    from ..calibration.report import ModelCost
    from ..compiler.inspected_tensors import InspectedTensor
    from ..weights.inspection import WeightTensor
    from ..weights.theta import Dataset


def _table(columns: Sequence[tuple[str, str]], wrapped: int) -> Table:
    """Return a table without edges; long text is folded in the first `wrapped` columns."""
    table = Table(box=box.HORIZONTALS, show_edge=False, pad_edge=False, collapse_padding=True)
    for number, (first, second) in enumerate(columns):
        table.add_column(
            _one_or_two_lines(first, second, "bold"),
            justify="right" if number > 2 else "left",
            no_wrap=number >= wrapped,
            overflow="fold",
        )
    return table


def _two_lines(first: str, second: str, style: str = "") -> Text:
    return Text.assemble((printable(first, keep="\n"), style), "\n", (printable(second), "dim"))


def _one_or_two_lines(first: str, second: str, style: str = "") -> Text:
    return _two_lines(first, second, style) if second else Text(printable(first, keep="\n"), style)


_TENSOR_COLUMNS = (
    ("\nname", "where"),
    ("\nshape", "block"),
    ("storage:\nexpressed", "granularity"),
    ("bits/\nelement", "bytes"),
    ("\nscales", "min..max"),
    ("zero\npoints", ""),
)


def render_table(tensors: list[InspectedTensor]) -> RenderableType:
    """Return a table with two lines for each tensor, grouped by function, with totals."""
    if not tensors:
        return Text("no quantized tensors")
    table = _table(_TENSOR_COLUMNS, wrapped=2)
    groups = [(name, list(group)) for name, group in groupby(tensors, lambda t: t.function)]
    for function, group in groups:
        title = printable(f"@{function}") if function else "module"
        table.add_row(Text(title, "bold cyan"))
        for tensor in group:
            table.add_row(*_tensor_row(tensor))
        table.add_row(*_tensors_total_row("total", group), end_section=True)
    if len(groups) > 1:
        table.add_row(*_tensors_total_row("module total", tensors))
    return table


def _span(limits: tuple[object, object] | None, unknown: str) -> str:
    return "..".join(dict.fromkeys(f"{n:.3g}" for n in limits)) if limits else unknown


def _tensor_row(tensor: InspectedTensor) -> list[Text]:
    parameters, bits, count = tensor.parameters, tensor.bits_per_element, tensor.scale_count
    size = (tensor.storage_bytes or 0) + (tensor.scale_bytes or 0)
    if tensor.shape is None or tensor.block_shape is None:
        blocks = zip(parameters.axes, parameters.block_sizes, strict=True)
        shape, block = "unranked", ", ".join(f"axis {a}: {b}" for a, b in blocks) or "whole"
    else:
        shape, block = shape_text(tensor.shape), shape_text(tensor.block_shape)
    return [
        _two_lines(printable(tensor.name), tensor.where.replace("'", "")),
        _two_lines(shape, block),
        _two_lines(f"{parameters.storage}:{parameters.expressed.value}", parameters.granularity),
        _two_lines("?", "?") if bits is None else _two_lines(f"{bits:.2f}", decimal(size)),
        _two_lines(
            "?" if count is None else f"{count:,}", _span(tensor.scale_range, "at run time")
        ),
        _two_lines(_span(tensor.zero_point_range, "?"), ""),
    ]


def _tensors_total_row(title: str, tensors: list[InspectedTensor]) -> list[Text]:
    sized = [t for t in tensors if t.bits_per_element is not None and not t.holds_scales]
    elements, scales, storage_bytes, scale_bytes = (
        sum(getattr(tensor, name) for tensor in sized)
        for name in ("elements", "scale_count", "storage_bytes", "scale_bytes")
    )
    bits = sum((t.bits_per_element or 0) * (t.elements or 0) for t in sized) / max(elements, 1)
    number = f"{len(sized)}" if len(sized) == len(tensors) else f"{len(sized)} of {len(tensors)}"
    return [
        _two_lines(title, f"{number} tensor{'' if len(tensors) == 1 else 's'}", "bold"),
        _two_lines(f"{elements:,}", "elements", "bold"),
        _two_lines(decimal(storage_bytes), "storage", "bold"),
        _two_lines(f"{bits:.2f}", decimal(storage_bytes + scale_bytes), "bold"),
        _two_lines(f"{scales:,}", decimal(scale_bytes), "bold"),
        _two_lines("", ""),
    ]


_WEIGHT_COLUMNS = (
    ("tensor", "arrays"),
    ("shape", "elements"),
    ("kind", ""),
    ("bits", "an element"),
    ("size", ""),
)


def render_weights(dataset: Dataset) -> RenderableType:
    """Return a table of the tensors of a data set, with totals by kind."""
    from ..weights.inspection import by_kind, describe  # imports the layouts

    tensors = [describe(tensor) for tensor in dataset.theta.flatten().values()]
    if not tensors:
        return Text("no tensors")
    table = _table(_WEIGHT_COLUMNS, wrapped=3)
    for tensor in tensors:
        table.add_row(*_weight_row(tensor))
    table.rows[-1].end_section = True
    groups = by_kind(tensors)
    for kind, group in groups.items():
        table.add_row(*_weights_total_row(kind, group, ""))
    if len(groups) > 1:
        table.add_row(*_weights_total_row("all", tensors, "bold"))
    return table


def _weight_row(tensor: WeightTensor) -> list[Text]:
    bits = tensor.bits_per_element
    arrays = ", ".join(f"{name} {array}" for name, array in tensor.arrays.items())
    return [
        _one_or_two_lines(shown(tensor.name, 200)[1:-1], arrays),
        _one_or_two_lines(shape_text(tensor.shape), f"{tensor.elements:,}" if arrays else ""),
        Text(tensor.kind),
        Text("" if bits is None else f"{bits:.2f}"),
        Text(decimal(tensor.bytes)),
    ]


def _weights_total_row(kind: str, tensors: list[WeightTensor], style: str) -> list[Text]:
    from ..weights.inspection import total_of

    total = total_of(tensors)
    bits = 8 * total["bytes"] / max(total["elements"], 1)
    number = f"{len(tensors)} tensor{'' if len(tensors) == 1 else 's'}"
    return [
        Text(number, style),
        Text(f"{total['elements']:,}", style),
        Text(kind, style),
        Text(f"{bits:.2f}", style),
        Text(decimal(total["bytes"]), style),
    ]


_OPERATOR_COLUMNS = (("operator", "constants"), ("result", ""), ("quantized", ""), ("bytes", ""))


def render_model(model: Mapping[str, Any]) -> RenderableType:
    """Return a table of the operators of an imported model, by graph."""
    table = _table(_OPERATOR_COLUMNS, wrapped=1)
    several = len(model["graphs"]) > 1
    for graph in model["graphs"]:
        if several:
            table.add_row(Text(printable(f"graph {graph['index']} {graph['name']}"), "bold cyan"))
        for operator in graph["operators"]:
            table.add_row(*_operator_row(operator))
        if table.rows:
            table.rows[-1].end_section = True
    count = sum(len(graph["operators"]) for graph in model["graphs"])
    refused = sum(1 for g in model["graphs"] for o in g["operators"] if o["refused"])
    total = f"{count} operator{'' if count == 1 else 's'}" + (
        f", {refused} refused" if refused else ""
    )
    table.add_row(Text(total, "bold"), "", "", Text(decimal(model["constant_bytes"]), "bold"))
    return table


def _operator_row(operator: Mapping[str, Any]) -> list[Text]:
    style = "red" if operator["refused"] else ""
    constants = [c for c in operator["constants"] if c["quantization"] or len(c["shape"]) > 1]
    results = operator["results"] or [None]
    size = sum(constant["bytes"] for constant in operator["constants"])
    described = "; ".join(_typed(c) + _scaled(c, " ") for c in constants)
    return [
        _one_or_two_lines(f"{operator['index']} {operator['name']}", described, style),
        Text("\n".join(_typed(result) for result in results if result)),
        Text("\n".join(_scaled(result) for result in results if result)),
        Text(decimal(size) if size else ""),
    ]


def _typed(tensor: Mapping[str, Any]) -> str:
    shape = [None if size == -1 else size for size in tensor["shape"]]
    return f"{shape_text(shape)} {tensor['type'].lower()}"


def _scaled(tensor: Mapping[str, Any], before: str = "") -> str:
    """Return the quantization of a tensor: ``0.0235:-128``, or its number of scales and axis."""
    quantization = tensor["quantization"]
    if quantization is None:
        return ""
    if quantization["block_size"]:
        return f"{before}blocks of {quantization['block_size']}"
    if quantization["scales"] > 1:
        return f"{before}{quantization['scales']} scales, axis {quantization['axis']}"
    return f"{before}{quantization['scale_range'][0]:.3g}:{quantization['zero_point_range'][0]}"


def described_cost(cost: ModelCost) -> str:
    """Return the cost of quantization as two lines for people."""
    change = cost.perplexity_after / cost.perplexity_before - 1
    return (
        f"{counted(cost.tokens, 'scored token')}: perplexity {cost.perplexity_before:.2f} before, "
        f"{cost.perplexity_after:.2f} after ({change:+.1%})\n"
        f"KL divergence {cost.kl_divergence:.4f} nats, the likeliest token the same for "
        f"{cost.same_top_token:.1%}"
    )
