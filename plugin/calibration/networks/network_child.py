"""MLIR's part of the quantization of a network, in a child process.

The functions are those of `subquant.compiler.mlir_client.ask`.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...compiler.parameter_archive import program_archive
from ...compiler.pipeline import UpstreamPass, run_pipeline
from ...compiler.reading import parse_bytecode, parse_bytes
from ...core._mlir import Operation, Value, in_context_of, ir, skip_operation_classes
from ...core.files import read_input
from ...dialects import create_context
from ...dialects.stablehlo import DEQUANTIZE
from ...emit.constant_values import constant_elements
from ...emit.parameters import ModuleGlobals
from ...errors import UsageError
from ...importers.options import ImportOptions
from ...isolation.child import ReportStep
from ...isolation.limits import time_limit
from ...numerics.element_types import Array
from ...numerics.parameters import QuantizationParameters
from ...transforms.base import ModulePass
from ...transforms.quantization.legalize_qdq_to_quantized_op import LegalizeQdqToQuantizedOp
from ...transforms.quantization.pack_narrow_storage import PackNarrowStorage
from ...transforms.torch.legalize_torch import LegalizeTorch
from ..moments import InputMoments
from .bias_correction import correct_bias, corrected_layers, input_axes
from .dynamic_batch import keep_element, write_batch_loop
from .folding import fold_program
from .plan import Plan, name_of, plan_of
from .ranges import parameters_of_range
from .rewriting import dequantize_accumulators, quantize_values, quantize_weight, return_values
from .weights import quantize_in_blocks, quantize_per_channel

Answer = tuple[Any, list[bytes]]

skip_operation_classes()  # only child processes import this module

_CLEANUP = ("canonicalize", "cse", "symbol-dce")


def analyze(arguments: dict[str, Any], blobs: list[bytes], steps: ReportStep) -> Answer:
    """Import a float program and plan its quantization.

    The blobs are the prepared program, and one that also returns the values of the plan: those
    whose ranges are measured, then the ends of the layers.
    """
    source = arguments["source"]
    steps("parse")
    with time_limit(arguments["parse_seconds"]):
        data = read_input(source["path"]) if "path" in source else blobs[0]
        options = ImportOptions(**arguments["import_options"])
        module = parse_bytes(
            data, create_context(), source["file"], options, path=source.get("path")
        )
    steps("plan")
    batched = None
    if options.batch == "dynamic":
        with in_context_of(module.operation):
            batched = keep_element(module.operation)
    _run(module, LegalizeTorch(), UpstreamPass("inline"), *map(UpstreamPass, _CLEANUP))
    with in_context_of(module.operation):
        fold_program(module.operation)
    _run(module, *map(UpstreamPass, _CLEANUP))
    prepared = _bytecode(module)
    with in_context_of(module.operation):
        plan = plan_of(module.operation, arguments["select"], static=arguments["static"])
        description = {**_description(plan), "batched": batched, "means": _means(plan)}
        return_values(
            plan.function, [*plan.observed_values, *(value for _, _, value in plan.reported)]
        )
    return description, [prepared, _bytecode(module)]


def quantize(arguments: dict[str, Any], blobs: list[bytes], steps: ReportStep) -> Answer:
    """Quantize a prepared program by the ranges of its groups, or by the moments of inputs.

    The blobs after the program are matrices of moments. Those of the answer are the quantized
    program, and one that also returns the ends of the layers.
    """
    steps("quantize")
    module = parse_bytecode(blobs[0], create_context())
    static = arguments["static"]
    with in_context_of(module.operation):
        plan = plan_of(module.operation, arguments["select"], static=static)
        parameters = [parameters_of_range(*each) for each in arguments["ranges"]]
        moments = {} if static else _moments(plan, arguments["tokens"], blobs[1:])
        means = _means_of(plan, blobs[1:]) if static else {}
        reasons = _quantize_layers(plan, parameters, moments, means, arguments)
        ends = [value for _, _, value in plan.reported]
        if static:
            dequantized = quantize_values(plan, parameters)
            ends = [dequantized.get(value, value) for value in ends]
        count = len(plan.function.attributes["function_type"].value.results)
        return_values(plan.function, ends)
    if static:
        _run(module, UpstreamPass("cse"), LegalizeQdqToQuantizedOp())
    _run(module, UpstreamPass("cse"))
    reported = _bytecode(module)
    with in_context_of(module.operation):
        return_values(plan.function, (), count)
        if arguments["batched"] is not None:
            write_batch_loop(plan.function, arguments["batched"])
    _run(module, UpstreamPass("cse"), UpstreamPass("symbol-dce"))
    return reasons, [_bytecode(module), reported]


def write(arguments: dict[str, Any], blobs: list[bytes], steps: ReportStep) -> Answer:
    """Write the constants of a program to an archive; return the program as text, as the blob."""
    steps("write")
    module = parse_bytecode(blobs[0], create_context())
    _run(module, PackNarrowStorage())  # an archive has whole bytes
    with program_archive(arguments["archive"], {}) as archive:
        archive.finish(module)
    return None, [(str(module) + "\n").encode()]


def _run(module: ir.Module, *passes: ModulePass) -> None:
    run_pipeline(module, passes)


def _bytecode(module: ir.Module) -> bytes:
    buffer = io.BytesIO()
    module.operation.write_bytecode(buffer)
    return buffer.getvalue()


def _moments(plan: Plan, tokens: int, matrices: Sequence[bytes]) -> dict[Value, InputMoments]:
    """Return the moments of inputs, which are the groups of a plan; none without matrices."""
    moments = {}
    for [value], matrix in zip(plan.groups, matrices, strict=True) if matrices else ():
        size = int(value.type.shape[1])
        square = np.frombuffer(matrix, np.float32).reshape((size, size))
        moments[value] = InputMoments(square, tokens)
    return moments


def _means(plan: Plan) -> list[tuple[int, list[int]]]:
    """Return the number of the observed value whose mean corrects a bias, and the mean's axes."""
    if not plan.quantized_uses:  # float activations
        return []
    numbers = {value: number for number, value in enumerate(plan.observed_values)}
    layers = corrected_layers(plan, ModuleGlobals(plan.function.operation.parent.operation))
    return [(numbers[layer.op.operands[0]], input_axes(layer)) for layer in layers]


