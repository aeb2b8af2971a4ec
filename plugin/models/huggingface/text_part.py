"""Text model of a checkpoint of images and text: its configuration and its tensors.

The configuration of the text model is the object ``text_config``. Its tensors have one of two
prefixes, by the version of transformers; tensors of the model of images are not used::

    language_model.model.layers.0...   language_model.lm_head   vision_tower...
    model.language_model.layers.0...   lm_head                  model.vision_tower...

Source: transformers 5.24, ``conversion_mapping.py`` ("llava"), ``configuration_*.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...core.json_settings import Settings
from ...core.read_record import Irrelevant
from ...core.strict_json import Json, JsonObject, shown
from ...errors import InputError, UnsupportedError
from ...layouts import InferenceTensor
from .architectures import IRRELEVANT_KEYS

TEXT_MODELS = {"gemma3": "gemma3_text", "mistral3": "mistral"}
"""The ``model_type`` of the text model by that of the whole."""

PREFIX = "text_config."
"""The path of the text model's keys."""

_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")
_IMAGES = "belongs to images, which no prompt has"
_IRRELEVANT_KEYS = [
    *IRRELEVANT_KEYS,
    Irrelevant("vision_config", _IMAGES),
    *(
        Irrelevant(key, _IMAGES)
        for key in ("mm_tokens_per_image", "projector_hidden_act", "vision_feature_layer",
                    "multimodal_projector_bias", "spatial_merge_size", "*_token_index",
                    "image_token_id", "boi_token_id", "eoi_token_id")
    ),
]  # fmt: skip

_OLD_PREFIX, _NEW_PREFIX = "language_model.", "model.language_model."
_MODEL = "model."
_VISION = ("vision_tower.", "multi_modal_projector.")


def text_config(config: Mapping[str, Json]) -> JsonObject:
    """Return the keys of the text model, and the tokens of the whole.

    A configuration of a text model is returned as it is.

    Raises:
        InputError: ``text_config`` is no object.
        UnsupportedError: it is of another text model than the architecture's.
    """
    expected = TEXT_MODELS.get(str(config.get("model_type")))
    if expected is None:
        return dict(config)
    part = config.get("text_config")
    if not isinstance(part, dict):
        raise InputError(f"'text_config' is {shown(part)}, expected an object")
    name = part.get("model_type", expected)
    if name != expected:
        raise UnsupportedError(
            f"'text_config.model_type' is {shown(name)}, which is not supported in a model of the "
            f"'model_type' {shown(config['model_type'])}; expected {expected!r}"
        )
    tokens = {key: config[key] for key in _TOKENS if config.get(key) is not None}
    return {**part, **tokens, "model_type": expected}


@dataclass(frozen=True)
class TextPart:
    """The text model of a checkpoint.

    Attributes:
        config: its keys, like those of a checkpoint of the text model alone.
        tensors: its tensors, by their names in a checkpoint of the text model alone.
        unused: the names of the tensors of images.
        prefix: the beginning of the names of the text model's tensors; empty for none.
    """

    config: JsonObject
    tensors: Mapping[str, InferenceTensor]
    unused: tuple[str, ...] = ()
    prefix: str = ""

    def name_in_file(self, name: str) -> str:
        """Return the name in the file of a tensor of the text model."""
        if self.prefix == _NEW_PREFIX:
            return _NEW_PREFIX + name.removeprefix(_MODEL) if name.startswith(_MODEL) else name
        return self.prefix + name


def text_part(config: Mapping[str, Json], tensors: Mapping[str, InferenceTensor]) -> TextPart:
    """Return the text model of a checkpoint.

    Raises:
        InputError: a tensor is there with both prefixes, or as `text_config`.
        UnsupportedError: a key is not read, or as `text_config`.
    """
    own = text_config(config)
    if str(config.get("model_type")) not in TEXT_MODELS:
        return TextPart(own, tensors)
    by_name: dict[str, InferenceTensor] = {}
    unused: list[str] = []
    prefix = ""
    for name, tensor in tensors.items():
        if name.removeprefix(_MODEL).startswith(_VISION):
            unused.append(name)
            continue
        short = name
        if name.startswith(_NEW_PREFIX):
            prefix, short = _NEW_PREFIX, _MODEL + name.removeprefix(_NEW_PREFIX)
        elif name.startswith(_OLD_PREFIX):
            prefix, short = _OLD_PREFIX, name.removeprefix(_OLD_PREFIX)
        if short in by_name:
            raise InputError(
                f"the checkpoint has both {shown(by_name[short].name)} and {shown(name)}, which "
                "are one tensor of the text model; leave the wrong one out"
            )
        by_name[short] = tensor
    settings = Settings(config, irrelevant=_IRRELEVANT_KEYS)
    settings.value(str, "model_type")
    settings.get("text_config")
    is_tied = settings.get("tie_word_embeddings")
    settings.finish()
    if is_tied is None:
        is_tied = own.get("tie_word_embeddings")
    if is_tied is None:
        is_tied = "lm_head.weight" not in by_name
    return TextPart({**own, "tie_word_embeddings": is_tied}, by_name, tuple(unused), prefix)
