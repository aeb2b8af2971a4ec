"""StableHLO of linalg's elementwise operations, and of views of tensors.

A structured operation of linalg reads its operands by indexing maps, and computes an element of its
result in a body. StableHLO has an operation on whole tensors for each operation of the body::

    %d = linalg.generic {indexing_maps = [(n, g, k) -> (n, g, k), (n, g, k) -> (n, g), ...]}
           ins(%q, %s : tensor<8x2x32xi4>, tensor<8x2xf32>) {
      %0 = arith.sitofp %q0 : i4 to f32
      %1 = arith.mulf %0, %s0 : f32

    %0 = stablehlo.convert %q : (tensor<8x2x32xi4>) -> tensor<8x2x32xf32>
    %s1 = stablehlo.broadcast_in_dim %s, dims = [0, 1] : (tensor<8x2xf32>) -> tensor<8x2x32xf32>
    %1 = stablehlo.multiply %0, %s1 : tensor<8x2x32xf32>

Integers of linalg have no sign: ``extui`` and ``uitofp`` read unsigned ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ...core._mlir import Operation, Value, ir
from ...dialects.quant import DCASTS, parameters_of
from ...emit import linalg, stablehlo, subquant
from ...emit.operation import is_dynamic, tensor_type, value, with_element, with_shape
from ..base import producer_named, producer_of
from .facts import MAX_STORAGE_BITS
from .linalg_loops import Structured, Term, Untranslatable, elementwise

SAME_MEANING = {
    "arith.addf": "add",
    "arith.addi": "add",
    "arith.andi": "and",
    "arith.divf": "divide",
    "arith.maximumf": "maximum",
    "arith.maxsi": "maximum",
    "arith.minimumf": "minimum",
    "arith.minsi": "minimum",
    "arith.mulf": "multiply",
    "arith.muli": "multiply",
    "arith.negf": "negate",
    "arith.ori": "or",
    "arith.shli": "shift_left",
    "arith.shrsi": "shift_right_arithmetic",
    "arith.shrui": "shift_right_logical",
    "arith.subf": "subtract",
    "arith.subi": "subtract",
    "arith.xori": "xor",
}
"""Operations of StableHLO with the same meaning; one of them defines shifts by all bits, too."""
CONVERSIONS = (
    *("arith.extsi", "arith.extui", "arith.sitofp", "arith.uitofp"),
    *("arith.extf", "arith.truncf", "arith.trunci"),
)
_UNSIGNED = ("arith.extui", "arith.uitofp")
_RESHAPES = ("tensor.expand_shape", "tensor.collapse_shape")
_BITCAST = "flow.tensor.bitcast"
_WIDTHS = (1, 2, 4, 8, 16, 32, 64)
_FLOATS = (ir.F16Type, ir.BF16Type, ir.F32Type, ir.F64Type)
_VIEWS = (*_RESHAPES, "tensor.extract_slice", _BITCAST)


class LinalgTranslator:
    """StableHLO of values of linalg, for one contraction.

    Attributes:
        reasons: the reason of each operation of linalg that stays.
    """

    def __init__(self) -> None:
        self._tensors: dict[Value, Value] = {}
        self._reach: dict[Value, bool] = {}
        self._unsigned: set[Value] = set()
        self.reasons: dict[Operation, str] = {}

    @property
    def producers(self) -> set[Operation]:
        """The operations that compute the visited tensors."""
        return {op for op in map(producer_of, self._reach) if op is not None}

    def reaches_integers(self, tensor: Value) -> bool:
        """True if a tensor has narrow integers, or is computed elementwise from quantized ones."""
        if tensor not in self._reach:
            self._reach[tensor] = (
                is_dequantized(tensor)
                or _is_narrow(tensor.type)
                or any(self.reaches_integers(each) for each in self._sources(tensor))
            )
        return self._reach[tensor]

    def _sources(self, tensor: Value) -> list[Value]:
        """The tensors that a tensor is computed from elementwise; none where it is a leaf."""
        op = producer_of(tensor)
        if op is None:
            return []
        if op.name in _VIEWS:
            return [op.operands[0]]
        if op.name in SAME_MEANING or op.name in CONVERSIONS:
            return list(op.operands)
        structured = elementwise(op)
        return [] if structured is None else list(op.operands)[: -structured.outputs]

    def tensor(self, tensor: Value) -> Value:
        """A tensor as StableHLO computes it from narrow integers; others stay as they are."""
        if tensor not in self._tensors:
            self._tensors[tensor] = tensor
            op = producer_of(tensor)
            if op is not None and self._sources(tensor) and self._is_translated(op, tensor):
                try:
                    with ir.InsertionPoint(op), op.location:
                        self._tensors[tensor] = self._translated(op, tensor)
                except Untranslatable as error:
                    self.reasons[op] = str(error)
        return self._tensors[tensor]

    def _is_translated(self, op: Operation, result: Value) -> bool:
        """True for results of narrow integers, movements, and broadcasts of other tensors."""
        if op.name in _VIEWS or self.reaches_integers(result):
            return True
        structured = elementwise(op)
        if structured is None or not result.type.has_static_shape:
            return False
        is_moved = all(structured.number_of(each) is not None for each in structured.yielded)
        count = math.prod(result.type.shape)
        return is_moved or all(
            not isinstance(each.type, ir.ShapedType) or math.prod(each.type.shape) < count
            for each in self._sources(result)
        )

    def _translated(self, op: Operation, result: Value) -> Value:
        if op.name in _VIEWS:
            return self._view(op)
        if op.name in SAME_MEANING or op.name in CONVERSIONS:
            operands = [self.tensor(operand) for operand in op.operands]
            return self.computed(op, operands, result.type)
        structured = elementwise(op)
        assert structured is not None  # it has sources
        number = ir.OpResult(result).result_number
        loops = structured.parallel
        scalar = structured.yielded[number]
        elements = self.element(structured, scalar, loops)
        terms = structured.terms(len(op.operands) - structured.outputs + number)
        return stablehlo.transpose(elements, [loops.index(term.loop) for term in terms])

    def _view(self, op: Operation) -> Value:
        type_, source = op.results[0].type, self.tensor(op.operands[0])
        if not type_.has_static_shape or not source.type.has_static_shape:
            raise Untranslatable("an operand is reshaped dynamically")
        shape = [int(n) for n in type_.shape]
        if op.name in _RESHAPES:
            return stablehlo.reshape(source, shape)
        if op.name == _BITCAST:
            width = type_.element_type.width
            inner, outer = int(source.type.shape[-1]), shape[-1]
            is_split = shape[:-1] == [int(n) for n in source.type.shape][:-1]
            if source.type.element_type.width != 8 or inner * 8 != outer * width or not is_split:
                raise Untranslatable("a bitcast changes other axes than the last")
            return subquant.unpack([source], [width], type_.element_type)
        starts, sizes, strides = (
            [int(n) for n in op.attributes[f"static_{name}"]]
            for name in ("offsets", "sizes", "strides")
        )
        if any(map(is_dynamic, (*starts, *sizes, *strides))):
            raise Untranslatable("an operand is a dynamic slice")
        limits = [
            start + (size - 1) * stride + 1
            for start, size, stride in zip(starts, sizes, strides, strict=True)
        ]
        return stablehlo.reshape(stablehlo.slice_(source, starts, limits, strides), shape)

    # -- bodies -----------------------------------------------------------------------------------

    def element(self, structured: Structured, scalar: Value, loops: Sequence[int]) -> Value:
        """A scalar of a body as a tensor that has an axis for each of `loops`.

        A scalar of one operand is computed in the operand's shape, and then broadcast.
        """
        numbers = self._shaped_operands(structured, scalar)
        if len(numbers) == 1:
            elements = self.of_operand(structured, scalar)
            return self._read(structured, elements, structured.terms(numbers[0]), loops)
        shape = [structured.trip_counts[loop] for loop in loops]
        return self._scalar(
            structured, scalar, shape, lambda each: self.element(structured, each, loops)
        )

    def of_operand(self, structured: Structured, scalar: Value) -> Value:
        """A scalar of a body that is computed from one operand, in its shape."""
        numbers = self._shaped_operands(structured, scalar)
        if len(numbers) != 1:
            raise Untranslatable("its image is computed from several operands")
        tensor = self.tensor(structured.op.operands[numbers[0]])
        return self._of_operand(structured, scalar, tensor)

    def _shaped_operands(self, structured: Structured, scalar: Value) -> list[int]:
        operands, numbers = structured.op.operands, structured.operands_of(scalar)
        return [each for each in numbers if isinstance(operands[each].type, ir.ShapedType)]

    def _of_operand(self, structured: Structured, scalar: Value, tensor: Value) -> Value:
        """A scalar that is computed from one operand, `tensor`, in its shape."""
        number = structured.number_of(scalar)
        is_scalar = number is None or not isinstance(
            structured.op.operands[number].type, ir.ShapedType
        )
        if not is_scalar:
            return tensor
        shape = [int(n) for n in tensor.type.shape]
        return self._scalar(
            structured, scalar, shape, lambda each: self._of_operand(structured, each, tensor)
        )

    def _scalar(
        self,
        structured: Structured,
        scalar: Value,
        shape: Sequence[int],
        element: Callable[[Value], Value],
    ) -> Value:
        """A scalar of a body in a shape; `element` gives the operands of its operation."""
        number = structured.number_of(scalar)
        source = scalar if number is None else structured.op.operands[number]
        op = producer_of(source)
        if op is None or op.block != structured.block or op.name == "arith.constant":
            if any(map(is_dynamic, shape)):
                raise Untranslatable("its body computes with a scalar in a dynamic shape")
            type_ = tensor_type(shape, source.type)
            if op is not None and op.name == "arith.constant":
                attribute = op.attributes["value"]
                return stablehlo.constant_of(ir.DenseElementsAttr.get_splat(type_, attribute))
            tensor = linalg.from_elements([source], tensor_type([], source.type))
            return stablehlo.broadcast(tensor, type_)
        if op.name not in SAME_MEANING and op.name not in CONVERSIONS:
            raise Untranslatable(f"its body has '{op.name}'")
        operands = [element(each) for each in op.operands]
        with op.location:
            return self.computed(op, operands, with_element(operands[0].type, scalar.type))

    def computed(self, op: Operation, operands: Sequence[Value], type_: ir.Type) -> Value:
        """The result of an operation of arith on tensors."""
        _check_element(type_)
        name = SAME_MEANING.get(op.name)
        if name is not None:
            return value(f"stablehlo.{name}", operands, type_)
        [operand], element = operands, type_.element_type
        source = operand.type.element_type
        is_bool = isinstance(source, ir.IntegerType) and source.width == 1
        if is_bool and op.name not in _UNSIGNED:
            raise Untranslatable(f"its body has '{op.name}' of i1")
        if op.name not in _UNSIGNED:
            return stablehlo.convert(operand, element)
        reads_sign = op.name == "arith.extui" or operand not in self._unsigned
        if reads_sign and not is_bool:
            unsigned = ir.IntegerType.get_unsigned(source.width)
            bits = with_element(operand.type, unsigned)
            operand = value("stablehlo.bitcast_convert", [operand], bits)
        result = stablehlo.convert(operand, element)
        self._unsigned.add(result)  # it is not negative, so a signed conversion reads the same
        return result

    def _read(
        self, structured: Structured, tensor: Value, terms: Sequence[Term], loops: Sequence[int]
    ) -> Value:
        """The elements of a tensor that iterations read, with an axis for each of `loops`."""
        _check_element(tensor.type)
        trip_counts = structured.trip_counts
        dims = [term.loop for term in terms if term.loop is not None]
        if len(set(dims)) < len(dims):
            raise Untranslatable("the diagonal of an operand is read")
        is_plain = len(dims) == len(terms) and all(term.divisor == 1 for term in terms)
        if is_plain and len(dims) == len(loops):
            return stablehlo.transpose(tensor, [dims.index(loop) for loop in loops])
        shape = [int(n) for n in tensor.type.shape]
        if any(map(is_dynamic, (*shape, *(trip_counts[loop] for loop in loops)))):
            raise Untranslatable("an operand of a dynamic shape is broadcast")
        for axis, term in enumerate(terms):
            if term.loop is None and shape[axis] != 1:
                starts = [term.position if n == axis else 0 for n in range(len(shape))]
                shape[axis] = 1
                limits = [start + size for start, size in zip(starts, shape, strict=True)]
                tensor = stablehlo.slice_(tensor, starts, limits)
        tensor = self._with_blocks(tensor, terms, trip_counts)
        tensor = stablehlo.reshape(tensor, [trip_counts[loop] for loop in dims])
        order = sorted(range(len(dims)), key=lambda axis: loops.index(dims[axis]))
        tensor = stablehlo.transpose(tensor, order)
        type_ = with_shape(tensor.type, [trip_counts[loop] for loop in loops])
        return stablehlo.broadcast(tensor, type_, [loops.index(dims[axis]) for axis in order])

    def _with_blocks(
        self, tensor: Value, terms: Sequence[Term], trip_counts: dict[int, int]
    ) -> Value:
        """Repeat the elements of axes of blocks, which ``loop floordiv size`` reads."""
        shape: list[int] = []
        axes: list[int] = []
        for term, extent in zip(terms, tensor.type.shape, strict=True):
            axes.append(len(shape))
            shape.append(int(extent))
            if term.divisor != 1:
                assert term.loop is not None  # a number is not divided
                if int(extent) * term.divisor != trip_counts[term.loop]:
                    raise Untranslatable("the blocks of an operand do not fill the loop")
                shape.append(term.divisor)
        if len(shape) == len(axes):
            return tensor
        return stablehlo.broadcast(tensor, with_shape(tensor.type, shape), axes)


def is_dequantized(tensor: Value) -> bool:
    """True for the result of a cast with scales of blocks, or with scales as operands."""
    cast = producer_named(tensor, *DCASTS, "subquant.dequantize")
    if cast is None or cast.name == "subquant.dequantize":
        return cast is not None
    parameters = parameters_of(cast.operands[0].type, cast)
    return parameters is not None and parameters.granularity == "sub-channel"


def _is_narrow(type_: ir.Type) -> bool:
    """True for a tensor of integers of 2 to 16 bits, of a width that StableHLO has."""
    if not isinstance(type_, ir.RankedTensorType):
        return False
    element = type_.element_type
    width = element.width if isinstance(element, ir.IntegerType) else 0
    return width in _WIDTHS and 2 <= width <= MAX_STORAGE_BITS


def _check_element(type_: ir.Type) -> None:
    """`Untranslatable` unless StableHLO has the elements of a tensor."""
    element = type_.element_type
    is_integer = isinstance(element, ir.IntegerType) and element.width in _WIDTHS
    if not is_integer and not isinstance(element, _FLOATS):
        raise Untranslatable(f"it computes with '{element}'")
