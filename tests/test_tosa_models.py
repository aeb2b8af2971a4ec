"""Real int8 models through TOSA: the wake-word models of PyPI's ``pymicro-wakeword``, on IREE.

PyPI's ``tosa-converter-for-tflite`` writes the TOSA. The expected outputs, states and results of
every convolution are those of LiteRT's reference kernels: its optimized ones differ in up to 5
steps in the middle of the models. Speech comes from Debian's espeak-ng and its features from
``pymicro-features``: to random inputs the models answer 0.

LiteRT rounds a fully connected layer once, and the converter writes DOUBLE_ROUND there as for
convolutions: about one value of 2,000 differs, by one step. The step is recognised by LiteRT's
own accumulator, rounded in both ways.
"""

from __future__ import annotations

import importlib.util
import io
import json
import shutil
import subprocess
import sys
import wave
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from command_line import succeed
from devices import compile_for
from litert import LiteRt
from programs import LONG
from subquant.compiler.compilation import compile_to_bytes
from subquant.compiler.reading import parse_text
from subquant.core._mlir import in_context_of, ir
from subquant.dialects import create_context
from subquant.numerics.fixed_point import apply_scale, multiplier_and_shift
from subquant.runtime import Device, Executable
from subquant.transforms.base import walk

WORDS = {
    "alexa": "alexa",
    "hey_jarvis": "hey jarvis",
    "hey_mycroft": "hey mycroft",
    "okay_nabu": "okay nabu",
}
DETAILS = {"quantization": (26.0 / 255, -128), "shape": (1, 3, 40)}
STEPS = 500
RATE = 16_000


def needs(*packages: str) -> None:
    for package in packages:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"the package '{package}' is not installed (extra 'test', on Linux)")


def model_file(name: str) -> Path:
    needs("pymicro_wakeword")
    spec = importlib.util.find_spec("pymicro_wakeword")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "models" / f"{name}.tflite"


# -- inputs of the models -------------------------------------------------------------------------


@cache
def speech(text: str, voice: str, words_a_minute: int) -> np.ndarray[Any, Any]:
    """Synthesized speech: 16-bit samples, 16,000 a second."""
    if shutil.which("espeak-ng") is None:
        pytest.skip("espeak-ng is not installed; it is in Debian's espeak-ng")
    command = ["espeak-ng", "-v", voice, "-s", str(words_a_minute), "--stdout", text]
    sound = subprocess.run(command, capture_output=True, check=True).stdout
    with wave.open(io.BytesIO(sound)) as file:
        rate = file.getframerate()
        samples = np.frombuffer(file.readframes(len(sound)), "<i2").astype(np.float64)
    at = np.arange(int(len(samples) * RATE / rate)) * rate / RATE
    return np.interp(at, np.arange(len(samples)), samples).astype(np.int16)


