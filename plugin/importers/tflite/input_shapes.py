"""Shapes of a model's inputs: the file's, or the import options' for dynamic dimensions.

A dynamic dimension (-1 in the shape signature) is called ``input.axis``, and set by ``--dim
input.axis=N``. The batch is the first dimension of every input whose first dimension is dynamic, or
of every input if none is. All other shapes follow. A dynamic batch is a loop: see
`subquant.importers.batch_loop`.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...errors import Place, UsageError, expected_name, quoted
from ...numerics.element_types import Array, ElementType
from ..input_values import InputType, input_constants
from ..options import ImportOptions
from .reading.model import ELEMENTS, Model, Signature, Subgraph


def batched_inputs(graph: Subgraph) -> list[bool]:
    """Return True for each input of a graph that has a batch dimension."""
    marked = [tensor.shape_signature[:1] == (-1,) for tensor in graph.inputs]
    return marked if any(marked) else [bool(tensor.shape) for tensor in graph.inputs]


def dynamic_dimensions(graph: Subgraph, names: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Return the input index and the axis of each dynamic dimension, by its name."""
    return {
        f"{name}.{axis}": (number, axis)
        for number, (name, tensor) in enumerate(zip(names, graph.inputs, strict=True))
        for axis, size in enumerate(tensor.shape_signature)
        if size == -1
    }


def input_shapes(
    graph: Subgraph, names: Sequence[str], options: ImportOptions
) -> list[tuple[int, ...]]:
    """Return the shapes of the inputs of a graph, with a dynamic batch of 1."""
    batch = 1 if options.batch == "dynamic" else options.batch_size
    shapes = [
        [batch, *tensor.shape[1:]] if is_batched and batch is not None else list(tensor.shape)
        for tensor, is_batched in zip(graph.inputs, batched_inputs(graph), strict=True)
    ]
    for name, (number, axis) in dynamic_dimensions(graph, names).items():
        shapes[number][axis] = _dim_options(options).get(name, shapes[number][axis])
    return [tuple(shape) for shape in shapes]


def _dim_options(options: ImportOptions) -> dict[str, int]:
    pairs = (text.rpartition("=") for text in options.dims)
    return {name: int(size) for name, _, size in pairs}


def _names_with_values(options: ImportOptions) -> list[str]:
    return [text.rpartition("=")[0] for text in options.input_values]


def check_names(model: Model, options: ImportOptions) -> None:
    """Raise UsageError if ``--dim`` or ``--input-value`` names nothing that a function has."""
    dimensions = [
        name
        for each in model.signatures
        for name in dynamic_dimensions(model.subgraphs[each.subgraph], each.inputs)
    ]
    inputs = [name for each in model.signatures for name in each.inputs]
    for kind, stated, names in (
        ("dynamic dimension", list(_dim_options(options)), dimensions),
        ("input", _names_with_values(options), inputs),
    ):
        for name in stated:
            if name not in names:
                raise UsageError(
                    f"no {kind} is called {quoted(name)}; "
                    f"{expected_name(name, dict.fromkeys(names))}",
                    Place(model.file),
                )


def constant_inputs(
    graph: Subgraph, names: Sequence[str], options: ImportOptions, location: Place
) -> dict[int, Array]:
    """Return the inputs of a graph that become constants, by index; storage of quantized ones.

    Raises:
        UsageError: the numbers do not fit the type and the shape of an input.
    """
    shapes = input_shapes(graph, names, options)
    dynamic = {each: name for name, each in dynamic_dimensions(graph, names).items()}
    types = {}
    for number, (name, tensor) in enumerate(zip(names, graph.inputs, strict=True)):
        if name not in _names_with_values(options):
            continue
        if tensor.type not in ELEMENTS:
            raise UsageError(
                f"the input {quoted(name)} is of type {tensor.type}, expected numbers", location
            )
        shape: list[int | str | None] = list(shapes[number])
        for axis in range(len(shape)):
            dimension = dynamic.get((number, axis))
            if dimension is not None and dimension not in _dim_options(options):
                shape[axis] = shape[axis] if options.batch else dimension
        types[name] = InputType(tensor.type, ElementType.parse(tensor.element), shape)
    values = [text for text in options.input_values if text.rpartition("=")[0] in types]
    constants = input_constants(types, values, location)
    return {number: constants[name] for number, name in enumerate(names) if name in constants}


def unset_dimensions_hint(graph: Subgraph, signature: Signature, options: ImportOptions) -> str:
    """Return the end of an error message that names each dynamic dimension without a size.

    The batch has a size without ``--dim``: the file's.
    """
    sizes, hints = _dim_options(options), []
    for name, (number, axis) in dynamic_dimensions(graph, signature.inputs).items():
        tensor = graph.inputs[number]
        is_batch = axis == 0 and (len(tensor.shape) > 1 or bool(options.batch))
        if name not in sizes and not is_batch:
            hints.append(
                f"; dimension {axis} of the input {quoted(signature.inputs[number])} is dynamic, "
                f"and {tensor.shape[axis]} by default; set it with --dim {name}=N"
            )
    return "".join(hints)
