"""``lower-quant-casts``: lower qcast, dcast, quantize and dequantize to linalg and arith.

One lowering serves all parameters: a cast is a loop over the elements with the formula of
`subquant.numerics.casts` in its body, and `casts.block_loops` indexes the scale of each element's
block. The RFC's affine map ``d floordiv block`` is not used: IREE 3.13 refuses it where a tile
size and a block size do not divide each other, and elsewhere it takes 5.5 times as long as the
split form (4096 x 4096, blocks of 32, llvm-cpu).

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

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from ... import emit
from ...core._mlir import Operation, Value, ir
from ...core.option_fields import Rounding
from ...dialects.quant import (
    DCASTS,
    QCASTS,
    expressed_mlir_type,
    parameters_of,
    shape_of,
    storage_mlir_type,
    storage_of_any,
)
from ...dialects.subquant import operands_of
from ...emit import ArrayLike, Scalars, linalg
from ...emit.operation import dense, element_of, recorded, tensor_type, with_element
from ...emit.template import Template
from ...errors import Remark, UnsupportedError
from ...numerics.casts import Cast, Division
from ...numerics.element_types import Array
from ...numerics.parameters import ExpressedType, QuantizationParameters
from ..base import ModulePass, NoMatch, Pattern, Replacement, apply_patterns, is_in_loop_body
from .casts.block_loops import BlockAxes, map_by_block, without_whole_axes
from .casts.run_time_checks import check_block_count, check_parameter_extents
from .casts.unranked import RankedAroundAxes
from .math.operands import check_scales


@dataclass(frozen=True)
class LowerQuantCasts(ModulePass):
    """Lower every quantizing and dequantizing operation.

    Options:
        rounding: ``nearest-even`` (the contract), or ``toward-zero`` for the arithmetic of
            upstream's ``lower-quant-ops``: truncation, and no saturation before the conversion.
        division: ``native``, or for a target whose division is not correctly rounded (Vulkan)
            ``exact``, or ``deferred`` to ``expand-stablehlo{divide-exactly}``.
    """

    rounding: Rounding = "nearest-even"
    division: Division = "native"

    def run(self, module: Operation) -> Sequence[Remark] | None:
        """Lower every cast in `module`."""
        lowering = _Lowering(self.rounding, self.division)
        patterns: dict[str, Pattern] = dict.fromkeys((*QCASTS, *DCASTS), lowering.cast)
        with_operands = ("subquant.quantize", "subquant.dequantize")
        patterns |= dict.fromkeys(with_operands, lowering.cast_with_operands)
        return apply_patterns(module, patterns)


_ARGUMENTS = {"scales": "scale", "zero_points": "zero_point", "offsets": "offset"}
"""Names in the formulas of the elements of an operation's operands."""