def features(samples: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The spectrogram that the models were trained on: 40 reals for each 10 ms."""
    from pymicro_features import MicroFrontend

    frontend, sound, rows = MicroFrontend(), samples.tobytes(), []
    while len(sound) >= RATE // 100 * 2:
        output = frontend.process_samples(sound[: RATE // 100 * 2])
        sound = sound[output.samples_read * 2 :]
        if output.features:
            rows.append(output.features)
    return np.array(rows, np.float32)


def frames(samples: np.ndarray[Any, Any], details: dict[str, Any]) -> np.ndarray[Any, Any]:
    """The inputs of the model, one for each step: features as its input is quantized."""
    scale, zero_point = details["quantization"]
    shape = tuple(int(extent) for extent in details["shape"])
    stored = np.clip(np.rint(features(samples) / scale + zero_point), -128, 127).astype(np.int8)
    whole = len(stored) // shape[1] * shape[1]
    return stored[:whole].reshape(-1, *shape)


def sentences(word: str) -> np.ndarray[Any, Any]:
    noise = np.random.default_rng(0).normal(0, 30, RATE // 2).astype(np.int16)
    return np.concatenate([
        noise,
        speech(f"{word}.", "en", 150),
        noise,
        speech(f"{word}?", "en-us", 120),
        speech("the weather is fine today", "en", 150),
        speech(f"{word}!", "en-us+f3", 140),
        noise,
    ])  # fmt: skip


# -- LiteRT ---------------------------------------------------------------------------------------


class WatchedLiteRt(LiteRt):
    """The interpreter, and its intermediate tensors."""

    def __init__(self, path: Path) -> None:
        needs("pymicro_features")
        super().__init__(path.read_bytes())
        self.details = self._interpreter.get_input_details()[0]
        self._tensors = {each["index"]: each for each in self._interpreter.get_tensor_details()}
        contractions = ("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED")
        operations = self._interpreter._get_ops_details()
        (self._dense,) = (op for op in operations if op["op_name"] == "FULLY_CONNECTED")
        self._watched = [
            *(detail["index"] for detail in self._interpreter.get_output_details()),
            *(op["outputs"][0] for op in operations if op["op_name"] == "READ_VARIABLE"),
            *(op["outputs"][0] for op in operations if op["op_name"] in contractions),
        ]

    def step(self, frame: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
        """The outputs, the states before the step, and the results of the contractions."""
        self([frame])
        return [self.tensor(index) for index in self._watched]

    def dense_result(self, rounding: str) -> int:
        """The fully connected layer's result, from its operands, with another rounding."""
        indices = [int(index) for index in (*self._dense["inputs"], *self._dense["outputs"])]
        x, w, bias, _ = (self.tensor(index).astype(np.int64) for index in indices)
        (xs, xz), (ws, _), _, (ys, yz) = (self._tensors[i]["quantization"] for i in indices)
        accumulator = int(((x - xz) * w).sum() + bias.item())
        factor = float(np.float32(xs)) * float(np.float32(ws)) / float(np.float32(ys))
        multiplier, shift = multiplier_and_shift(factor)
        return int(apply_scale(accumulator, multiplier, shift, rounding)) + yz  # type: ignore[arg-type]


def tosa_of_tflite(path: Path) -> str:
    """The converter's text; its bytecode is of another MLIR version."""
    needs("tosa_converter_for_tflite")
    script = (
        "import sys; from tosa_converter_for_tflite import (tflite_flatbuffer_to_tosa_mlir as f,\n"
        "    TosaConverterDebugInfo as Debug, TosaConverterOutputFormat as Format)\n"
        "f(sys.argv[1], sys.stdout.buffer, Format.Text, Debug.Enable)\n"
    )
    result = subprocess.run([sys.executable, "-c", script, path], capture_output=True, check=True)
    return result.stdout.decode()


def watched_module(path: Path) -> ir.Module:
    """The model as TOSA, with the states and the results of contractions as further results."""
    module = parse_text(tosa_of_tflite(path), create_context())
    with in_context_of(module.operation):
        operations = walk(module)
        function = next(op for op in operations if op.name == "func.func")
        old = next(op for op in operations if op.name == "func.return")
        values = [*old.operands]
        values += [op.results[0] for op in operations if op.name == "tosa.variable_read"]
        values += [
            _activated(op.results[0])
            for op in operations
            if op.name == "tosa.rescale" and str(op.operands[0].type.element_type) == "i32"
        ]
        with ir.InsertionPoint(old):
            ir.Operation.create("func.return", operands=values)
        old.operation.erase()
        inputs = function.attributes["function_type"].value.inputs
        type_ = ir.FunctionType.get(inputs, [value.type for value in values])
        function.attributes["function_type"] = ir.TypeAttr.get(type_)
        del function.attributes["res_attrs"]
    return module


def _activated(value: Any) -> Any:
    """A rescaled accumulator after its clamp, which LiteRT has inside the convolution."""
    users = [use.owner for use in value.uses]
    return users[0].results[0] if [u.name for u in users] == ["tosa.clamp"] else value


def compare(name: str, device: Device, steps: int) -> list[int]:
    """Run a model beside LiteRT; return the outputs, which are probabilities in 1/256."""
    path = model_file(name)
    litert = WatchedLiteRt(path)
    spoken = frames(sentences(WORDS[name]), litert.details)
    rng = np.random.default_rng(1)
    drawn = rng.integers(-128, 128, (max(steps - len(spoken), 0), *spoken.shape[1:]))
    executable = compile_for(watched_module(path), device)
    outputs, seen, rounded_twice = [], None, 0
    for step, frame in enumerate(np.concatenate([spoken, drawn.astype(np.int8)])[:steps]):
        expected = litert.step(frame)
        actual = list(executable.main(frame))
        seen = [set() for _ in actual] if seen is None else seen
        outputs.append(int(actual[0].item()))
        if actual[-1].item() != expected[-1].item():  # the last layer, and the output after it
            roundings = ("tosa-double-round", "tosa-single-round")
            assert [actual[-1].item(), expected[-1].item()] == [
                litert.dense_result(rounding) for rounding in roundings
            ]
            actual[0], actual[-1] = expected[0], expected[-1]
            rounded_twice += 1
        for number, (left, right) in enumerate(zip(actual, expected, strict=True)):
            where = f"value {number} in step {step} of {name}"
            np.testing.assert_array_equal(left.reshape(right.shape), right, where)
            seen[number].update(np.unique(right).tolist())
    assert seen is not None
    assert rounded_twice <= 2
    assert min(len(values) for values in seen) > 6, "some value hardly moves: the test says little"
    return outputs


@pytest.mark.parametrize("name", WORDS)
@pytest.mark.share(8)
def test_models_are_equal_to_litert(name: str, cpu: Device) -> None:
    outputs = compare(name, cpu, STEPS)
    assert len(outputs) == STEPS
    assert max(outputs) > 127  # the model hears its word


@pytest.mark.vulkan
@pytest.mark.skipif(not LONG, reason="the short suite has a model with 8-bit storage")
def test_a_model_on_vulkan_with_32bit_storage(vulkan_32bit: Device) -> None:
    outputs = compare("okay_nabu", vulkan_32bit, STEPS)
    assert len(outputs) == STEPS
    assert max(outputs) > 127


@pytest.mark.skipif(not LONG, reason="5 s; the CPU computes the same models")
@pytest.mark.vulkan
def test_a_model_on_vulkan(vulkan: Device) -> None:
    """Half a second a step on llvmpipe: until the model has heard its word."""
    assert max(compare("alexa", vulkan, 40)) > 127


# -- through the front door -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def executables(cpu: Device) -> dict[str, bytes]:
    return {name: compile_to_bytes(model_file(name)) for name in WORDS}


def scores(data: bytes, device: Device, word: str) -> np.ndarray[Any, Any]:
    quiet = np.zeros(RATE // 2, np.int16)
    heard = np.concatenate([quiet, speech(word, "en-us+f3", 140), quiet])
    function = Executable(data, device).main
    shape = function.signature.inputs[0].shape
    return np.array([function(f).item() for f in frames(heard, DETAILS | {"shape": shape})])


@pytest.mark.skipif(not LONG, reason="7 s; other tests compare the models' integers")
def test_the_right_model_responds(executables: dict[str, bytes], cpu: Device) -> None:
    """Probabilities averaged over as many steps as each model says."""
    needs("pymicro_features")
    for name, data in executables.items():
        about = json.loads(model_file(name).with_suffix(".json").read_text())
        window = np.ones(about["micro"]["sliding_window_size"])
        for word in WORDS.values():
            averages = np.convolve(scores(data, cpu, word) / 256, window / window.size, "valid")
            peak = averages.max()
            assert peak > 0.8 if word == WORDS[name] else peak < 0.1, f"{name} hears {word}: {peak}"


def test_streaming_on_the_command_line(in_temporary_folder: Path, cpu: Device) -> None:
    needs("pymicro_features")
    path = model_file("alexa")
    succeed("compile", path, "-o", "alexa.vmfb")
    heard = frames(sentences("alexa"), DETAILS)
    np.save("frames.npy", heard)
    streamed = ("run", "alexa.vmfb", "--stream", "--input", "@frames.npy")
    succeed(*streamed, "--output", "@scores.npy")
    function = Executable(Path("alexa.vmfb").read_bytes(), cpu).main
    expected = np.stack([function(frame) for frame in heard])
    np.testing.assert_array_equal(np.load("scores.npy"), expected)
    assert expected.max() > 127
    # Without the state of earlier calls the results differ.
    alone = [Executable(Path("alexa.vmfb").read_bytes(), cpu).main(f) for f in heard[:40]]
    assert (np.stack(alone) != expected[:40]).any()
