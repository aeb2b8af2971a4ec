"""The rules of the reductions in the dialect ``subquant``, from the approved RFC.

StableHLO's verifier knows them for its own operations and refuses the RFC's result types, so the
operations of ``subquant`` are checked here, as a part of ``verify-quantization``. For each tensor
with its element type ``T``, the body's ``E`` and the result's ``R``:

1. all inputs have one shape; an init value is a tensor without axes with elements ``T``
2. the body is ``(E..., E...) -> E...`` on tensors without axes, ends in ``stablehlo.return``
3. ``T`` and ``E`` are of one kind (integer, floating-point, complex, quantized), and quantized ones
   have one expressed type: the RFC's conversions (A), (F), (G) and (H); wider or narrower
4. ``T`` and ``R`` are equal but for scale and zero point ("baseline element type")
5. quantized types are per-tensor
6. result shapes follow from dimensions and windows as in StableHLO's specification
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..core._mlir import Operation, ir
from ..errors import VerificationError, shape_text
from .dense import array_of_dense
from .quant import element_type, is_quantized, parameters_of, shape_of
from .subquant import REDUCTIONS

Shape = list[int | None]


def kind_of(type_: ir.Type) -> str:
    """Return what sort of number an element type is, "" for none."""
    if is_quantized(type_):
        return "quantized"
    if isinstance(type_, ir.IntegerType):
        return "boolean" if type_.width == 1 else "integer"
    if isinstance(type_, ir.FloatType):
        return "floating-point"
    return "complex" if isinstance(type_, ir.ComplexType) else ""


# -- operations -----------------------------------------------------------------------------------


def _check_reduce(op: Operation) -> None:
    shape = _check_inputs(op)
    dimensions = _integers(op, "dimensions", len(shape), None)
    if len(set(dimensions)) != len(dimensions) or any(
        not 0 <= axis < len(shape) for axis in dimensions
    ):
        raise VerificationError(
            f"attribute 'dimensions' must name axes less than the rank {len(shape)}, each once, "
            f"got {list(dimensions)}",
            op,
        )
    left = [size for axis, size in enumerate(shape) if axis not in dimensions]
    _check_results(op, left)


def _check_select_and_scatter(op: Operation) -> None:
    operand, source, init = (value.type for value in op.operands)
    shape = _checked_shape(operand, "operand", op)
    counts = _window_counts(op, shape)
    _check_shape(_checked_shape(source, "source", op), counts, "source", op)
    _check_element(source, operand, "source", "operand", op)
    _check_init(init, operand, "init value", "operand", op)
    returned = _check_body(op, 0, "select", [element_type(operand)])
    if returned != [ir.IntegerType.get_signless(1)]:
        raise VerificationError(f"select must return 'tensor<i1>', got '{returned[0]}'", op)
    arguments = _arguments_of(op, 1, "scatter", 1)
    _check_conversion(element_type(operand), arguments[0], "operand", "scatter", op)
    returned = _check_body(op, 1, "scatter", arguments)
    _check_returns(returned, arguments, "scatter", op)
    result = op.results[0].type
    _check_shape(_checked_shape(result, "result", op), shape, "result", op)
    _check_baseline(element_type(result), element_type(operand), "result", "operand", op)


_CHECKS: dict[str, Callable[[Operation], None]] = {
    "stablehlo.reduce": _check_reduce,
    "stablehlo.reduce_window": lambda op: _check_results(op, _window_counts(op, _check_inputs(op))),
    "stablehlo.select_and_scatter": _check_select_and_scatter,
}
REDUCTION_CHECKS = {name: _CHECKS[like] for name, like in REDUCTIONS.items()}


# -- operands and results -------------------------------------------------------------------------


def _check_inputs(op: Operation) -> Shape:
    """Check operands and body of a (windowed) reduction; return the shape of the inputs."""
    count = len(op.operands) // 2
    types = [value.type for value in op.operands]
    shape = _checked_shape(types[0], "input 0", op)
    for number in range(count):
        what = f"input {number}"
        _check_shape(_checked_shape(types[number], what, op), shape, what, op)
        _check_init(types[count + number], types[number], f"init value {number}", what, op)
    arguments = _arguments_of(op, 0, "body", count)
    for number, argument in enumerate(arguments):
        _check_conversion(element_type(types[number]), argument, f"input {number}", "body", op)
    returned = _check_body(op, 0, "body", arguments)
    _check_returns(returned, arguments, "body", op)
    return shape


def _check_results(op: Operation, shape: Shape) -> None:
    for number, result in enumerate(op.results):
        what = f"result {number}"
        _check_shape(_checked_shape(result.type, what, op), shape, what, op)
        input_type = element_type(op.operands[number].type)
        _check_baseline(element_type(result.type), input_type, what, f"input {number}", op)


def _checked_shape(type_: ir.Type, what: str, op: Operation) -> Shape:
    if not isinstance(type_, ir.RankedTensorType):
        raise VerificationError(f"{what} must be a ranked tensor, got '{type_}'", op)
    element = type_.element_type
    if not kind_of(element):
        raise VerificationError(
            f"{what} must have integer, floating-point, complex or quantized elements, got "
            f"'{element}'",
            op,
        )
    _check_per_tensor(element, what, op)
    return shape_of(type_)


def _check_per_tensor(element: ir.Type, what: str, op: Operation) -> None:
    parameters = parameters_of(element, op)
    if parameters is not None and parameters.granularity != "per-tensor":
        raise VerificationError(
            f"{what} has a {parameters.granularity} type; a reduction takes per-tensor types, "
            "requantize first",
            op,
        )


def _check_shape(actual: Shape, expected: Shape, what: str, op: Operation) -> None:
    fits = len(actual) == len(expected) and all(
        f is None or e is None or f == e for f, e in zip(actual, expected, strict=True)
    )
    if not fits:
        requirement = f"have the shape {shape_text(expected)}" if expected else "have no axes"
        raise VerificationError(
            f"{what} must {requirement}, got the shape {shape_text(actual)}", op
        )


def _check_element(type_: ir.Type, expected: ir.Type, what: str, whose: str, op: Operation) -> None:
    actual, required = element_type(type_), element_type(expected)
    if actual != required:
        raise VerificationError(
            f"{what} must have the element type '{required}' of {whose}, got '{actual}'", op
        )


def _check_init(type_: ir.Type, input_type: ir.Type, what: str, whose: str, op: Operation) -> None:
    _check_shape(_checked_shape(type_, what, op), [], what, op)
    _check_element(type_, input_type, what, whose, op)


def _check_conversion(
    source: ir.Type, target: ir.Type, what: str, region: str, op: Operation
) -> None:
    if source == target:
        return
    actual, required = kind_of(source), kind_of(target)
    if actual != required:
        raise VerificationError(
            f"{what} has {actual} elements '{source}' and {region} takes {required or 'other'} "
            f"elements '{target}'; expected one kind",
            op,
        )
    if actual == "quantized" and source.expressed_type != target.expressed_type:
        raise VerificationError(
            f"{what} has the expressed type '{source.expressed_type}' and {region} takes "
            f"'{target.expressed_type}'; expected one expressed type",
            op,
        )


def _check_baseline(result: ir.Type, source: ir.Type, what: str, whose: str, op: Operation) -> None:
    if result == source:
        return
    actual, required = parameters_of(result, op), parameters_of(source, op)
    if (
        actual is not None
        and required is not None
        and (actual.storage, actual.expressed) == (required.storage, required.expressed)
    ):
        return
    but_for = " but for scale and zero point" if required is not None else ""
    raise VerificationError(
        f"{what} must have the element type '{source}' of {whose}{but_for}, got '{result}'; a "
        "result of the body's type is what the operation of stablehlo gives",
        op,
    )


# -- regions --------------------------------------------------------------------------------------


def _arguments_of(op: Operation, region: int, what: str, count: int) -> list[ir.Type]:
    """The element types of the first `count` block arguments, which the last ones repeat."""
    blocks = list(op.regions[region])
    actual = len(blocks[0].arguments) if blocks else 0
    if len(blocks) != 1 or actual != 2 * count:
        has = f"{actual} arguments" if len(blocks) == 1 else f"{len(blocks)} blocks"
        raise VerificationError(
            f"{what} must be one block with {2 * count} arguments, got {has}", op
        )
    elements = []
    for number, argument in enumerate(blocks[0].arguments):
        shape = _checked_shape(argument.type, f"argument {number} of {what}", op)
        _check_shape(shape, [], f"argument {number} of {what}", op)
        elements.append(argument.type.element_type)
    return elements[:count]


def _check_body(op: Operation, region: int, what: str, elements: list[ir.Type]) -> list[ir.Type]:
    """Check a region's arguments, twice `elements`, and terminator; return the result types."""
    count = len(elements)
    _arguments_of(op, region, what, count)
    block = op.regions[region].blocks[0]
    for number, (argument, element) in enumerate(zip(block.arguments, elements * 2, strict=True)):
        whose = f"argument {number % count}" if what != "select" else "operand"
        _check_element(argument.type, element, f"argument {number} of {what}", whose, op)
    operations = list(block.operations)
    if not operations or operations[-1].operation.name != "stablehlo.return":
        raise VerificationError(f"{what} must end in 'stablehlo.return'", op)
    values = list(operations[-1].operands)
    if len(values) != count:
        raise VerificationError(
            f"{what} must return a value for each of {count} tensors, got {len(values)}",
            operations[-1],
        )
    for number, value in enumerate(values):
        shape = _checked_shape(value.type, f"value {number}", operations[-1])
        _check_shape(shape, [], f"value {number}", operations[-1])
    return [element_type(value.type) for value in values]