class _Lowering:
    """The patterns of one run.

    Networks cast the same types many times, and types that differ in numbers only. The lowering of
    a cast of static shape is cached as a template. The next cast of the same types is a copy
    (20 us instead of 150 to 280), or a copy with other constants of its blocks (90 to 120 us).
    """

    def __init__(self, rounding: Rounding, division: Division) -> None:
        # One object for a pair of types, which caches its constants.
        cast = functools.partial(Cast, rounding=rounding, division=division)
        self._formula = functools.cache(cast)
        self._templates_by_type: dict[tuple[str, ir.Type, ir.Type], Template] = {}
        self._templates_by_structure: dict[tuple[object, ...] | None, Template] = {}

    def cast(self, op: Operation) -> Replacement:
        """Lower a qcast or dcast."""
        source, target = op.operands[0], op.results[0].type
        types = (op.name, source.type, target)
        template = self._templates_by_type.get(types)
        if template is not None:
            return template.copy(source).result
        quantizes = op.name.endswith(".qcast")
        parameters = parameters_of(target if quantizes else source.type, op)
        if parameters is None:
            return NoMatch("type is not quantized")
        check_scales(parameters, op)
        formula = self._formula(parameters.storage, parameters.expressed)
        cast = _TypedCast(op, parameters, _Formula(formula, quantizes))
        if not (isinstance(target, ir.ShapedType) and target.has_rank and target.has_static_shape):
            return cast.lowered()
        template = self._templates_by_type[types] = self._template(cast, source, target)
        return template.result

    def _template(self, cast: _TypedCast, source: Value, target: ir.Type) -> Template:
        """Lower a cast of static shape, by a copy of one that differs in constants if possible."""
        structure = cast.structure if cast.by_block else None
        similar = self._templates_by_structure.get(structure)
        if similar is not None:
            return similar.copy(source, cast.by_block.values(), target)
        with recorded() as operations:
            template = Template(operations, cast.lowered())
        if structure is not None:
            self._templates_by_structure[structure] = template
        return template

    def cast_with_operands(self, op: Operation) -> Replacement:
        """Lower a quantize or dequantize with scales as operands."""
        described = storage_of_any(op.attributes["quantized_type"].value, op)
        if described is None:
            return NoMatch("quantized_type is not !quant.any")
        formula = _Formula(self._formula(*described), op.name == "subquant.quantize")
        parameters = operands_of(op)
        source = parameters.pop("input")
        sizes = [int(size) for size in op.attributes["block_sizes"]]
        check_parameter_extents(op, source, parameters, sizes)
        axes = BlockAxes.of(source.type, sizes, shape_of(parameters["scales"].type))
        tensors = [without_whole_axes(tensor, axes) for tensor in parameters.values()]
        names = [_ARGUMENTS[name] for name in parameters]

        def body(value: Value, *elements: Value) -> Value:
            return formula(value, **dict(zip(names, elements, strict=True)))

        result = map_by_block(source, axes, tensors, formula.result, body)
        return linalg.cast(result, op.results[0].type)


@dataclass(frozen=True)
class _Formula:
    """The formula of a cast, in the body of a loop."""

    cast: Cast
    quantizes: bool

    @property
    def result(self) -> ir.Type:
        """The type of the result."""
        if self.quantizes:
            return storage_mlir_type(self.cast.storage)
        return expressed_mlir_type(self.cast.expressed)

    def __call__(self, value: Value, **parameters: Value | float) -> Value:
        """Emit the result of one element; `parameters` are the arguments of the formula."""
        form = Scalars()

        def element(argument: Value | float) -> ArrayLike:
            if isinstance(argument, (int, float)):
                return argument
            return form.emitted(
                argument, element_of(argument.type, signed=self.cast.storage.signed)
            )

        formula = self.cast.quantize if self.quantizes else self.cast.dequantize
        arguments = {name: element(argument) for name, argument in parameters.items()}
        return formula(element(value), **arguments).value


