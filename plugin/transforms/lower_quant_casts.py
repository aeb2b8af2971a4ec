"""``lower-quant-casts``: qcast, dcast, quantize and dequantize become linalg and arith.

Written once over the parameters: each axis of the tensor is *whole* (one block), *unit* (blocks of
size 1), *split* (blocks that divide a static extent) or *ragged* (all else). Split axes are
expanded to (block number, position in block), so that the scales are indexed by plain dimensions.
With a ragged axis the loop body extracts the scale at ``index floordiv block`` itself. The RFC's
affine map ``d floordiv block`` is used nowhere: IREE 3.13 refuses it where a tile size and a block
size do not divide each other, and where it takes it (4096 x 4096, blocks of 32, llvm-cpu) it needs
18.6 ms and the split form 3.4 ms.

Before::

    %q = quant.qcast %x : tensor<4x8xf32>
           to tensor<4x8x!quant.uniform<i8:f32:{1:4}, {{1.0:1, 2.0:2}}>>

After (nearest-even)::

    %b = tensor.expand_shape %x [[0], [1, 2]] : tensor<4x8xf32> into tensor<4x2x4xf32>
    %g = linalg.generic {indexing_maps = [(d0, d1, d2) -> (d0, d1, d2),
                                          (d0, d1, d2) -> (d1), (d0, d1, d2) -> (d1), ...]}
           ins(%b, dense<[1.0, 2.0]>, dense<[1, 2]>) outs(tensor.empty) {
           // x / s + z, clamp, round to nearest even, convert
         } -> tensor<4x2x4xi8>
    %s = tensor.collapse_shape %g [[0], [1, 2]] : tensor<4x2x4xi8> into tensor<4x8xi8>
    %q = quant.scast %s : tensor<4x8xi8> to tensor<4x8x!quant.uniform<...>>

A dynamic quantized dimension is checked at run time (``cf.assert``). An unranked tensor is
reshaped to ``2 n + 1`` dimensions around its n quantized axes (RFC, Case 2), lowered in that form,
and reshaped back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from .._mlir import ir, place_of
from ..dialects.dense import dense_of_array
from ..dialects.quant import (
    element_type,
    expressed_mlir_type,
    parameters_of,
    storage_mlir_type,
    storage_of_any,
)
from ..dialects.subquant import operands_of
from ..errors import UnsupportedError
from ..numerics.casts import Rounding
from ..numerics.parameters import ExpressedType, QuantizationParameters
from .arithmetic import CastArithmetic, Division
from .base import Builder, ModulePass, NoMatch, Pattern, apply_patterns, is_in_loop_body
from .math.operands import check_scales

__all__ = ["LowerQuantCasts"]

AxisKind = Literal["whole", "unit", "split", "ragged"]


@dataclass(frozen=True)
class LowerQuantCasts(ModulePass):
    """Lower every quantizing and dequantizing operation.

    Options:
        rounding: ``nearest-even`` (the contract), or ``toward-zero`` for the arithmetic of
            upstream's ``lower-quant-ops``: truncation, and no saturation before the conversion.
        division: ``native``, or ``exact`` for a target whose division is not correctly rounded
            (Vulkan).
    """

    name: ClassVar[str] = "lower-quant-casts"

    rounding: Rounding = "nearest-even"
    division: Division = "native"

    def run(self, module: ir.Operation) -> None:
        """Lower every cast in `module`."""
        lowering = _Lowering(self.rounding, self.division)
        patterns: dict[str, Pattern] = {
            "quant.qcast": lowering.cast,
            "quant.dcast": lowering.cast,
            "subquant.qcast": lowering.cast,
            "subquant.dcast": lowering.cast,
            "subquant.quantize": lowering.operand_op,
            "subquant.dequantize": lowering.operand_op,
        }
        apply_patterns(module, patterns)


class _Lowering:
    """The patterns of one run.

    Networks cast the same types again and again: what a cast of static shape became is kept as a
    template, and copied for the next one of the same types (a copy takes 30 us, not 300).
    """

    def __init__(self, rounding: Rounding, division: Division) -> None:
        self.rounding = rounding
        self.division = division
        self._templates: dict[tuple[str, ir.Type, ir.Type], _Template] = {}

    # -- patterns ---------------------------------------------------------------------------------

    def cast(self, op: Any, rewriter: Any) -> NoMatch | None:
        """Lower a qcast or dcast."""
        source, target = op.operands[0], op.results[0].type
        key = (op.name, source.type, target)
        template = self._templates.get(key)
        if template is not None:
            rewriter.replace_op(op, [template.instantiate(source)])
            return None
        quantize = op.name.endswith(".qcast")
        quantized = target if quantize else source.type
        parameters = parameters_of(quantized, op)
        if parameters is None:
            return NoMatch("type is not quantized")
        check_scales(parameters, op)
        b = Builder()
        arithmetic = CastArithmetic(
            parameters.storage, parameters.expressed, self.rounding, self.division
        )
        cast = _Cast(b, op, quantize, parameters, arithmetic)
        value = source
        if not quantize:
            value = _scast(b, op, value, _with_element(source.type, parameters))
        if not isinstance(target, ir.ShapedType):
            value = cast.scalar(value)
        elif target.has_rank:
            value = cast.ranked(value, target)
        else:
            value = cast.unranked(value)
        if quantize:
            value = _scast(b, op, value, target)
        if isinstance(target, ir.ShapedType) and target.has_rank and target.has_static_shape:
            self._templates[key] = _Template(source, list(b.created), value)
        rewriter.replace_op(op, [value])
        return None

    def operand_op(self, op: Any, rewriter: Any) -> NoMatch | None:
        """Lower a quantize or dequantize with scales as operands."""
        described = storage_of_any(op.attributes["quantized_type"].value, op)
        if described is None:
            return NoMatch("quantized_type is not !quant.any")
        storage, expressed = described
        b = Builder()
        arithmetic = CastArithmetic(storage, expressed, self.rounding, self.division)
        quantize = op.name == "subquant.quantize"
        operands = operands_of(op)
        source, scales = operands["input"], operands["scales"]
        blocks = [int(block) for block in op.attributes["block_sizes"]]
        names = list(operands)[1:]
        _check_operand_extents(b, op, blocks)
        plan = _plan_axes(source.type, blocks, scales.type)
        parameters = [_drop_unit_dims(b, operands[name], plan) for name in names]

        def body(value: Any, *elements: Any) -> Any:
            given = dict(zip(names, elements, strict=True))
            scale, zero_point = given["scales"], given.get("zero_points", 0)
            if quantize:
                return arithmetic.quantize(b, value, scale, zero_point)
            return arithmetic.dequantize(b, value, scale, zero_point, given.get("offsets"))

        result_element = element_type(op.results[0].type)
        result = _elementwise(b, source, plan, parameters, result_element, body)
        rewriter.replace_op(op, [_cast_to(b, result, op.results[0].type)])
        return None


class _Template:
    """The operations that one cast became, to be copied for another source value."""

    def __init__(self, source: Any, operations: list[Any], result: Any) -> None:
        self._operations = operations
        positions = {source: (-1, 0)}
        for number, op in enumerate(operations):
            for index, value in enumerate(op.results):
                positions[value] = (number, index)
        # For each operation, which results of earlier ones (-1: the source) its operands are.
        self._operands = [[positions[value] for value in op.operands] for op in operations]
        self._result = positions[result]
        # Values of the template that a loop body uses (the scales of ragged blocks).
        self._captured = [
            [
                (n, index, positions[value])
                for n, inner in enumerate(op.regions[0].blocks[0].operations)
                for index, value in enumerate(inner.operation.operands)
                if value in positions
            ]
            if len(op.regions)
            else []
            for op in operations
        ]

    def instantiate(self, source: Any) -> Any:
        """Copy the operations to the insertion point, with the current location."""
        location = ir.Location.current
        copies: list[Any] = []
        for op, operands, captured in zip(
            self._operations, self._operands, self._captured, strict=True
        ):
            copy = op.clone()
            for index, (number, result) in enumerate(operands):
                copy.operands[index] = source if number < 0 else copies[number].results[result]
            copy.location = location
            if len(copy.regions):
                inners = [inner.operation for inner in copy.regions[0].blocks[0].operations]
                for inner in inners:
                    inner.location = location
                for n, index, (number, result) in captured:
                    inners[n].operands[index] = copies[number].results[result]
            copies.append(copy)
        number, result = self._result
        return copies[number].results[result]


@dataclass(frozen=True)
class _Cast:
    """One qcast or dcast with parameters in its type."""

    b: Builder
    op: Any
    quantize: bool
    parameters: QuantizationParameters
    arithmetic: CastArithmetic

    @property
    def _result_element(self) -> ir.Type:
        if self.quantize:
            return storage_mlir_type(self.parameters.storage)
        return expressed_mlir_type(self.parameters.expressed)

    def _emit(self, value: Any, scale: Any, zero_point: Any) -> Any:
        emit = self.arithmetic.quantize if self.quantize else self.arithmetic.dequantize
        return emit(self.b, value, scale, zero_point)

    def scalar(self, source: Any) -> Any:
        """Lower a scalar: in place inside a loop body, else as a tensor without axes.

        IREE runs scalar code between loops in its virtual machine, which has no f16 and no bf16.
        """
        if is_in_loop_body(self.op):
            scale = float(self.parameters.scales.reshape(-1)[0])
            return self._emit(source, scale, int(self.parameters.zero_points.reshape(-1)[0]))
        tensor_type = ir.RankedTensorType.get([], source.type)
        tensor = self.b.op("tensor.from_elements", [source], tensor_type)
        result = self._lower_grid(tensor, [], ())
        return self.b.op("tensor.extract", [result], self._result_element)

    def ranked(self, source: Any, target: Any) -> Any:
        type_ = source.type
        rank = type_.rank
        if self.parameters.granularity == "per-tensor":
            blocks: list[int | None] = [None] * rank
            grid: tuple[int, ...] = (1,) * rank
        else:
            blocks = [self.parameters.block_size_of(axis) for axis in range(rank)]
            found = self.parameters.full_grid_shape(rank)
            if found is None:
                raise UnsupportedError(
                    f"scales of shape {self.parameters.scales.shape} do not belong to a tensor of "
                    f"rank {rank}; run verify-quantization first",
                    self.op,
                )
            grid = found
        source = self._check_dynamic(source, blocks, grid)
        result = self._lower_grid(source, blocks, grid)
        stored = ir.RankedTensorType.get(list(target.shape), self._result_element, target.encoding)
        return _cast_to(self.b, result, stored)

    def _lower_grid(self, source: Any, blocks: Sequence[int | None], grid: tuple[int, ...]) -> Any:
        """Lower over a ranked source whose scales form `grid`, one entry for each axis."""
        scales = self.parameters.scales.reshape(grid)
        zero_points = self.parameters.zero_points.reshape(grid)
        plan = _plan_axes(source.type, blocks, None, grid)
        constants = []
        scale: float | None = float(scales.reshape(-1)[0])
        zero_point: int | None = int(zero_points.reshape(-1)[0])
        kept = [axis for axis, kind in enumerate(plan.kinds) if kind != "whole"]
        if (scales != scales.reshape(-1)[0]).any():
            scale = None
            small = scales.reshape([grid[axis] for axis in kept])
            # IREE does not compile bf16 constants for Vulkan: widened, they are the same numbers.
            bf16 = self.parameters.expressed is ExpressedType.BF16
            of_scales = self.b.f32 if bf16 else expressed_mlir_type(self.parameters.expressed)
            attribute = dense_of_array(small, of_scales)
            constants.append(self.b.dense(attribute))
        if (zero_points != zero_points.reshape(-1)[0]).any():
            zero_point = None
            small = zero_points.reshape([grid[axis] for axis in kept])
            attribute = dense_of_array(small, storage_mlir_type(self.parameters.storage))
            constants.append(self.b.dense(attribute))

        def body(value: Any, *arguments: Any) -> Any:
            remaining = list(arguments)
            of_scale = remaining.pop(0) if scale is None else scale
            of_zero = remaining.pop(0) if zero_point is None else zero_point
            return self._emit(value, of_scale, of_zero)

        if not constants:  # one scale and zero point for all: no axis needs to be told apart
            plan = _Plan(source.type, ("whole",) * source.type.rank, (None,) * source.type.rank)
        return _elementwise(self.b, source, plan, constants, self._result_element, body)

    def _check_dynamic(
        self, source: Any, blocks: Sequence[int | None], grid: tuple[int, ...]
    ) -> Any:
        """Check dynamic quantized dimensions at run time; make those static that are then known."""
        b, type_ = self.b, source.type
        known = [None if type_.is_dynamic_dim(axis) else n for axis, n in enumerate(type_.shape)]
        refined = list(known)
        for axis, block in enumerate(blocks):
            if known[axis] is not None or block is None:
                continue
            extent = b.dim(source, axis)
            if self._is_ragged_allowed(block):
                self._check_ceil(extent, block, grid[axis], axis)
            else:
                refined[axis] = grid[axis] * block
                self._check_exact(extent, block, grid[axis], axis)
        if refined == known:
            return source
        shape = [ir.ShapedType.get_dynamic_size() if n is None else n for n in refined]
        refined_type = ir.RankedTensorType.get(shape, type_.element_type, type_.encoding)
        return _cast_to(b, source, refined_type)

    def _is_ragged_allowed(self, block: int) -> bool:
        return self.op.name.startswith("subquant.") and block > 1

    def _check_exact(self, extent: Any, block: int, count: int, axis: int) -> None:
        b = self.b
        ok = b.compare(0, extent, b.constant(block * count, b.index))
        b.check(
            ok,
            f"{_where(self.op)}: dimension {axis} must be {block * count} at run time "
            f"({count} blocks of {block})",
        )

    def _check_ceil(self, extent: Any, block: int, count: int, axis: int) -> None:
        b = self.b
        blocks = b.op("arith.ceildivsi", [extent, b.constant(block, b.index)], b.index)
        ok = b.compare(0, blocks, b.constant(count, b.index))
        b.check(
            ok,
            f"{_where(self.op)}: dimension {axis} must be {block * (count - 1) + 1} to "
            f"{block * count} at run time ({count} blocks of {block}, the last may be shorter)",
        )

    # -- unranked ---------------------------------------------------------------------------------

    def unranked(self, source: Any) -> Any:
        """RFC, Case 2: reshape to [left, axis, middle, axis, ..., right] and back."""
        b = self.b
        shape_type = ir.RankedTensorType.get([ir.ShapedType.get_dynamic_size()], b.index)
        shape = b.op("shape.shape_of", [source], shape_type)
        axes = sorted(self.parameters.axes)
        extents, blocks, grid = self._unranked_axes(shape, axes)
        element = source.type.element_type
        static = [
            extent if isinstance(extent, int) else ir.ShapedType.get_dynamic_size()
            for extent in extents
        ]
        values = [
            b.constant(extent, b.index) if isinstance(extent, int) else extent for extent in extents
        ]
        reshape_type = ir.RankedTensorType.get([len(values)], b.index)
        reshape = b.op("tensor.from_elements", values, reshape_type)
        ranked_type = ir.RankedTensorType.get(static, element)
        ranked = b.op("tensor.reshape", [source, reshape], ranked_type)
        result = self._lower_grid(ranked, blocks, grid)
        unranked_type = ir.UnrankedTensorType.get(self._result_element)
        return b.op("tensor.reshape", [result, shape], unranked_type)

    def _unranked_axes(
        self, shape: Any, axes: list[int]
    ) -> tuple[list[Any], list[int | None], tuple[int, ...]]:
        """The extents (ints where known), block sizes and block counts of the reshaped tensor."""
        b = self.b
        if not axes:
            return [b.op("shape.num_elements", [shape], b.index)], [None], (1,)
        counts = self.parameters.scales.shape
        if len(counts) != len(axes):
            full = self.parameters.full_grid_shape(self.parameters.scales.ndim)
            if full is None:
                raise UnsupportedError(
                    f"scales of shape {counts} do not fit the quantized dimensions {axes}; run "
                    "verify-quantization first",
                    self.op,
                )
            counts = tuple(full[axis] for axis in axes)
        rank = b.op("tensor.dim", [shape, b.constant(0, b.index)], b.index)
        enough = b.compare(5, rank, b.constant(axes[-1] + 1, b.index))
        b.check(
            enough,
            f"{_where(self.op)}: rank must be at least {axes[-1] + 1} at run time, for the "
            f"quantized dimension {axes[-1]}",
        )
        extents: list[Any] = []
        blocks: list[int | None] = []
        grid: list[int] = []
        previous = -1
        for axis, count in zip(axes, counts, strict=True):
            extents.append(self._product(shape, previous + 1, axis))
            blocks.append(None)
            grid.append(1)
            block = self.parameters.block_size_of(axis)
            assert block is not None  # axes are the quantized ones
            extent = b.op("tensor.extract", [shape, b.constant(axis, b.index)], b.index)
            if self._is_ragged_allowed(block):
                self._check_ceil(extent, block, count, axis)
                extents.append(extent)
            else:
                self._check_exact(extent, block, count, axis)
                extents.append(block * count)
            blocks.append(block)
            grid.append(count)
            previous = axis
        extents.append(self._product(shape, previous + 1, None))
        return extents, [*blocks, None], (*grid, 1)

    def _product(self, shape: Any, first: int, end: int | None) -> Any:
        """The number of elements of the axes from `first` to before `end` (None: to the last)."""
        b = self.b
        if end is not None:
            shape = self._split(shape, end)[0]
        if first:
            shape = self._split(shape, first)[1]
        return b.op("shape.num_elements", [shape], b.index)

    def _split(self, shape: Any, index: int) -> Any:
        at = self.b.constant(index, self.b.index)
        return ir.Operation.create(
            "shape.split_at", results=[shape.type, shape.type], operands=[shape, at]
        ).results


# -- the element-wise loop over blocks ------------------------------------------------------------


@dataclass(frozen=True)
class _Plan:
    """How each axis of a source is indexed: its kind and block size."""

    type_: Any
    kinds: tuple[AxisKind, ...]
    blocks: tuple[int | None, ...]


def _plan_axes(
    type_: Any,
    blocks: Sequence[int | None],
    scales: Any = None,
    grid: Sequence[int] | None = None,
) -> _Plan:
    """Choose the kind of each axis, from the block sizes and the number of blocks.

    Args:
        type_: the source's type.
        blocks: the block size along each axis, None for one block.
        scales: the type of the scales operand, or None when `grid` is known.
        grid: the number of blocks along each axis.
    """
    kinds: list[AxisKind] = []
    for axis, block in enumerate(blocks):
        if grid is not None:
            count: int | None = grid[axis]
        else:
            count = None if scales.is_dynamic_dim(axis) else int(scales.shape[axis])
        extent = None if type_.is_dynamic_dim(axis) else int(type_.shape[axis])
        if block is None or count == 1:
            kinds.append("whole")
        elif block == 1:
            kinds.append("unit")
        elif extent is not None and extent % block == 0:
            kinds.append("split")
        else:
            kinds.append("ragged")
    return _Plan(type_, tuple(kinds), tuple(blocks))


def _elementwise(
    b: Builder,
    source: Any,
    plan: _Plan,
    parameters: Sequence[Any],
    result_element: ir.Type,
    body: Any,
) -> Any:
    """Apply `body` to every element of `source` with the parameters of its block.

    Args:
        b: the builder.
        source: a ranked tensor.
        plan: how its axes are indexed.
        parameters: tensors with one dimension for each axis that is not whole.
        result_element: the element type of the result.
        body: given a scalar of the source and one of each parameter tensor, emits the result.
    """
    groups: list[list[int]] = []  # for each axis of the source, the loop dimensions it becomes
    loops: list[Any] = []  # the extent of each loop dimension: int, or a value
    kept: list[tuple[int, int]] = []  # for each axis that is not whole: loop dimension, divisor
    for axis, (kind, block) in enumerate(zip(plan.kinds, plan.blocks, strict=True)):
        dynamic = plan.type_.is_dynamic_dim(axis)
        extent = b.dim(source, axis) if dynamic else int(plan.type_.shape[axis])
        first = len(loops)
        if kind == "split":
            assert block is not None and not dynamic
            loops += [extent // block, block]
            groups.append([first, first + 1])
        else:
            loops.append(extent)
            groups.append([first])
        if kind != "whole":
            kept.append((first, block or 1) if kind == "ragged" else (first, 1))
    split = len(loops) != len(groups)
    if split:
        source = _reshape(b, "tensor.expand_shape", source, groups, loops)
    sizes = [extent for extent in loops if not isinstance(extent, int)]
    empty_type = ir.RankedTensorType.get(_static_shape(loops), result_element)
    empty = b.op("tensor.empty", sizes, empty_type)
    identity = ir.AffineMap.get_identity(len(loops))
    if "ragged" in plan.kinds:
        result = _generic(
            b,
            [source],
            empty,
            [identity, identity],
            lambda value: body(value, *_extract_all(b, parameters, kept)),
        )
    else:
        expressions = [ir.AffineExpr.get_dim(dimension) for dimension, _ in kept]
        parameter_map = ir.AffineMap.get(len(loops), 0, expressions)
        maps = [identity, *[parameter_map] * len(parameters), identity]
        result = _generic(b, [source, *parameters], empty, maps, body)
    if split:
        collapsed = [
            None if plan.type_.is_dynamic_dim(axis) else int(plan.type_.shape[axis])
            for axis in range(len(groups))
        ]
        result = _collapse(b, result, groups, collapsed)
    return result


def _extract_all(b: Builder, tensors: Sequence[Any], kept: Sequence[tuple[int, int]]) -> list[Any]:
    """In a loop body: the element of each tensor at (loop index floordiv divisor) of each axis."""
    indices = []
    for dimension, divisor in kept:
        attributes = {"dim": ir.IntegerAttr.get(b.i64, dimension)}
        index = b.op("linalg.index", [], b.index, attributes)
        if divisor > 1:
            index = b.op("arith.divui", [index, b.constant(divisor, b.index)], b.index)
        indices.append(index)
    return [
        b.op("tensor.extract", [tensor, *indices], tensor.type.element_type) for tensor in tensors
    ]


def _static_shape(extents: Sequence[Any]) -> list[int]:
    dynamic = ir.ShapedType.get_dynamic_size()
    return [extent if isinstance(extent, int) else dynamic for extent in extents]


def _reassociation(groups: Sequence[Sequence[int]]) -> ir.ArrayAttr:
    i64 = ir.IntegerType.get_signless(64)
    return ir.ArrayAttr.get(
        [ir.ArrayAttr.get([ir.IntegerAttr.get(i64, d) for d in group]) for group in groups]
    )


def _reshape(
    b: Builder, name: str, source: Any, groups: Sequence[Sequence[int]], loops: Sequence[Any]
) -> Any:
    shape = _static_shape(loops)
    sizes = [extent for extent in loops if not isinstance(extent, int)]
    type_ = ir.RankedTensorType.get(shape, source.type.element_type)
    attributes = {
        "reassociation": _reassociation(groups),
        "static_output_shape": ir.DenseI64ArrayAttr.get(shape),
    }
    return b.op(name, [source, *sizes], type_, attributes)


def _collapse(
    b: Builder, source: Any, groups: Sequence[Sequence[int]], shape: Sequence[int | None]
) -> Any:
    type_ = ir.RankedTensorType.get(_static_shape(shape), source.type.element_type)
    attributes = {"reassociation": _reassociation(groups)}
    return b.op("tensor.collapse_shape", [source], type_, attributes)


def _generic(
    b: Builder, inputs: Sequence[Any], output: Any, maps: Sequence[ir.AffineMap], body: Any
) -> Any:
    """Create a ``linalg.generic`` with parallel loops and one output."""
    parallel = ir.Attribute.parse("#linalg.iterator_type<parallel>")
    attributes = {
        "indexing_maps": ir.ArrayAttr.get([ir.AffineMapAttr.get(map_) for map_ in maps]),
        "iterator_types": ir.ArrayAttr.get([parallel] * maps[0].n_dims),
        "operandSegmentSizes": ir.DenseI32ArrayAttr.get([len(inputs), 1]),
    }
    generic = ir.Operation.create(
        "linalg.generic",
        results=[output.type],
        operands=[*inputs, output],
        attributes=attributes,
        regions=1,
    )
    elements = [value.type.element_type for value in (*inputs, output)]
    location = ir.Location.current
    block = generic.regions[0].blocks.append(*elements, arg_locs=[location] * len(elements))
    created, b.created = b.created, []  # the body belongs to the generic
    with ir.InsertionPoint(block):
        value = body(*list(block.arguments)[:-1])
        b.op("linalg.yield", [value])
    b.created = [*created, generic]
    return generic.results[0]


# -- small pieces ---------------------------------------------------------------------------------


def _where(op: Any) -> str:
    place = place_of(op.location)
    return f"'{op.name}' op" + (f" at {place}" if place else "")


def _cast_to(b: Builder, value: Any, type_: ir.Type) -> Any:
    return value if value.type == type_ else b.op("tensor.cast", [value], type_)


def _with_element(type_: Any, parameters: QuantizationParameters) -> ir.Type:
    """The storage type of a quantized type with its container."""
    storage = storage_mlir_type(parameters.storage)
    if not isinstance(type_, ir.ShapedType):
        return storage
    if not type_.has_rank:
        return ir.UnrankedTensorType.get(storage)
    return ir.RankedTensorType.get(list(type_.shape), storage, type_.encoding)


def _scast(b: Builder, op: Any, value: Any, type_: ir.Type) -> Any:
    """Cast between storage and quantized type, in the dialect of `op`."""
    return b.op(f"{op.name.split('.')[0]}.scast", [value], type_)


def _drop_unit_dims(b: Builder, tensor: Any, plan: _Plan) -> Any:
    """Remove the axes of a parameter tensor that are whole (one block)."""
    kept = [axis for axis, kind in enumerate(plan.kinds) if kind != "whole"]
    if len(kept) == tensor.type.rank:
        return tensor
    dynamic = ir.ShapedType.get_dynamic_size()
    extents = [
        1 if axis not in kept else dynamic if tensor.type.is_dynamic_dim(axis) else int(extent)
        for axis, extent in enumerate(tensor.type.shape)
    ]
    type_ = ir.RankedTensorType.get(extents, tensor.type.element_type)
    tensor = _cast_to(b, tensor, type_)  # a whole axis has one block: checked before
    groups: list[list[int]] = [[] for _ in kept] or []
    if not kept:
        return _collapse(b, tensor, [], [])
    for axis in range(type_.rank):
        position = sum(1 for other in kept if other < axis)
        if axis in kept:
            groups[kept.index(axis)].append(axis)
        else:
            groups[min(position, len(kept) - 1)].append(axis)
    shape = [None if type_.is_dynamic_dim(axis) else int(type_.shape[axis]) for axis in kept]
    return _collapse(b, tensor, [sorted(group) for group in groups], shape)


def _check_operand_extents(b: Builder, op: Any, blocks: Sequence[int]) -> None:
    """Check at run time what the types leave open: ``ceil(extent / block)`` scales on each axis."""
    source = op.operands[0]
    for name, tensor in list(operands_of(op).items())[1:]:
        for axis, block in enumerate(blocks):
            if not source.type.is_dynamic_dim(axis) and not tensor.type.is_dynamic_dim(axis):
                continue
            count = b.op(
                "arith.ceildivsi",
                [b.dim(source, axis), b.constant(block, b.index)],
                b.index,
            )
            ok = b.compare(0, b.dim(tensor, axis), count)
            b.check(
                ok,
                f"{_where(op)}: {name.replace('_', ' ')} must have one entry for each block of "
                f"{block} along dimension {axis} at run time",
            )