def _check_returns(
    returned: Sequence[ir.Type], arguments: Sequence[ir.Type], what: str, op: Operation
) -> None:
    for number, (actual, expected) in enumerate(zip(returned, arguments, strict=True)):
        if actual != expected:
            raise VerificationError(
                f"{what} must return the element type '{expected}' of its argument {number}, got "
                f"'{actual}'",
                op,
            )


# -- windows --------------------------------------------------------------------------------------


def _integers(op: Operation, name: str, rank: int, default: int | None) -> tuple[int, ...]:
    """An attribute ``array<i64: ...>`` with an entry for each axis, all `default` if left out.

    Without a default, the attribute is not about each axis.
    """
    if name not in op.attributes:
        assert default is not None  # IRDL requires the attributes that have none
        return (default,) * rank
    attribute = op.attributes[name]
    if not isinstance(attribute, ir.DenseI64ArrayAttr):
        raise VerificationError(
            f"attribute '{name}' must be array<i64: ...>, got '{attribute}'", op
        )
    entries = tuple(int(entry) for entry in attribute)
    if default is not None and (len(entries) != rank or min(entries, default=1) < 1):
        raise VerificationError(
            f"attribute '{name}' must have a positive entry for each of the {rank} axes, got "
            f"{list(entries)}",
            op,
        )
    return entries


