"""Special tokens of a checkpoint, as transformers applies ``tokenizer_config.json``.

Tokens that the configuration names (``bos_token``, ``image_token``) are special, whatever
``tokenizer.json`` says of them, and are variables of chat templates. The flags of
``added_tokens_decoder`` replace those of ``tokenizer.json``.

Source: transformers 5.24, ``TokenizersBackend.__init__`` and ``PreTrainedTokenizerBase.__init__``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...core.strict_json import Json

_NAMED = "_token"
"""The end of a key that names a special token."""
_DICTIONARIES = ("extra_special_tokens", "model_specific_special_tokens")
"""Keys of objects with further named tokens."""
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
"""The flags of an added token, with the names of the library."""


def content_of(token: Json) -> Json:
    """Return the text of a token, which older files have as an object."""
    return token.get("content") if isinstance(token, dict) else token


def named_tokens(settings: Mapping[str, Json]) -> dict[str, str]:
    """Return the texts of the tokens that ``tokenizer_config.json`` names, by key."""
    listed = {key: value for key, value in settings.items() if key.endswith(_NAMED)}
    for key in _DICTIONARIES:
        tokens = settings.get(key)
        listed |= tokens if isinstance(tokens, dict) else {}
    contents = {key: content_of(value) for key, value in listed.items()}
    return {key: text for key, text in contents.items() if isinstance(text, str)}


def apply_settings(engine: Any, library: Any, settings: Mapping[str, Json]) -> None:
    """Give the tokens of a library's tokenizer the flags that ``tokenizer_config.json`` gives them.

    Named tokens that the vocabulary does not have are left out: the model has no row for them.
    """
    own = {token.content: token for token in engine.get_added_tokens_decoder().values()}
    flags = {text: {flag: getattr(token, flag) for flag in _FLAGS} for text, token in own.items()}
    decoder = settings.get("added_tokens_decoder")
    for token in decoder.values() if isinstance(decoder, dict) else ():
        if isinstance(token, dict) and token.get("content") in own:
            before = flags[token["content"]]
            values = before | {flag: token[flag] for flag in _FLAGS if flag in token}
            # A token that was special stays so when the library decodes.
            flags[token["content"]] = values | {"special": before["special"] or values["special"]}
    for text in named_tokens(settings).values():
        if text and engine.token_to_id(text) is not None:
            flags[text] = flags.get(text, {}) | {"special": True}
    changed = [
        library.AddedToken(text, **values)
        for text, values in flags.items()
        if text not in own or any(getattr(own[text], flag) != values[flag] for flag in values)
    ]
    if changed:
        engine.add_tokens(changed)
