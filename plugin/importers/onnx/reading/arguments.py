"""The arguments of a model: its inputs that stay, with dimension sizes that the file leaves open.

An open dimension size has a name in the file, or is called ``input.axis`` here. The batch is the
open size of the first dimension of inputs, and every other size of its name: 1, or the number of
``--batch``. Others are given as ``--dim name=N``. Inputs become constants by ``--input-value``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ....errors import Place, UnsupportedError, UsageError, expected_name, quoted
from ....numerics.element_types import ElementType
from ...input_values import InputType, input_constants
from ...options import ImportOptions
from .model import Model, Tensor, TensorType, element_of, is_too_large


@dataclass(frozen=True)
class Argument:
    """An input with its dimension sizes.

    Args:
        type: the type in the file.
        shape: the shape of the argument, or of one element of a dynamic batch.
        is_batched: the first dimension is a dynamic batch.
    """

    type: TensorType
    shape: tuple[int, ...]
    is_batched: bool

    @property
    def element(self) -> ElementType:
        """The element type, of a byte for fewer bits."""
        return ElementType.of_dtype(element_of(self.type.type).dtype)


def arguments_of(model: Model, options: ImportOptions) -> list[Argument]:
    """Return the inputs of a model, with the dimension sizes of the options.

    Raises:
        UnsupportedError: a dimension is open, or no input leaves the batch open that is given.
        UsageError: a dimension size is given that no input leaves open.
    """
    location = Place(model.file)
    stated = {}
    for text in options.dims:
        name, _, number = text.rpartition("=")
        stated[name] = int(number)
    open_axes = {each.name: dict(_open_axes(each, location)) for each in model.inputs}
    names = [name for axes in open_axes.values() for name in axes.values()]
    for name in stated:
        if name not in names:
            expected = expected_name(name, dict.fromkeys(names))
            raise UsageError(f"no dynamic dimension is called {quoted(name)}; {expected}", location)
    batches = {axes[0] for axes in open_axes.values() if 0 in axes and axes[0] not in stated}
    if options.batch and not batches:
        _refuse_batch(model, options, location)
    batch, is_dynamic = options.batch_size or 1, options.batch == "dynamic"
    arguments = []
    for input_ in model.inputs:
        subject, sizes, axes = f"the input {quoted(input_.name)}", [], open_axes[input_.name]
        for axis, length in enumerate(input_.shape or ()):
            size_name = axes.get(axis)
            if size_name is not None and size_name not in stated and size_name not in batches:
                raise UnsupportedError(_is_open(subject, axis, size_name), location)
            sizes.append(int(length or 0) if size_name is None else stated.get(size_name, batch))
        if is_too_large(sizes):
            raise UnsupportedError(f"{subject} has the shape {sizes}, too many elements", location)
        if is_dynamic and any(name in batches for axis, name in axes.items() if axis):
            raise UnsupportedError(
                f"{subject} has the batch in another dimension than the first; give --batch a "
                "number",
                location,
            )
        is_batched = is_dynamic and axes.get(0) in batches
        arguments.append(Argument(input_, tuple(sizes), is_batched))
    return arguments


def _is_open(subject: str, axis: int, name: str) -> str:
    return f"{subject} has a dynamic dimension {axis}; set its size with --dim {name}=N"


def open_dimensions(model: Model) -> dict[str, str]:
    """Return the error of each open dimension that an import must be given, by name."""
    location = Place(model.file)
    open_axes = {each.name: dict(_open_axes(each, location)) for each in model.inputs}
    batches = {axes[0] for axes in open_axes.values() if 0 in axes}
    errors: dict[str, str] = {}
    for each in model.inputs:
        for axis, name in open_axes[each.name].items():
            if name not in batches:
                errors.setdefault(name, _is_open(f"the input {quoted(each.name)}", axis, name))
    return errors


def _open_axes(input_: TensorType, location: Place) -> Iterator[tuple[int, str]]:
    """Return the open axes of an input with their names."""
    if input_.shape is None:
        raise UnsupportedError(f"the input {quoted(input_.name)} has no shape", location)
    for axis, size in enumerate(input_.shape):
        if not isinstance(size, int):
            yield axis, size or f"{input_.name}.{axis}"


def _refuse_batch(model: Model, options: ImportOptions, location: Place) -> None:
    """Refuse a batch where no first dimension is open, unless the file has the same batch."""
    for each in model.inputs:
        first = each.shape[0] if each.shape else None
        if first is not None and first != options.batch_size:
            raise UnsupportedError(
                f"the input {quoted(each.name)} has the batch {first} in the file; --batch is for "
                "an open one",
                location,
            )


def with_input_values(model: Model, values: Sequence[str]) -> Model:
    """Replace inputs of a model by constants: see `input_constants`.

    Raises:
        UsageError: the model has no such input, or the numbers do not fit its type and shape.
    """
    if not values:
        return model
    types = {
        each.name: InputType(each.type, element_of(each.type), each.shape) for each in model.inputs
    }
    constants = {
        each.name: Tensor(each.name, each.type, array)
        for name, array in input_constants(types, values, Place(model.file)).items()
        for each in model.inputs
        if each.name == name
    }
    inputs = tuple(each for each in model.inputs if each.name not in constants)
    return replace(model, constants={**model.constants, **constants}, inputs=inputs)