def _window_counts(op: Operation, shape: Shape) -> Shape:
    """The number of windows along each axis."""
    rank = len(shape)
    sizes = _integers(op, "window_dimensions", rank, 1)
    strides = _integers(op, "window_strides", rank, 1)
    base = window = (1,) * rank
    if op.name != "subquant.select_and_scatter":
        base = _integers(op, "base_dilations", rank, 1)
        window = _integers(op, "window_dilations", rank, 1)
    padding = [(0, 0)] * rank
    if "padding" in op.attributes:
        attribute = op.attributes["padding"]
        if not (
            isinstance(attribute, ir.DenseIntElementsAttr)
            and str(attribute.type.element_type) == "i64"
            and list(attribute.type.shape) == [rank, 2]
        ):
            raise VerificationError(
                f"attribute 'padding' must be dense<...> : tensor<{rank}x2xi64>, got '{attribute}'",
                op,
            )
        padding = [(int(low), int(high)) for low, high in array_of_dense(attribute)]
    counts: Shape = []
    for axis, size in enumerate(shape):
        if size is None:
            counts.append(None)
            continue
        dilated = 0 if size == 0 else (size - 1) * base[axis] + 1
        padded = dilated + sum(padding[axis])
        reach = (sizes[axis] - 1) * window[axis] + 1
        empty = padded <= 0 or reach > padded
        counts.append(0 if empty else (padded - reach) // strides[axis] + 1)
    return counts
