"""Text to tokens and back, by the ``tokenizer.json`` of a checkpoint.

PyPI's ``tokenizers`` reads the file, so the tokens are those of transformers. Further files say
which tokens have a meaning:

==========================  ========================================================================
file                        keys
==========================  ========================================================================
``generation_config.json``  ``eos_token_id``: the tokens that end an answer
``config.json``             the same, without the first; ``bos_token_id``
``tokenizer_config.json``   ``bos_token``, ``eos_token``, ``add_bos_token``, ``chat_template``
``chat_template.jinja``     the chat template
==========================  ========================================================================
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Any

from ...core.json_settings import Settings
from ...core.requirements import require
from ...core.strict_json import Json, JsonObject, shown
from ...errors import InputError, UnsupportedError
from ...formats.tokenizer_files import TokenizerFiles
from ..chat import ChatTemplate
from ..memory import in_own_arena, return_free_memory
from ..tokenizer import check_text
from .decoding import CheckpointTextStream, PieceDecoder
from .special_tokens import apply_settings, content_of, named_tokens

_DEFAULT_TEMPLATE = "default"
"""The name of the template of a list that conversations take."""
_CLASSES_WITHOUT_DEFAULTS = ("TokenizersBackend", "PreTrainedTokenizerFast")
"""The classes of transformers that have no start token where the configuration names none."""


class CheckpointTokenizer:
    """Turns text into tokens and back; has the methods of `subquant.models.Tokenizer`.

    Args:
        files: the files of the checkpoint.
        config: its ``config.json``.

    Raises:
        InputError: a file cannot be read or is not valid.
        UnsupportedError: there is no ``tokenizer.json``.
        EnvironmentProblem: the package ``tokenizers`` is not installed.
    """

    def __init__(self, files: TokenizerFiles, config: Mapping[str, Json]) -> None:
        self._files, self._location = files, files.location_of("tokenizer.json")
        self._library_tokenizer: Any = None
        # Files without a limit have 'model_max_length' of 1e30, with all its digits.
        self._settings: JsonObject = files.load(
            "special_tokens_map.json", "the names of special tokens"
        ) | files.load(
            "tokenizer_config.json", "the tokenizer's configuration", has_any_number=True
        )
        self.size: int = self._engine.get_vocab_size(with_added_tokens=True)
        """The size of the vocabulary."""
        self._check_added_tokens()
        self.start_token = self._token("bos_token", config.get("bos_token_id"))
        """The token that text starts with, if there is one; see `adds_start`."""
        with self._library_errors("the tokenizer fails"):
            first = self._engine.encode("", add_special_tokens=True).ids
        self._engine_adds_start = self.start_token is not None and first[:1] == [self.start_token]
        adds_start = Settings(self._settings, files.location_of("tokenizer_config.json")).flag(
            "add_bos_token", self._engine_adds_start
        )
        self.adds_start = adds_start and self.start_token is not None
        """True if `encode` puts the start token in front."""
        self.end_tokens = self._end_tokens(config)
        """The tokens that end an answer."""
        self._special = {
            number: token.content
            for number, token in self._engine.get_added_tokens_decoder().items()
            if token.special
        }

    @property
    def _engine(self) -> Any:
        """The library's tokenizer, which is made if there is none."""
        if self._library_tokenizer is not None:
            return self._library_tokenizer
        data = self._files.read("tokenizer.json")
        if data is None:
            raise UnsupportedError(
                f"'{self._files.location}' has no tokenizer.json; write one with transformers: "
                "AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
            )
        library = require("tokenizers", "the tokenizer of the checkpoint", "models")
        with self._library_errors("the tokenizer is not valid"):
            engine = in_own_arena(partial(library.Tokenizer.from_buffer, data))
            apply_settings(engine, library, self._settings)
        del data
        return_free_memory()
        engine.no_padding()
        engine.no_truncation()
        self._library_tokenizer = engine
        return engine

    def _check_added_tokens(self) -> None:
        """Refuse tokens that other files add to those of ``tokenizer.json``."""
        settings, further = "tokenizer_config.json", "added_tokens.json"
        names: list[tuple[str, Json, Json]] = [
            (further, *item) for item in self._files.load(further, "the added tokens").items()
        ]
        listed = self._settings.get("added_tokens_decoder")
        if isinstance(listed, dict):
            names += [(settings, content_of(value), key) for key, value in listed.items()]
        for key in ("additional_special_tokens", "extra_special_tokens"):
            tokens = self._settings.get(key)
            tokens = list(tokens.values()) if isinstance(tokens, dict) else tokens
            if isinstance(tokens, list):
                names += [(settings, content_of(each), None) for each in tokens]
        decoder = self._engine.get_added_tokens_decoder()
        numbers = {token.content: str(number) for number, token in decoder.items()}
        for file, name, number in names:
            own = numbers.get(str(name))
            if own is None or (number is not None and own != str(number)):
                raise InputError(
                    f"adds the token {shown(name)}{'' if number is None else f' as {number}'}, and "
                    f"tokenizer.json has {'no such token' if own is None else f'it as {own}'}; "
                    "write the tokenizer again with transformers: "
                    "AutoTokenizer.from_pretrained(folder).save_pretrained(folder)",
                    self._files.location_of(file),
                )

    @cached_property
    def _decoder(self) -> PieceDecoder:
        with self._library_errors("the tokenizer fails"):
            return PieceDecoder(self._engine)

    @contextmanager
    def _library_errors(self, fault: str) -> Iterator[None]:
        """Raise InputError for the library's exceptions and panics, which are no Exception."""
        try:
            yield
        except BaseException as error:
            if isinstance(error, (KeyboardInterrupt, SystemExit)):
                raise
            raise InputError(f"{fault}: {shown(str(error), 300)[1:-1]}", self._location) from None

    def encode(self, text: str, *, start: bool = True, special: bool = True) -> list[int]:
        """Return the tokens of a text; InputError for halves of characters, which no UTF-8 has.

        Args:
            start: True for the start token in front, if the tokenizer asks for it.
            special: whether the names of control tokens in the text mean these.
        """
        check_text(text)
        engine = self._engine
        engine.encode_special_tokens = not special
        with self._library_errors("the tokenizer fails"):
            tokens: list[int] = engine.encode(text, add_special_tokens=start).ids
        first = self.start_token
        if first is None or not start:
            return tokens
        has_start = tokens[:1] == [first]
        if self.adds_start and not has_start:
            return [first, *tokens]
        if not self.adds_start and self._engine_adds_start:
            return tokens[1:]
        return tokens

    def decode(self, tokens: Iterable[int], *, special: bool = False) -> str:
        """Return the text of tokens.

        Args:
            special: whether control tokens stand for their names, in place of nothing.
        """
        with self._library_errors("the tokenizer fails"):
            return self._decoder.decode(tokens, special=special)

    def name_of(self, token: int | None) -> str:
        """Return the name of a control token; nothing for another, or for none."""
        return "" if token is None else self._special.get(token, "")

    def rest(self) -> None:
        """Release the memory that only `encode` needs, 115 MB for 262,144 pieces.

        `encode` may be called again; the first time it takes 0.8 s longer.
        """
        assert self._decoder  # it is made of the library's tokenizer
        self._library_tokenizer = None
        return_free_memory()

    def stream(self) -> CheckpointTextStream:
        """Return an incremental decoder."""
        return CheckpointTextStream(self.decode)

    def chat_template(self) -> CheckpointChat:
        """Return the chat template; UnsupportedError without one."""
        names = dict.fromkeys(("bos_token", "eos_token", "pad_token", "unk_token"), "")
        names |= named_tokens(self._settings)
        has_default = self._settings.get("tokenizer_class") not in _CLASSES_WITHOUT_DEFAULTS
        if has_default and "bos_token" not in self._settings:
            names["bos_token"] = self.name_of(self.start_token)
        return CheckpointChat(self._template(), self, names)

    def _template(self) -> str:
        text = self._files.text("chat_template.jinja")
        if text is not None:
            return text
        template = self._settings.get("chat_template")
        if isinstance(template, list):
            named = {
                each["name"]: each.get("template")
                for each in template
                if isinstance(each, dict) and isinstance(each.get("name"), str)
            }
            template = named.get(_DEFAULT_TEMPLATE)
        if not isinstance(template, str):
            raise UnsupportedError(
                "the checkpoint has no template for conversations (chat_template.jinja, or "
                "'chat_template' in tokenizer_config.json); give it plain text"
            )
        return template

    def _name(self, key: str) -> str | None:
        """The text of a token of ``tokenizer_config.json``; older files have objects."""
        value = self._settings.get(key)
        content = content_of(value)
        if content is None or isinstance(content, str):
            return content
        raise InputError(
            f"'{key}' of tokenizer_config.json is {shown(value)}, expected a token",
            self._files.location_of("tokenizer_config.json"),
        )

    def _token(self, key: str, default: Json) -> int | None:
        """The number of a token of ``tokenizer_config.json``, else that of ``config.json``."""
        name = self._name(key)
        if name is not None:
            number: int | None = self._engine.token_to_id(name)
            if number is None:
                raise InputError(
                    f"'{key}' of tokenizer_config.json is {shown(name)}, which is no token",
                    self._files.location_of("tokenizer_config.json"),
                )
            return number
        return default if type(default) is int and 0 <= default < self.size else None

    def _end_tokens(self, config: Mapping[str, Json]) -> frozenset[int]:
        settings = self._files.load("generation_config.json", "the configuration of generation")
        file, value = "generation_config.json", settings.get("eos_token_id")
        if value is None:
            file, value = "config.json", config.get("eos_token_id")
        if value is None:
            token = self._token("eos_token", None)
            return frozenset() if token is None else frozenset([token])
        tokens = value if isinstance(value, list) else [value]
        if any(type(each) is not int or each < 0 for each in tokens):
            raise InputError(
                f"'eos_token_id' is {shown(value)}, expected tokens", self._files.location_of(file)
            )
        rows = config.get("vocab_size")
        count = max(self.size, rows if type(rows) is int else 0)
        if max(tokens, default=0) >= count:
            raise InputError(
                f"'eos_token_id' is {shown(value)}, expected tokens below {count:,}, the size of "
                "the vocabulary",
                self._files.location_of(file),
            )
        return frozenset(tokens)


class CheckpointChat(ChatTemplate):
    """Chat template of a checkpoint: the template writes the start token, or there is none."""

    def __init__(self, template: str, tokenizer: Any, names: Mapping[str, str]) -> None:
        super().__init__({"tokenizer.chat_template": template}, tokenizer)
        self._names = dict(names)

    def encode(self, messages: Any, *, answer: bool = True) -> list[int]:
        """Return the tokens of a conversation, as transformers' ``apply_chat_template``."""
        text = self.render(messages, answer=answer)
        tokens: list[int] = self._tokenizer.encode(text, start=False)
        return tokens
