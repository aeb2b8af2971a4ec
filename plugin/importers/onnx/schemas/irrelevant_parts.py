"""Attributes and inputs of ONNX operators that cannot change a result of inference.

`Call.check_all_is_read` refuses a node with an attribute or input that its importer did not read,
unless the attribute or input is listed here with the reason.
"""

from __future__ import annotations

from ....core.read_record import Irrelevant

_CHUNK_SIZE = Irrelevant("chunk_size", "tunes an algorithm with the same results")
_SATURATE = Irrelevant("saturate", "holds for floats of 8 bits only")
_HITRATES = Irrelevant("nodes_hitrates*", "says how often training visited a node")
_ROUND_MODE = Irrelevant("round_mode", "holds for scales that are powers of two only")

_OF_OPERATORS: dict[str, tuple[Irrelevant, ...]] = {
    "BatchNormalization": (Irrelevant("momentum", "holds in training only"),),
    "Cast": (_SATURATE, _ROUND_MODE),
    "CastLike": (_SATURATE, _ROUND_MODE, Irrelevant("1", "gives its type only")),
    "Dropout": (
        Irrelevant("seed", "holds in training only"),
        Irrelevant("1", "is the ratio, which holds in training only"),
    ),
    "LinearAttention": (_CHUNK_SIZE,),
    "Pad": (Irrelevant("2", "is the value of margins, which other modes copy"),),
    "QuantizeLinear": (_SATURATE,),
    "com.microsoft.EmbedLayerNormalization": (
        Irrelevant("mask_index_type", "is the type of the mask, which the mask says"),
    ),
    "com.microsoft.LinearAttention": (_CHUNK_SIZE,),
    "ai.onnx.ml.TreeEnsemble": (_HITRATES,),
    "ai.onnx.ml.TreeEnsembleClassifier": (_HITRATES,),
    "ai.onnx.ml.TreeEnsembleRegressor": (_HITRATES,),
    "com.microsoft.MatMulNBits": (
        Irrelevant("accuracy_level", "permits a lower precision than the one that is computed in"),
    ),
}


def irrelevant_parts(operator: str) -> tuple[Irrelevant, ...]:
    """Return the irrelevant attributes, and inputs by number, of an operator."""
    return _OF_OPERATORS.get(operator, ())
