"""Quantization of a language model, block by block, by the inputs of its layers.

The calibration tokens go through the model, one block after the other. The second moments of the
inputs of a layer, in floats, decide its integers. The tokens then go through the quantized block to
the next one. The first half of the tokens goes through the float model, too, and by GPTQ each layer
makes up for a share of the errors that quantized earlier blocks have left in its inputs::

    X = F = embeddings of the tokens
    for each block:
        H = X_l^T X_l of the inputs X_l of each linear layer l, with X and the weights in floats
        D = (F_l - X_l)^T X_l, with the inputs F_l for F
        quantize the layers by H and D
        X = block(X), with the quantized weights
        F = block(F), with the weights in floats

Memory holds the weights of one block in floats, its moments, and the hidden states of all tokens.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from ..errors import UsageError
from ..formats.imatrix import ImportanceMatrix, read_imatrix
from ..layouts import InferenceTensor, PrimitiveTensor, QuantizedTensor
from ..models.configuration import Configuration, expected_tensors
from ..models.memory import return_free_memory
from ..models.source import ModelSource
from ..numerics.element_types import Array
from ..weights.quantizing import LayerError, WeightQuantization, chosen, layer_error
from ..weights.sources import add_tokenizer
from ..weights.theta import Dataset, Theta
from .block_runner import BlockRunner
from .expert_layers import ExpertLayer, is_expert_layer, quantize_experts
from .finished_blocks import FinishedBlocks
from .folding import fold_into
from .gptq import output_errors
from .layer import Calibration, compared_chunks
from .layer_effects import choose_quantizations
from .moments import BlockMoments, InputMoments
from .outputs import (
    Output,
    check_int8,
    check_output_format,
    check_source,
    grid_of_output,
    quantized_layer,
)
from .texts import CutTexts
from .vocabulary_layers import quantize_vocabulary_layer, vocabulary_layers
from .worker_threads import WorkerThreads

OnLayer = Callable[[int, int, str], None]
"""Called before each layer with its number, from 0, the count of layers, and its name."""


def calibrated(
    source: ModelSource,
    texts: CutTexts,
    how: WeightQuantization,
    calibration: Calibration,
    select: str = "",
    on_layer: OnLayer = lambda number, count, name: None,
    *,
    output: Output = "archive",
    threads: int | None = None,
    finished: FinishedBlocks | None = None,
) -> tuple[Dataset, list[LayerError]]:
    """Quantize the model of a file or folder; see `quantize_language_model`.

    The result has the model's vocabulary, so that an archive of it is a model.

    Args:
        source: opened with the lists of its vocabulary.
        texts: without chunks to calibrate with, layers are rounded to nearest, with the weights of
            an importance matrix if there is one.

    Raises:
        SubquantError: as `check_source`, `read_imatrix` and `quantize_language_model`.
    """
    check_source(source.path, output)
    imatrix = read_imatrix(calibration.imatrix) if calibration.imatrix else None
    dataset, errors = quantize_language_model(
        source, texts.calibration, how, calibration, select, on_layer,
        output=output, imatrix=imatrix, held_out=texts.held_out, threads=threads, finished=finished,
    )  # fmt: skip
    add_tokenizer(dataset, source.path)
    return dataset, errors


def quantize_language_model(
    source: ModelSource,
    chunks: Sequence[Array],
    how: WeightQuantization,
    calibration: Calibration | None = None,
    select: str = "",
    on_layer: OnLayer = lambda number, count, name: None,
    *,
    output: Output = "archive",
    imatrix: ImportanceMatrix | None = None,
    held_out: Sequence[Array] = (),
    threads: int | None = None,
    finished: FinishedBlocks | None = None,
) -> tuple[Dataset, list[LayerError]]:
    """Quantize the linear layers of a model's blocks; return the model, and each layer's errors.

    Norms and routers stay as they are. The table of embeddings and the output layer stay, too,
    unless `calibration` has a type for them, and the experts of a mixture do by ``auto`` and
    ``smoothquant``. By ``awq``, no scales are folded into experts.

    Args:
        chunks: calibration tokens, int32 ``[T]`` each, which go through the model alone; none to
            round to nearest.
        select: as that of `quantize_weights`.
        output: the format that the layers are packed for.
        imatrix: weights of the inputs in the search for scales, in place of the chunks' moments.
        held_out: other chunks, whose errors of outputs are measured, too.
        threads: the number of threads, by default one for each core; results do not depend on it.
        finished: the folder of blocks that an earlier run has finished; this run adds its own.

    Raises:
        InputError: the importance matrix has no entry for a layer, or one of another size.
        UsageError: blocks do not divide a layer's inputs; a layer is quantized already, and
            `calibration` does not ask for another quantization; a granularity other than blocks; or
            a `select` that matches no layer.
    """
    calibration = calibration or Calibration()
    average = calibration.bits_average
    if calibration.method == "smoothquant":
        check_int8(how, output)
    elif how.granularity != "block":
        raise UsageError("calibrated layers have a scale for each block; use --granularity block")
    elif average is None:
        check_output_format(how, output)
    if calibration.method in ("auto", "awq", "smoothquant") and (imatrix is not None or not chunks):
        raise UsageError(
            f"--method {calibration.method} needs a text to calibrate with, and no importance "
            "matrix"
        )
    configuration = source.configuration
    names = _layer_names(configuration, experts=calibration.method not in ("auto", "smoothquant"))
    selected = chosen([source.tensors[name].name for name in names], select)
    names = [name for name in names if source.tensors[name].name in selected]
    _check_layers([source.tensors[name] for name in names], how, calibration)
    vocabulary = vocabulary_layers(source, how, calibration, output)
    grid_how, kind = grid_of_output(how, output)
    scales_of = calibration.scales_of(grid_how, kind)
    importance: dict[str, Array] = {}
    if imatrix is not None:
        for name in names:
            *experts, _, depth = source.tensors[name].shape
            importance[source.tensors[name].name] = imatrix.of(name, *experts, depth)
    settings: dict[str, WeightQuantization] = {}
    replaced: dict[str, InferenceTensor] = {}
    errors: list[LayerError] = []
    finished_blocks = [] if finished is None else finished.blocks()
    for tensors, block_errors in finished_blocks:
        replaced |= {each.name: each for each in tensors}
        errors += block_errors
    numbers = itertools.count(len(errors))

    def quantize_matrix(
        name: str, weight: Array, inputs: InputMoments | None, importance: Array | None
    ) -> tuple[QuantizedTensor, Array]:
        layer_how = settings.get(name, how)
        return quantized_layer(
            name, weight, layer_how, output, calibration.layer_method, inputs, importance
        )

    def quantize(
        name: str, weight: Array, inputs: InputMoments | None, held_out_inputs: InputMoments | None
    ) -> _QuantizedLayer:
        on_layer(next(numbers), len(names), name)
        start = time.perf_counter()
        tensor, values = quantize_matrix(name, weight, inputs, importance.get(name))
        seconds = time.perf_counter() - start
        matrices = {
            tokens: each.matrix
            for tokens, each in (("calibration", inputs), ("held out", held_out_inputs))
            if each is not None
        }
        relative = output_errors(weight, values, list(matrices.values()))
        by_tokens = dict(zip(matrices, relative, strict=True))
        error = replace(
            layer_error(tensor, weight),
            output_error=by_tokens.get("calibration"),
            held_out_error=by_tokens.get("held out"),
            seconds=seconds,
        )
        return _QuantizedLayer([tensor], values, error)

    with WorkerThreads(threads) as workers:
        if finished is not None and finished.choices is not None:
            settings = finished.choices
        elif average is not None:
            by_name = choose_quantizations(
                source, names, BlockRunner(source, chunks, workers), how, output, average, workers,
                on_layer, finished,
            )  # fmt: skip
            settings = {source.tensors[name].name: each for name, each in by_name.items()}
            if finished is not None:
                finished.add_choices(settings)
        runner = BlockRunner(source, [*chunks, *held_out], workers)
        states = finished.states() if finished and finished_blocks else runner.embeddings()
        compared = compared_chunks(chunks, calibration)
        count = len(chunks) + len(held_out)
        float_states = states[count:] if finished_blocks else states[: len(compared)]
        states = states[:count]
        source.release_pages()
        for number in range(len(finished_blocks), configuration.blocks):
            changed: list[InferenceTensor] = []
            block_errors = []
            prefix = f"blk.{number}."
            block = runner.weights(number)
            moments: BlockMoments | None = None
            if float_states:
                moments, float_states = runner.moments_and_errors(
                    number, block, states[: len(chunks)], float_states
                )
            elif chunks:
                moments = runner.moments(number, block, states[: len(chunks)])
            tensor_names = {
                name.removeprefix(prefix): source.tensors[name].name
                for name in names
                if name.startswith(prefix)
            }
            if scales_of is not None and moments is not None:
                layer_names = {part.removesuffix(".weight") for part in tensor_names}
                stored = {part: source.tensors[prefix + part] for part in block}
                changed += fold_into(
                    configuration, block, stored, moments, layer_names, scales_of, workers
                )
            held_out_moments = (  # with scales that are folded into the block
                runner.moments(number, block, states[len(chunks) :]) if held_out else None
            )
            return_free_memory()
            expert_parts = [part for part in tensor_names if is_expert_layer(part)]
            of_experts = {part: tensor_names.pop(part) for part in expert_parts}
            both_moments = moments, held_out_moments
            layers: list[tuple[str, _QuantizedLayer | ExpertLayer]] = []
            layers += _quantized_block(block, tensor_names, both_moments, quantize, workers)
            if of_experts:
                for name in of_experts.values():
                    on_layer(next(numbers), len(names), name)
                layers += quantize_experts(
                    block, of_experts, both_moments, importance, quantize_matrix, workers
                )
            for part, layer in layers:
                changed += layer.tensors
                block[part] = PrimitiveTensor(layer.values, part)
                block_errors.append(layer.error)
            if number + 1 < configuration.blocks:
                states = runner.run(number, block, states)
            if finished is not None:
                finished.add(changed, block_errors, [*states, *float_states])
            replaced |= {each.name: each for each in changed}
            errors += block_errors
            source.release_pages()
            return_free_memory()
    for table in vocabulary:
        tensor, error = quantize_vocabulary_layer(table, output, imatrix)
        replaced[tensor.name] = tensor
        errors.append(error)
        source.release_pages()
    flat = source.dataset.theta.flatten()
    return Dataset(source.properties, Theta(flat | replaced)), errors


class _QuantizedLayer(NamedTuple):
    """A packed layer, its values in floats, and its error."""

    tensors: list[QuantizedTensor]
    values: Array
    error: LayerError


def _quantized_block(
    block: Mapping[str, InferenceTensor],
    names: Mapping[str, str],
    moments: tuple[BlockMoments | None, BlockMoments | None],
    quantize: Callable[[str, Array, InputMoments | None, InputMoments | None], _QuantizedLayer],
    workers: WorkerThreads,
) -> list[tuple[str, _QuantizedLayer]]:
    """Quantize the layers of a block; a thread takes the layers with one input.

    Args:
        names: names of the weights by their names in the block.
        moments: those for the tokens of the calibration, and for held-out tokens.
    """
    first_names = next((each.first_names for each in moments if each is not None), {})
    groups: dict[str, list[str]] = {}
    for name in names:
        layer = name.removesuffix(".weight")
        groups.setdefault(first_names.get(layer, layer), []).append(name)

    def quantize_group(group: tuple[str, list[str]]) -> list[tuple[str, _QuantizedLayer]]:
        first_name, members = group
        inputs, held_out_inputs = (
            None if each is None else each.pop(first_name) for each in moments
        )
        layers = []
        for name in members:
            tensor = block[name]
            assert isinstance(tensor, PrimitiveTensor)  # `BlockRunner.weights`
            layers.append((name, quantize(names[name], tensor.array, inputs, held_out_inputs)))
        return layers

    # The last layers take the longest, so they are begun first.
    quantized = workers.map(quantize_group, reversed(groups.items()))
    return list(itertools.chain.from_iterable(reversed(quantized)))


def _layer_names(configuration: Configuration, *, experts: bool) -> list[str]:
    """Return the names of the weights of linear layers in blocks, in order of computation."""
    ranks = (2, 3) if experts else (2,)
    return [
        name
        for name, shape in expected_tensors(configuration).items()
        if name.startswith("blk.")
        and len(shape) in ranks
        and not name.endswith("ffn_gate_inp.weight")
    ]


def _check_layers(
    tensors: Sequence[InferenceTensor], how: WeightQuantization, calibration: Calibration
) -> None:
    """Refuse layers that are quantized already, or that blocks do not divide; UsageError."""
    for tensor in tensors:
        if how.granularity == "block" and tensor.shape[-1] % how.block_size:
            raise UsageError(
                f"tensor '{tensor.name}' has {tensor.shape[-1]} inputs, which blocks of "
                f"{how.block_size} do not divide; give another --block-size"
            )
        if not isinstance(tensor, QuantizedTensor):
            continue
        if tensor.activations is not None:
            raise UsageError(
                f"tensor '{tensor.name}' is quantized for rounded inputs; calibrate a model of "
                "float weights"
            )
        if not calibration.requantize:
            raise UsageError(
                f"tensor '{tensor.name}' is quantized already; calibrate a model of float weights, "
                "or quantize its dequantized weights by --requantize"
            )
