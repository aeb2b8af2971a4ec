"""Exceptions by operator: parts that cannot change a result, and operators that are refused."""

from __future__ import annotations

from collections.abc import Mapping

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
    """Return the attributes, and inputs by number, that cannot change a result of inference.

    `Call.check_all_is_read` refuses a node with another one that its importer did not read.
    """
    return _OF_OPERATORS.get(operator, ())


_RANDOM = (
    "it makes random numbers, which differ at each call; make its result an input of the model"
)
_TEXTS = "it is of texts or counts them; do it before the call"
_BLOCKED_CHANNELS = (
    "ONNX Runtime writes it for one machine, when it saves a model that it optimized at the level "
    "'all'; save the model at the level 'extended'"
)
_MAPS = "programs have no maps; give it a tensor of features"

REFUSED_OPERATORS: Mapping[str, str] = {
    **dict.fromkeys(
        ("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform",
         "RandomUniformLike"), _RANDOM,
    ),
    **dict.fromkeys(
        ("RegexFullMatch", "StringConcat", "StringNormalizer", "StringSplit", "TfIdfVectorizer"),
        _TEXTS,
    ),
    "ImageDecoder": "it reads an image file; decode it before the call, and make the pixels an "
    "input of the model",
    "ai.onnx.ml.CastMap": _MAPS,
    "ai.onnx.ml.CategoryMapper": "programs have no texts; map them before the call",
    "ai.onnx.ml.DictVectorizer": _MAPS,
    "ai.onnx.ml.ZipMap": "programs have no maps; convert the model with the option zipmap=False",
    **{
        f"com.microsoft.nchwc.{name}": _BLOCKED_CHANNELS
        for name in ("AveragePool", "Conv", "GlobalAveragePool", "GlobalMaxPool", "MaxPool",
                     "ReorderInput", "ReorderOutput", "Upsample")
    },
}  # fmt: skip
"""The reason why an operator is refused, and the way around, by operator.

A program has tensors of numbers, and gives the same results at each call. So it has no random
numbers, texts, maps or image files.
"""