def _means_of(plan: Plan, means: Sequence[bytes]) -> dict[Operation, Array]:
    """Return the mean inputs of layers with a bias, whose order is that of `_means`."""
    module_globals = ModuleGlobals(plan.function.operation.parent.operation)
    layers = corrected_layers(plan, module_globals)
    return {
        layer.op: np.frombuffer(data, np.float64).reshape(
            [int(layer.op.operands[0].type.shape[axis]) for axis in input_axes(layer)]
        )
        for layer, data in zip(layers, means, strict=True)
    }


def _quantize_layers(
    plan: Plan,
    parameters: Sequence[QuantizationParameters],
    moments: Mapping[Value, InputMoments],
    means: Mapping[Operation, Array],
    arguments: dict[str, Any],
) -> dict[str, str]:
    """Quantize weights, and correct biases; return the reasons of layers that stay float."""
    parameters_of = {
        value: each
        for group, each in zip(plan.groups, parameters, strict=bool(parameters))
        for value in group
    }
    module_globals, reasons = ModuleGlobals(plan.function.operation.parent.operation), {}
    for layer in plan.layers:
        if not layer.is_quantized:
            continue
        weight = constant_elements(layer.op.operands[1], module_globals)
        assert weight is not None  # `_why_float`
        if arguments["static"]:
            quantized = quantize_per_channel(weight, layer.weight_axis)
            if layer.op in means:
                correct_bias(layer, weight, quantized, means[layer.op], module_globals)
            quantize_weight(layer, quantized, DEQUANTIZE)
            if layer.end not in parameters_of:
                dequantize_accumulators(layer, parameters_of[layer.op.operands[0]], quantized)
            continue
        if layer.block_axis is None:
            reasons[layer.name] = "it contracts several axes"
            continue
        try:
            quantized = quantize_in_blocks(
                weight,
                layer.block_axis,
                arguments["block_size"],
                arguments["bits"],
                moments.get(layer.op.operands[0]) if layer.multiplies_rows else None,
            )
        except UsageError as error:
            reasons[layer.name] = error.message
        else:
            quantize_weight(layer, quantized, "quant.dcast")
    return reasons


def _description(plan: Plan) -> dict[str, Any]:
    """Describe a plan as JSON: layers, groups, and reported values."""
    layer_of = {layer.op: layer for layer in plan.layers}
    reported = []
    for name, op, value in plan.reported:
        layer = layer_of.get(op)
        is_integer = value in plan.quantized_uses
        reported.append(
            {
                "name": name,
                "op": "mean" if op in plan.sum_of else op.name.removeprefix("stablehlo."),
                "shape": [int(n) for n in op.results[0].type.shape],
                "weight": [] if layer is None else [int(n) for n in op.operands[1].type.shape],
                "why_float": "" if layer is None else layer.why_float,
                "result": "int8" if is_integer else "f32",
            }
        )
    nested = [
        {
            "name": name_of(op),
            "op": op.name.removeprefix("stablehlo."),
            "shape": [int(n) for n in op.results[0].type.shape],
            "weight": [],
            "why_float": "it is in a loop or a branch",
            "result": "f32",
        }
        for op in plan.nested
    ]
    return {
        "nested": nested,
        "function": plan.function.attributes["sym_name"].value,
        "results": len(plan.function.attributes["function_type"].value.results),
        "observed": [len(numbers) for numbers in plan.observed],
        "reported": reported,
    }
