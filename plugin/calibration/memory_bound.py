"""Bound of the memory that a calibration takes, from the shapes of a model.

A block has ``W`` weights in layers ``[N, K]``. Group ``i`` of layers with one input has ``K_i``
inputs. A chunk has ``T`` tokens, and ``S`` scores of attention. The bound in numbers of 4 bytes::

    moments        W + 3 sum K_i**2 + 2 T' sum K_i + greatest(K_i**2 + T' K_i) + threads F
    quantization  3 W + 3 sum K_i**2 + greatest(max over N of (4 K_i**2, 2 K_i**2 + 8 N K_i))
    experts        W + 3 sum K_i**2 + R, and 3 W + 3 sum K_i**2 + R + threads E
    forward pass   F = T (4 width + 8 hidden) + 4 S
    report        2 W + threads F + 8 L

``greatest`` is the sum for the groups with the greatest numbers, one for each thread. ``T'`` are
the tokens of the chunks that are in memory together, and ``L`` the logits that are. The three sums
of ``K_i**2`` are for calibration tokens, for held-out tokens, and for the errors of the inputs of
GPTQ; other methods have two. The factor of moments takes ``4 K**2``: the damped matrix, its
Cholesky factor in float64, and that in float32. A block with experts has the inputs ``R`` of its
experts in memory, ``width + chosen hidden`` for each token, and for each thread ``E``, the inputs
and the moments of one expert. The greatest step counts, with the hidden states of all tokens before
and after a block, for GPTQ also those of the float model, or the greatest tensor of the file, which
is read, and unpacked for an archive, when it is written. The quantized layers, and the peak of the
process before the calibration, are added to it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..errors import InputError
from ..isolation.limits import machine_memory
from ..layouts.ggml import BLOCK_TYPES
from ..models.configuration import expected_tensors
from ..models.memory import peak_memory
from ..models.source import ModelSource
from ..weights.quantizing import WeightQuantization
from .block_runner import CHUNKS_AT_ONCE
from .layer import Calibration, compared_chunks
from .layer_effects import LIKELIEST_TOKENS
from .outputs import Output, ggml_type_of
from .report import LOGITS_AT_ONCE
from .texts import CutTexts
from .vocabulary_layers import vocabulary_layers
from .worker_threads import WorkerThreads

_SHARED_INPUTS = {"attn_k": "attn_q", "attn_v": "attn_q", "ffn_up": "ffn_gate"}
"""The layer with the same input, by the name of a layer."""
_PROCESS_BYTES = 96 << 20
"""Small arrays, fragments of the heap, and pages of files that are read."""


def check_memory(bound: int) -> None:
    """Refuse a calibration that may take more than the memory of this machine; InputError."""
    memory = machine_memory()
    if memory is not None and bound > memory:
        raise InputError(
            f"the calibration takes up to {bound / 2**30:,.1f} GiB of memory, and this machine has "
            f"{memory / 2**30:,.1f} GiB; give fewer --threads or --calibration-tokens"
        )


def memory_bound(
    source: ModelSource,
    texts: CutTexts,
    how: WeightQuantization,
    calibration: Calibration,
    output: Output,
    threads: int | None,
) -> int:
    """Return the bytes that the process takes at most, see above.

    The arguments are those of `calibrated`.

    Raises:
        UsageError: the number of threads is less than 1.
    """
    configuration = source.configuration
    shapes = expected_tensors(configuration)
    threads = WorkerThreads(threads).count
    chunks = [*texts.calibration, *texts.held_out]
    length, tokens = max(map(len, chunks), default=0), sum(map(len, chunks))
    at_once = length * min(CHUNKS_AT_ONCE, len(chunks))
    width = configuration.width
    scores = configuration.heads * length**2
    compared = sum(map(len, compared_chunks(texts.calibration, calibration)))
    forward = length * (4 * width + 8 * configuration.hidden) + 4 * scores
    elements_of_layers, steps, report = 0, [0], 0
    for number in range(configuration.blocks):
        prefix = f"blk.{number}."
        block = {name: shape for name, shape in shapes.items() if name.startswith(prefix)}
        layers = {
            name.removeprefix(prefix).removesuffix(".weight"): shape
            for name, shape in block.items()
            if len(shape) == 2
        }
        of_experts = [shape for shape in block.values() if len(shape) == 3]
        weights = sum(map(math.prod, block.values()))
        elements_of_layers += sum(map(math.prod, [*layers.values(), *of_experts]))
        groups: dict[str, list[tuple[int, ...]]] = {}
        for name, shape in layers.items():
            first = _SHARED_INPUTS.get(name, name)
            groups.setdefault(first if first in layers else name, []).append(shape)
        inputs = [shapes[0][1] for shapes in groups.values()]
        products = (3 if compared else 2) * sum(k**2 for k in inputs)
        updates = [k**2 + at_once * k for k in inputs]
        moments = weights + products + 2 * at_once * sum(inputs)
        moments += _greatest(updates, threads) + threads * forward
        work = [
            max(max(4 * k * k, 2 * k * k + 8 * n * k) for n, k in shapes)
            for shapes in groups.values()
        ]
        report = max(report, 2 * weights + threads * forward + 8 * LOGITS_AT_ONCE)
        if of_experts and configuration.experts is not None:
            routed = width + configuration.experts.chosen * configuration.experts.hidden
            products += tokens * routed
            moments += tokens * routed
            depths = [(n, k, tokens * k) for _, n, k in of_experts]
            most = max(max(5 * k * k, 3 * k * k + 8 * n * k) + rows for n, k, rows in depths)
            work = [most] * threads
        steps.append(max(moments, 3 * weights + products + _greatest(work, threads)))
    floats = max(steps) + 2 * (tokens + compared) * width
    if calibration.method == "auto":
        # Hidden states of one chunk for each layer of a block, and logits of its likeliest tokens.
        floats += 2 * len(shapes) // configuration.blocks * length * width
        vocabulary = configuration.vocabulary
        floats += min(vocabulary, LIKELIEST_TOKENS * length) * (width + 8 * length)
        floats += 8 * min(LOGITS_AT_ONCE, vocabulary * length)
    if texts.held_out:
        floats = max(floats, report + 4 * tokens * width)
    stored = [tensor.size_in_bytes for tensor in source.tensors.values()]
    quantized = int(elements_of_layers * _bits(how, calibration, output) / 8)
    for layer in vocabulary_layers(source, how, calibration, output):
        quantized += int(
            math.prod(layer.tensor.shape) * _bits(layer.how, Calibration(), output) / 8
        )
    written = max(stored) * (2 if output == "archive" else 1)
    return (peak_memory() or 0) + _PROCESS_BYTES + max(4 * floats, written) + quantized


def _greatest(numbers: Sequence[int], count: int) -> int:
    """Return the sum of the greatest numbers."""
    return sum(sorted(numbers, reverse=True)[:count])


def _bits(how: WeightQuantization, calibration: Calibration, output: Output) -> float:
    """Return the bits of an element of a quantized layer in memory, with scales."""
    if calibration.bits_average is not None:
        return calibration.bits_average
    block = BLOCK_TYPES.get(ggml_type_of(how)) if output == "gguf" else None
    if block is not None:
        return 8 * block.block.itemsize / block.size
    bits = how.bits + (16 + how.bits) / how.block_size  # scales and zero points
    return bits + 8 if output == "checkpoint" else bits  # packed, and as integers of 8 bits
