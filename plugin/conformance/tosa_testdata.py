"""Functions of StableHLO's TOSA tests as cases, read in a child process.

The files under ``stablehlo/conversions/tosa/tests`` are inputs of StableHLO's two rescale passes
with their expected text. Here each function is lowered by subquant's two passes, and the resulting
StableHLO on integers runs on random storage values:

* a quantized elementwise operation must give the rounded exact result or its neighbor, the
  accuracy of a fixed-point rescale. A comparison must be right where the reals differ by more
  than ``2**-19`` of the greater scale;
* a ``tosa.rescale`` must equal the reference arithmetic;
* a function with its own check runs like the other test data, with the tolerance of
  StableHLO's interpreter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from ..compiler.pipeline import parse_pipeline, run_pipeline
from ..core._mlir import Operation, ir
from ..dialects.quant import element_type, parameters_of
from ..dialects.tosa import RescaleView
from ..errors import InputError
from ..numerics.fixed_point import apply_scale
from ..numerics.parameters import StorageType
from ..transforms.base import SIGNATURE_ATTRIBUTE, walk
from .cases import SYMBOL, Case, Prepared
from .oracle import Golden
from .program import Array
from .stablehlo_testdata import function_case, function_modules

_PASSES = (
    "verify-quantization,quant-legalize-to-tosa-rescale,tosa-rescale-legalize-to-stablehlo,"
    "interpreter"
)
_NEAR = 2.0**-19
"""Comparisons may differ for reals that are closer than this number of steps."""
_TOLERANCE = 1e-4
"""The absolute error of floats: that of StableHLO's checks."""

_Reference = Callable[[list[Array]], Golden]


def file_cases(file: Path) -> Iterator[Case]:
    """Yield the cases of a file; SubquantError with a place if it has another form."""
    for module in function_modules(file, str):
        functions = [op.operation for op in module.body.operations]
        names = [str(function.attributes["sym_name"].value) for function in functions]
        references = [_reference(function) for function in functions]
        types = [list(function.attributes["function_type"].value.inputs) for function in functions]
        inputs = [[_draw(type_, n) for n, type_ in enumerate(row)] for row in types]
        run_pipeline(module, parse_pipeline(_PASSES))
        lowered = [op.operation for op in module.body.operations]
        for name, function, reference, arrays in zip(
            names, lowered, references, inputs, strict=True
        ):
            label = f"stablehlo-tosa/{file.stem}:{name}"
            if reference is None:
                yield _checked_case(function, label)
                continue
            with function.context:
                function.attributes["sym_name"] = ir.StringAttr.get(SYMBOL)
            if SIGNATURE_ATTRIBUTE in function.attributes:
                del function.attributes[SIGNATURE_ATTRIBUTE]
            prepared = Prepared(function.get_asm(use_local_scope=True), arrays, [reference(arrays)])
            yield Case(label, "tosa.rescale", prepared=prepared)


def _checked_case(function: Operation, label: str) -> Case:
    """A function with a check, whose golden is a decimal fraction: ``1.05`` for ``7 * 0.15``."""
    prepared = function_case(function, label).prepared
    assert prepared is not None
    goldens = [
        replace(golden, bound=np.full(golden.value.shape, _TOLERANCE))
        for golden in prepared.goldens
    ]
    return Case(label, "tosa.rescale", prepared=replace(prepared, goldens=goldens))


def _draw(type_: ir.ShapedType, seed: int) -> Array:
    """Storage values of a type, its extremes among them."""
    parameters = parameters_of(type_)
    storage = parameters.storage if parameters else StorageType(element_type(type_).width)
    shape = [int(extent) for extent in type_.shape]
    values = np.random.default_rng(seed).integers(storage.minimum, storage.maximum + 1, shape)
    flat = values.reshape(-1)
    ends = [storage.minimum, storage.maximum][: flat.size]
    flat[: len(ends)] = ends
    return values.astype(storage.dtype)


def _reference(function: Operation) -> _Reference | None:
    """Return a function's reference, None if it checks itself; InputError for more operations."""
    operations = [op for op in walk(function) if op.name not in ("tosa.const", "func.return")]
    if any(op.name.startswith(("check.", "stablehlo.custom_call")) for op in operations):
        return None
    if len(operations) != 1:
        raise InputError(
            f"has {len(operations)} operations, expected one on its arguments, or a check of its "
            "own; expected a file of StableHLO",
            function,
        )
    (op,) = operations
    if op.name == "tosa.rescale":
        return _rescale_reference(RescaleView.of(op))
    return _elementwise_reference(op)


def _rescale_reference(view: RescaleView) -> _Reference:
    storage = view.result.storage

    def reference(inputs: list[Array]) -> Golden:
        values = inputs[0].astype(np.int64) - view.input_zero_point
        scaled = apply_scale(values, view.multiplier, view.shift, view.rounding)
        clamped = np.clip(scaled + view.output_zero_point, storage.minimum, storage.maximum)
        return Golden(clamped.astype(storage.dtype))

    return reference


_FUNCTIONS = {
    "abs": np.abs, "add": np.add, "subtract": np.subtract, "multiply": np.multiply,
    "divide": np.divide, "maximum": np.maximum, "minimum": np.minimum,
}  # fmt: skip
_COMPARISONS = {
    "EQ": np.equal, "NE": np.not_equal, "GE": np.greater_equal, "GT": np.greater,
    "LE": np.less_equal, "LT": np.less,
}  # fmt: skip


def _elementwise_reference(op: Operation) -> _Reference:
    """The exact result in f64, which holds a difference of 16 bits times a scale of 24."""
    name = op.name.partition(".")[2]
    sides = [parameters_of(value.type, op) for value in op.operands]
    target = parameters_of(op.results[0].type, op)
    if None in sides or not (name in _FUNCTIONS or name == "compare"):
        raise InputError("is not an operation that the rescale passes know", op)
    scales = [float(side.scales) for side in sides if side]
    zero_points = [int(side.zero_points) for side in sides if side]
    direction = ""
    if name == "compare":
        direction = str(op.attributes["comparison_direction"]).split()[-1].rstrip(">")

    def reference(inputs: list[Array]) -> Golden:
        reals: list[Array] = [
            (array.astype(np.int64) - zero_point) * scale
            for array, zero_point, scale in zip(inputs, zero_points, scales, strict=True)
        ]
        if target is None:
            is_close = np.abs(reals[0] - reals[1]) <= _NEAR * max(scales)
            return Golden(_COMPARISONS[direction](*reals), bound=is_close.astype(np.float64))
        storage = target.storage
        with np.errstate(all="ignore"):
            steps = _FUNCTIONS[name](*reals) / float(target.scales) + int(target.zero_points)
        steps = np.rint(np.where(np.isnan(steps), 0, steps))
        rounded = np.clip(steps, storage.minimum, storage.maximum)
        return Golden(rounded.astype(storage.dtype), bound=np.ones(rounded.shape))

    return reference
