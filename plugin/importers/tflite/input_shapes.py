"""The extents of a model's inputs: the file's, or the import's where the file leaves one open.

An open extent (-1 in the shape signature) is called ``input.axis``, and said as ``--dim
input.axis=N``. The batch is the first dimension of every input that the file leaves open there, or
of every input if it leaves none open. All other shapes follow; a dynamic batch is a loop, of
`subquant.importers.batch_loop`.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...errors import Place, UsageError, expected_name, quoted
from ...numerics.element_types import Array, ElementType
from ..input_values import InputType, input_constants
from ..options import ImportOptions
from .reading.model import ELEMENTS, Model, Signature, Subgraph

__all__ = [
    "batched_inputs",
    "check_extents",
    "check_input_values",
    "constant_inputs",
    "input_shapes",
    "open_extents",
    "unstated_extents",
]


def batched_inputs(graph: Subgraph) -> list[bool]:
    """Return True for each input of a graph that has a batch."""
    marked = [bool(tensor.known_shape) and tensor.known_shape[0] == -1 for tensor in graph.inputs]
    return marked if any(marked) else [bool(tensor.shape) for tensor in graph.inputs]


def open_extents(graph: Subgraph, names: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Return the number of the input and the axis of each extent that a graph leaves open.

    Args:
        graph: of the model.
        names: of its inputs.
    """
    return {
        f"{name}.{axis}": (number, axis)
        for number, (name, tensor) in enumerate(zip(names, graph.inputs, strict=True))
        for axis, extent in enumerate(tensor.known_shape)
        if extent == -1
    }


def input_shapes(
    graph: Subgraph, names: Sequence[str], options: ImportOptions
) -> list[tuple[int, ...]]:
    """Return the shapes of the inputs of a graph; of one element of a dynamic batch."""
    batch = 1 if options.batch == "dynamic" else options.batch_size
    shapes = [
        [batch, *tensor.shape[1:]] if is_batched and batch is not None else list(tensor.shape)
        for tensor, is_batched in zip(graph.inputs, batched_inputs(graph), strict=True)
    ]
    for name, (number, axis) in open_extents(graph, names).items():
        shapes[number][axis] = _stated(options).get(name, shapes[number][axis])
    return [tuple(shape) for shape in shapes]


def _stated(options: ImportOptions) -> dict[str, int]:
    pairs = (text.rpartition("=") for text in options.dims)
    return {name: int(extent) for name, _, extent in pairs}


def check_extents(model: Model, options: ImportOptions) -> None:
    """Raise UsageError if an extent is stated that no function of a model leaves open."""
    names = [
        name
        for each in model.signatures
        for name in open_extents(model.subgraphs[each.subgraph], each.inputs)
    ]
    for name in _stated(options):
        if name not in names:
            raise UsageError(
                f"no open extent is called {quoted(name)}; "
                f"{expected_name(name, dict.fromkeys(names))}",
                Place(model.file),
            )


def check_input_values(model: Model, options: ImportOptions) -> None:
    """Raise UsageError if a value is given of an input that no function of a model has."""
    names = dict.fromkeys(name for each in model.signatures for name in each.inputs)
    for name in _valued(options):
        if name not in names:
            raise UsageError(
                f"no input is called {quoted(name)}; {expected_name(name, names)}",
                Place(model.file),
            )


def _valued(options: ImportOptions) -> list[str]:
    return [text.rpartition("=")[0] for text in options.input_values]


def constant_inputs(
    graph: Subgraph, names: Sequence[str], options: ImportOptions, location: Place
) -> dict[int, Array]:
    """Return the inputs of a graph that become constants, by number.

    The value of a quantized input is its integers.

    Args:
        graph: of the model.
        names: of its inputs.
        options: with the values.
        location: of the model, for errors.

    Raises:
        UsageError: the numbers do not fit the type and the shape of an input.
    """
    shapes = input_shapes(graph, names, options)
    open_ = {each: name for name, each in open_extents(graph, names).items()}
    types = {}
    for number, (name, tensor) in enumerate(zip(names, graph.inputs, strict=True)):
        if name not in _valued(options):
            continue
        if tensor.type not in ELEMENTS:
            raise UsageError(
                f"the input {quoted(name)} is of type {tensor.type}, expected numbers", location
            )
        shape: list[int | str | None] = list(shapes[number])
        for axis in range(len(shape)):
            extent = open_.get((number, axis))
            if extent is not None and extent not in _stated(options) and not options.batch:
                shape[axis] = extent
        types[name] = InputType(tensor.type, ElementType.parse(tensor.element), shape)
    values = [text for text in options.input_values if text.rpartition("=")[0] in types]
    constants = input_constants(types, values, location)
    return {number: constants[name] for number, name in enumerate(names) if name in constants}


def unstated_extents(graph: Subgraph, signature: Signature, options: ImportOptions) -> str:
    """Return the hint that errors of a graph end in; "" where every open extent is stated.

    The batch is known without being stated: the file states it.
    """
    stated, hints = _stated(options), []
    for name, (number, axis) in open_extents(graph, signature.inputs).items():
        tensor = graph.inputs[number]
        if name not in stated and (axis or len(tensor.shape) == 1) and not (
            axis == 0 and options.batch
        ):  # fmt: skip
            hints.append(
                f"the input {quoted(signature.inputs[number])} leaves dimension {axis} open, which "
                f"is {tensor.shape[axis]} here; say it with --dim {name}=N"
            )
    return "".join(f"; {hint}" for hint in hints)
