"""Post-training quantization of a network.

A float program is prepared and planned (`network_child.analyze`), compiled, and run on the
calibration inputs; histograms of the planned values give their ranges. `network_child.quantize`
writes the quantized program. Held-out inputs measure the error of each layer.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from ...compiler.compilation import compile_to_bytes
from ...compiler.mlir_client import Source, ask, input_of
from ...core.files import write_atomically
from ...errors import InputError, UsageError
from ...importers.options import ImportOptions
from ...numerics.element_types import Array
from ...runtime import Device, Executable
from ...runtime.function import Function
from .histogram import Histogram
from .inputs import CalibrationInputs, InputSource
from .options import NetworkQuantization
from .ranges import range_of
from .report import LayerReport, NoiseMeter

__all__ = ["LayerReport", "QuantizedNetwork", "quantize_network"]

_CHILD = "subquant.calibration.networks.network_child"


@runtime_checkable
class Exported(Protocol):
    """A module that is MLIR bytecode, such as `subquant.torch.ExportedModule`."""

    bytecode: bytes


@dataclass(frozen=True)
class QuantizedNetwork:
    """A quantized program.

    Attributes:
        bytecode: the program with its constants, as MLIR bytecode; `subquant.compile` takes it.
        float_bytecode: the float program that it was made of, prepared; of a dynamic batch, the
            program of one element.
        layers: a row for each layer.
        outputs: signal to quantization noise of each result in decibels; None if not measured.
        calibration_batches, held_out_batches: the numbers of batches.
    """

    bytecode: bytes
    float_bytecode: bytes
    layers: tuple[LayerReport, ...]
    outputs: tuple[float | None, ...]
    calibration_batches: int
    held_out_batches: int

    def save(self, path: str | os.PathLike[str]) -> str:
        """Write the program as text, and its constants beside it as ``.irpa``; return that path."""
        program = os.fspath(path)
        if not program.endswith(".mlir"):
            raise UsageError(f"expected an output that ends in .mlir, got '{program}'")
        archive = program.removesuffix(".mlir") + ".irpa"
        request = {"archive": os.path.abspath(archive)}
        _, blobs = ask(f"{_CHILD}:write", input_of(self.bytecode), request)
        write_atomically(program, blobs[0])
        return archive


def quantize_network(
    source: Source | Exported,
    inputs: InputSource | None = None,
    *,
    select: str = "",
    batch: str | int = "",
    dims: Sequence[str] = (),
    threads: int | None = None,
    on_step: Callable[[str], object] = lambda step: None,
    **options: Any,
) -> QuantizedNetwork:
    """Quantize a float network.

    Args:
        source: a path or the bytes of an ``.onnx``, ``.tflite``, ``.pt2`` or ``.mlir`` file, or a
            module that `subquant.torch.export` returned.
        inputs: calibration inputs: a folder (`subquant.calibration.networks.inputs`), arrays by
            name, or an array for each input of the network; None with float activations.
        select: a regular expression; layers whose name has no match stay float.
        batch: the batch size, if the model leaves it open: a number, or ``dynamic`` for a program
            that takes any. It is then calibrated with one sample at a time.
        dims: the sizes of other dimensions that it leaves open, as ``name=N``.
        threads: the number of CPU threads that run the float and the quantized program.
        on_step: called with a line about each step.
        **options: fields of `NetworkQuantization`.

    Raises:
        SubquantError: the model or the inputs are wrong or not supported.
    """
    how = NetworkQuantization(**options)
    static = how.activations == "static"
    if static and inputs is None:
        raise UsageError("static activations need calibration inputs; give a folder of samples")
    import_options = ImportOptions(batch=str(batch), dims=tuple(dims))
    on_step("import")
    request: dict[str, Any] = {"select": select, "static": static}
    module = input_of(source.bytecode if isinstance(source, Exported) else source)
    described, (prepared, tapped) = ask(
        f"{_CHILD}:analyze", module, {**request, "import_options": asdict(import_options)}
    )
    _check_layers(described)
    samples, ranges, tokens = None, [], 0
    moments, means = list[Array](), _Means(described["means"])
    if inputs is not None:
        device = Device("llvm-cpu", threads=threads)
        run = _Program(tapped, described, device, on_step)
        samples = CalibrationInputs(inputs, run.inputs)
        calibration, held_out = samples.split(how.held_out)
    if static and samples is not None:
        measured = _measured(run, samples, calibration, described, on_step)
        histograms = _histograms(described["observed"], map(means.add, measured))
        ranges = [range_of(each, how.calibration, how.percentile) for each in histograms]
    elif samples is not None:
        moments, tokens = _moments(_measured(run, samples, calibration, described, on_step))
    on_step("quantize")
    reasons, (quantized, reporting) = ask(
        f"{_CHILD}:quantize",
        input_of(prepared),
        {
            **request,
            "batched": described["batched"],
            "ranges": ranges,
            "tokens": tokens,
            "bits": how.bits,
            "block_size": how.block_size,
        },
        [each.tobytes() for each in (means.arrays() if static else moments)],
    )
    noise, count = None, described["results"]
    if samples is not None and held_out:
        reported = _Program(reporting, described, device, on_step)
        noise = _noise(run, reported, map(samples.batch, held_out), described)

    def sqnr(index: int) -> float | None:
        return None if noise is None else noise.sqnr(index)

    return QuantizedNetwork(
        quantized,
        prepared,
        tuple(
            _row(row, reasons, how, sqnr(count + number))
            for number, row in enumerate(described["reported"])
        )
        + tuple(_row(row, {}, how, None) for row in described["nested"]),
        tuple(sqnr(number) for number in range(count)),
        0 if samples is None else len(calibration),
        0 if samples is None else len(held_out),
    )


def _noise(
    run: _Program, reported: _Program, batches: Iterable[list[Array]], described: dict[str, Any]
) -> NoiseMeter:
    """Compare the results and layers of the quantized program with those of the float one."""
    count, observed = described["results"], sum(described["observed"])
    noise = NoiseMeter(count + len(described["reported"]))
    for arguments in batches:
        floats, integers = run(arguments), reported(arguments)
        noise.add([*floats[:count], *floats[count + observed :]], integers)
    return noise


def _check_layers(described: dict[str, Any]) -> None:
    """Raise InputError, with the reasons, if no layer can be quantized."""
    rows = [*described["reported"], *described["nested"]]
    if any(row["weight"] and not row["why_float"] for row in rows):
        return
    reasons = [f"{row['name']}: {row['why_float']}" for row in rows if row["why_float"]]
    listed = "; ".join(reasons[:3]) or "it has no product or convolution"
    raise InputError(f"the network has no layer that can be quantized: {listed}")


class _Program:
    """A compiled program that returns values of its plan."""

    def __init__(
        self,
        bytecode: bytes,
        described: dict[str, Any],
        device: Device,
        on_step: Callable[[str], object],
    ) -> None:
        on_step("compile")
        executable = Executable(compile_to_bytes(bytecode), device)
        self._function: Function = executable[described["function"]]
        signature = self._function.signature
        assert signature is not None  # compiled here
        self.inputs = signature.inputs

    def __call__(self, arguments: Sequence[Array]) -> list[Array]:
        return self._function.invoke(arguments)


def _measured(
    run: _Program,
    samples: CalibrationInputs,
    batches: Sequence[int],
    described: dict[str, Any],
    on_step: Callable[[str], object],
) -> Iterator[list[Array]]:
    """Yield the measured values of each batch."""
    first, count = described["results"], sum(described["observed"])
    for number, index in enumerate(batches):
        on_step(f"calibrate: batch {number + 1} of {len(batches)}")
        yield run(samples.batch(index))[first : first + count]


def _histograms(counts: Sequence[int], measured: Iterable[Sequence[Array]]) -> list[Histogram]:
    """Return a histogram of the values of each group; `counts` has the values of each."""
    histograms = [Histogram() for _ in counts]
    by_value = [h for h, count in zip(histograms, counts, strict=True) for _ in range(count)]
    for results in measured:
        for histogram, values in zip(by_value, results, strict=True):
            histogram.add(values)
    return histograms


class _Means:
    """_Means of measured values.

    Args:
        values: the number of each value, and the axes that its mean has.
    """

    def __init__(self, values: Sequence[tuple[int, Sequence[int]]]) -> None:
        self._values = values
        self._totals: list[Array] = []
        self._batches = 0

    def add(self, measured: Sequence[Array]) -> Sequence[Array]:
        """Add the values of a batch, and return them."""
        means = []
        for number, axes in self._values:
            array = np.asarray(measured[number])
            moved = np.moveaxis(array, axes, range(len(axes)))
            sizes = moved.shape[: len(axes)]
            means.append(moved.reshape((*sizes, -1)).mean(-1, dtype=np.float64))
        pairs = zip(self._totals, means, strict=True)
        self._totals = [a + b for a, b in pairs] if self._batches else means
        self._batches += 1
        return measured

    def arrays(self) -> list[Array]:
        """Return the means, float64."""
        return [each / self._batches for each in self._totals]


def _moments(measured: Iterable[Sequence[Array]]) -> tuple[list[Array], int]:
    """Return ``X^T X`` of each input ``X``, float32, and the rows of the first."""
    moments: list[Array] = []
    rows = 0
    for results in measured:
        products = [each.T @ each for each in results]
        moments = [a + b for a, b in zip(moments, products, strict=True)] if moments else products
        rows += len(results[0]) if results else 0
    return moments, rows


def _row(
    row: dict[str, Any], reasons: dict[str, str], how: NetworkQuantization, sqnr: float | None
) -> LayerReport:
    why_float = row["why_float"] or reasons.get(row["name"], "")
    computes = "int8" if how.activations == "static" else f"w{how.bits}"
    return LayerReport(
        row["name"],
        row["op"],
        tuple(row["weight"] or row["shape"]),
        "f32" if why_float else computes,
        row["result"],
        why_float,
        sqnr,
    )
