"""Operators that programs cannot have, with the reason and the way around.

A program has tensors of numbers, and gives the same results at each call. So it has no random
numbers, texts, maps or image files.
"""

from __future__ import annotations

from collections.abc import Mapping

_RANDOM = (
    "it makes random numbers, which differ at each call; make its result an input of the model"
)
_TEXTS = "it is of texts or counts them; do it before the call"
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
}  # fmt: skip
"""The reason why an operator is refused, and the way around, by operator."""