@dataclass(frozen=True)
class _TypedCast:
    """One qcast or dcast, whose parameters are in its type."""

    op: Operation
    parameters: QuantizationParameters
    formula: _Formula

    @property
    def structure(self) -> tuple[object, ...]:
        """The cache key of the lowering: all its inputs except the numbers in `by_block`."""
        parameters = self.parameters
        source, target = self.op.operands[0].type, self.op.results[0].type
        return (
            self.op.name,
            source if self.formula.quantizes else with_element(source, self._storage),
            with_element(target, self.formula.result),
            parameters.storage,
            parameters.expressed,
            parameters.axes,
            parameters.block_sizes,
            parameters.scales.shape,
            *self.uniform.items(),
        )

    @cached_property
    def _grids(self) -> dict[str, tuple[Array, ir.Type]]:
        """Scales and zero points, and the types of their elements in the program."""
        # IREE does not compile bf16 constants for Vulkan: widened, they are the same numbers.
        expressed = self.parameters.expressed
        wide = ExpressedType.F32 if expressed is ExpressedType.BF16 else expressed
        return {
            "scale": (self.parameters.scales, expressed_mlir_type(wide)),
            "zero_point": (self.parameters.zero_points, self._storage),
        }

    @cached_property
    def uniform(self) -> dict[str, float | int]:
        """The parameters that are equal for all blocks."""
        first = {name: grid.flat[0] for name, (grid, _) in self._grids.items()}
        return {
            name: first[name].item()
            for name, (grid, _) in self._grids.items()
            if grid.size == 1 or (grid == first[name]).all()
        }

    @cached_property
    def by_block(self) -> dict[str, ir.DenseElementsAttr]:
        """The parameters that differ by block, with one dimension for each axis of blocks."""
        return {
            name: dense(grid.squeeze(), element)
            for name, (grid, element) in self._grids.items()
            if name not in self.uniform
        }

    def lowered(self) -> Value:
        """Write the operations; return the result."""
        source, target = self.op.operands[0], self.op.results[0].type
        scast = f"{self.op.name.split('.')[0]}.scast"
        if not self.formula.quantizes:
            source = emit.value(scast, [source], with_element(source.type, self._storage))
        if not isinstance(target, ir.ShapedType):
            result = self._of_scalar(source)
        elif target.has_rank:
            lowered = self._of_ranked(source)
            result = linalg.cast(lowered, with_element(target, self.formula.result))
        else:
            ragged = self._may_be_ragged
            ranked = RankedAroundAxes.of(source, self.parameters, self.op, ragged=ragged)
            result = ranked.unranked(self._by_block(ranked.tensor, ranked.sizes, ranked.counts))
        return emit.value(scast, [result], target) if self.formula.quantizes else result

    def _of_scalar(self, source: Value) -> Value:
        """Lower a scalar: in place inside a loop body, else as a tensor of rank 0.

        IREE runs scalar code between loops in its virtual machine, which has no f16 and no bf16.
        """
        if is_in_loop_body(self.op):
            return self.formula(source, **self.uniform)
        tensor = linalg.from_elements([source], tensor_type([], source.type))
        return linalg.extract(self._by_block(tensor, [], ()), [])

    def _of_ranked(self, source: Value) -> Value:
        rank = source.type.rank
        if self.parameters.granularity == "per-tensor":
            return self._by_block(source, [None] * rank, (1,) * rank)
        counts = self.parameters.full_grid_shape(rank)
        if counts is None:
            raise UnsupportedError(
                f"scales of shape {self.parameters.scales.shape} do not belong to a tensor of "
                f"rank {rank}; run verify-quantization first",
                self.op,
            )
        sizes = [self.parameters.block_size_of(axis) for axis in range(rank)]
        return self._by_block(self._checked(source, sizes, counts), sizes, counts)

    @property
    def _storage(self) -> ir.Type:
        return storage_mlir_type(self.parameters.storage)

    @property
    def _may_be_ragged(self) -> bool:
        """True if the last block may be shorter, which upstream's types do not allow."""
        return bool(self.op.name.startswith("subquant."))

    def _checked(self, source: Value, sizes: Sequence[int | None], counts: Sequence[int]) -> Value:
        """Check dynamic quantized dimensions at run time; the checked ones become static."""
        type_ = source.type
        shape = shape_of(type_)
        for axis, (size, count) in enumerate(zip(sizes, counts, strict=True)):
            if shape[axis] is None and size is not None:
                ragged = self._may_be_ragged and size > 1
                extent = linalg.dim(source, axis)
                check_block_count(self.op, axis, extent, size, count, ragged=ragged)
                shape[axis] = None if ragged else size * count
        return linalg.cast(source, tensor_type(shape, type_.element_type, type_.encoding))

    def _by_block(
        self, source: Value, sizes: Sequence[int | None], counts: tuple[int, ...]
    ) -> Value:
        """Lower over a ranked tensor, for the size and number of blocks along each axis."""
        axes = BlockAxes.of(source.type, sizes, counts)
        if not self.by_block:  # one scale and zero point for all blocks
            axes = BlockAxes.all_whole(len(counts))
        tensors = [linalg.constant(attribute) for attribute in self.by_block.values()]

        def body(value: Value, *elements: Value) -> Value:
            by_block = dict(zip(self.by_block, elements, strict=True))
            return self.formula(value, **self.uniform, **by_block)

        return map_by_block(source, axes, tensors, self.formula.result, body)
