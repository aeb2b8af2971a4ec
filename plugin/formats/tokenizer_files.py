"""The files of a checkpoint that turn text into tokens.

They lie in the folder of the checkpoint, or their texts are the property ``tokenizer_files`` of an
archive that was made of one.
"""

from __future__ import annotations

import codecs
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..core.files import regular_file_size
from ..core.strict_json import MAX_BYTES, JsonObject, parse_object
from ..errors import InputError, Place

PROPERTY = "tokenizer_files"
"""The property with the texts of the files by name."""

NAMES = ("tokenizer.json", "tokenizer_config.json", "added_tokens.json", "special_tokens_map.json",
         "chat_template.jinja", "generation_config.json")  # fmt: skip
"""The names of the files."""


@dataclass(frozen=True)
class TokenizerFiles:
    """Texts of files by name, from a folder, or from the properties of an archive.

    Attributes:
        location: the folder or the archive.
        contents: their bytes; None where they are read from the folder. Python's strings would
            take four times the memory if a text has a character beyond U+FFFF.
    """

    location: Path
    contents: Mapping[str, bytes] | None = None

    @classmethod
    def of_texts(cls, location: Path, texts: Mapping[str, object]) -> TokenizerFiles:
        """Return the files of an archive's property; InputError if one is no text."""
        contents = {}
        for name, text in texts.items():
            if not isinstance(text, str):
                raise InputError(f"'{PROPERTY}.{name}' is no text", Place(str(location)))
            contents[name] = text.encode()
        return cls(location, contents)

    def read(self, name: str) -> bytes | None:
        """Return a file's bytes; None if there is no such file, InputError if it cannot be read."""
        if self.contents is not None:
            return self.contents.get(name)
        path = self.location / name
        if not path.exists():
            return None
        if regular_file_size(path) > MAX_BYTES:
            raise InputError(f"has more than {MAX_BYTES:,} bytes", self.location_of(name))
        try:
            return path.read_bytes().removeprefix(codecs.BOM_UTF8)
        except OSError as error:
            raise InputError(f"cannot read '{path}': {error}") from None

    def text(self, name: str) -> str | None:
        """Return a file's text; None and errors as `read`."""
        data = self.read(name)
        try:
            return None if data is None else data.decode()
        except UnicodeDecodeError as error:
            raise InputError(f"is no text: {error}", self.location_of(name)) from None

    def load(self, name: str, subject: str, *, has_any_number: bool = False) -> JsonObject:
        """Return the object of a JSON file, empty if there is none; errors as `parse_json`."""
        data = self.read(name)
        if data is None:
            return {}
        file = str(self.location_of(name))
        return parse_object(data, subject, file, has_any_number=has_any_number)

    def location_of(self, name: str) -> Place:
        """Return the location of a file for errors."""
        return Place(str(self.location / name if self.contents is None else self.location))

    def all_texts(self) -> dict[str, str]:
        """Return the texts of all files that there are."""
        texts = {name: self.text(name) for name in NAMES}
        return {name: text for name, text in texts.items() if text is not None}
