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

from collections.abc import Sequence

from ..errors import UsageError
from ..formats.imatrix import ImportanceMatrix, read_imatrix
from ..layouts import InferenceTensor, QuantizedTensor
from ..models.configuration import Configuration, expected_tensors
from ..models.memory import return_free_memory
from ..models.source import ModelSource
from ..numerics.element_types import Array
from ..weights.quantizing import LayerError, WeightQuantization, chosen
from ..weights.sources import add_tokenizer
from ..weights.theta import Dataset, Theta
from .block_quantizer import BlockQuantizer, LayerQuantizer
from .block_runner import BlockRunner
from .finished_blocks import FinishedBlocks
from .layer import Calibration, OnLayer, compared_chunks
from .layer_effects import choose_quantizations
from .outputs import (
    Output,
    check_int8,
    check_output_format,
    check_source,
    grid_of_output,
)
from .texts import CutTexts
from .vocabulary_layers import quantize_vocabulary_layer, vocabulary_layers
from .worker_threads import WorkerThreads


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
    _check_options(how, calibration, output, has_moments=bool(chunks) and imatrix is None)
    configuration = source.configuration
    names = _layer_names(configuration, experts=calibration.method not in ("auto", "smoothquant"))
    selected = chosen([source.tensors[name].name for name in names], select)
    names = [name for name in names if source.tensors[name].name in selected]
    _check_layers([source.tensors[name] for name in names], how, calibration)
    vocabulary = vocabulary_layers(source, how, calibration, output)
    importance = {} if imatrix is None else _importance(imatrix, source, names)
    scales_of = calibration.scales_of(*grid_of_output(how, output))
    layers = LayerQuantizer(how, calibration, output, importance, len(names), on_layer)
    replaced: dict[str, InferenceTensor] = {}
    errors: list[LayerError] = []
    finished_blocks = [] if finished is None else finished.blocks()
    for tensors, block_errors in finished_blocks:
        replaced |= {each.name: each for each in tensors}
        errors += block_errors
    layers.reported = len(errors)
    with WorkerThreads(threads) as workers:
        if finished is not None and finished.choices is not None:
            layers.settings = finished.choices
        elif calibration.bits_average is not None:
            by_name = choose_quantizations(
                source, names, BlockRunner(source, chunks, workers), how, output,
                calibration.bits_average, workers, on_layer, finished,
            )  # fmt: skip
            layers.settings = {source.tensors[name].name: each for name, each in by_name.items()}
            if finished is not None:
                finished.add_choices(layers.settings)
        blocks = BlockQuantizer(
            source,
            BlockRunner(source, [*chunks, *held_out], workers),
            workers,
            layers,
            names,
            scales_of,
            len(chunks),
        )
        if finished is not None and finished_blocks:
            blocks.resume(finished.states())
        else:
            blocks.start(len(compared_chunks(chunks, calibration)))
        source.release_pages()
        for number in range(len(finished_blocks), configuration.blocks):
            changed, block_errors = blocks.quantize(number)
            if finished is not None:
                finished.add(changed, block_errors, [*blocks.states, *blocks.float_states])
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


def _check_options(
    how: WeightQuantization, calibration: Calibration, output: Output, *, has_moments: bool
) -> None:
    """Refuse options that do not go together; UsageError."""
    if calibration.method == "smoothquant":
        check_int8(how, output)
    elif how.granularity != "block":
        raise UsageError("calibrated layers have a scale for each block; use --granularity block")
    elif calibration.bits_average is None:
        check_output_format(how, output)
    if calibration.method in ("auto", "awq", "smoothquant") and not has_moments:
        raise UsageError(
            f"--method {calibration.method} needs a text to calibrate with, and no importance "
            "matrix"
        )


def _importance(
    imatrix: ImportanceMatrix, source: ModelSource, names: Sequence[str]
) -> dict[str, Array]:
    """Return the importance of the inputs of layers by the names of their tensors in the file."""
    importance = {}
    for name in names:
        tensor = source.tensors[name]
        *experts, _, k = tensor.shape
        importance[tensor.name] = imatrix.of(name, *experts, k)
    return importance


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
