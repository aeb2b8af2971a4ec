"""Reader and writer of llama.cpp's importance matrices: mean squares of the inputs of layers.

GGUF form, whose ``general.type`` is ``imatrix``: for each weight ``NAME``,

* ``NAME.in_sum2``, float32 ``[matrices, K]``: sums of the squares of the inputs;
* ``NAME.counts``, float32 ``[matrices, 1]``: inputs in each sum.

Other tensors (``NAME.in_sum``) are not used. A weight with experts has a matrix for each. Inputs of
an expert that no token was routed to have the mean square 1, as in llama.cpp.

Legacy form (``.dat``), integers of 32 bits, little endian: the number of entries; for each entry
the length of its name, the name, calls, the number of values, and the values, float32: `calls`
times the mean squares. The number of chunks, and the length and name of the text, may follow.

Source: tools/imatrix/imatrix.cpp of llama.cpp, ``save_imatrix`` and ``save_imatrix_legacy``.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from ..core.files import open_input
from ..errors import InputError, Place
from ..layouts import PrimitiveTensor
from ..numerics.element_types import Array
from .gguf import MAGIC, read_gguf_file
from .gguf_writer import string_property, strings_property, u32_property, write_tensors

_SUMS, _COUNTS = ".in_sum2", ".counts"
_TYPE = "general.type"


@dataclass(frozen=True)
class ImportanceMatrix:
    """Mean squares of the inputs of weights.

    Attributes:
        path: the file.
        means: float32 ``[matrices * K]``, by the weight's name.
    """

    path: str
    means: Mapping[str, Array]

    def of(self, name: str, *shape: int) -> Array:
        """Return the mean squares of the inputs of a weight.

        Args:
            shape: of the result: the number of inputs ``K``, or that of experts and ``K``.

        Raises:
            InputError: the file has no entry for the weight, or one of another size.
        """
        means = self.means.get(name)
        if means is None:
            first = ", ".join(list(self.means)[:3])
            raise InputError(
                f"the importance matrix '{self.path}' has no entry for '{name}', and is of another "
                f"model or incomplete; its entries are {first}, ..."
            )
        if means.size != math.prod(shape):
            raise InputError(
                f"the importance matrix '{self.path}' has {means.size:,} values for '{name}', "
                f"expected {math.prod(shape):,}, one for each input"
            )
        return means.reshape(shape)


def read_imatrix(path: str | os.PathLike[str]) -> ImportanceMatrix:
    """Read an importance matrix of either form.

    Raises:
        InputError: the file cannot be read or is damaged, or an entry counts no inputs.
    """
    file = os.fspath(path)
    try:
        with open_input(file) as stream:
            start = stream.read(len(MAGIC))
            data = b"" if start == MAGIC else start + stream.read()
    except OSError as error:
        raise InputError(f"cannot read '{file}': {error.strerror or error}") from None
    means = _read_gguf(file) if start == MAGIC else _LegacyReader(file, data).read()
    for name, values in means.items():
        if not np.isfinite(values).all() or (values < 0).any():
            raise InputError(f"entry '{name}' has a mean square below 0, infinite or NaN",
                             Place(file))  # fmt: skip
    if not means:
        raise InputError("has no entries, expected an importance matrix", Place(file))
    return ImportanceMatrix(file, means)


def _read_gguf(file: str) -> dict[str, Array]:
    properties, tensors = read_gguf_file(file)
    if properties.get(_TYPE) != "imatrix":
        raise InputError(
            f"has the {_TYPE} {properties.get(_TYPE)!r}, expected 'imatrix': an importance matrix "
            "of llama-imatrix", Place(file)
        )  # fmt: skip
    arrays = {name: tensor.stored_arrays[0] for name, tensor in tensors.items()}
    names = {
        name.removesuffix(suffix)
        for name in arrays
        for suffix in (_SUMS, _COUNTS)
        if name.endswith(suffix)
    }
    means = {}
    for name in sorted(names):
        squares, counts = arrays.get(name + _SUMS), arrays.get(name + _COUNTS)
        if squares is None or counts is None:
            suffix = _SUMS if squares is None else _COUNTS
            raise InputError(f"entry '{name}' has no tensor '{name}{suffix}'", Place(file))
        if squares.dtype != np.float32 or counts.dtype != np.float32 or squares.size % counts.size:
            shown = [f"{each.dtype.name}{list(each.shape)}" for each in (squares, counts)]
            raise InputError(
                f"entry '{name}' has {_SUMS} {shown[0]} and {_COUNTS} {shown[1]}, expected "
                "float32 [matrices, inputs] and [matrices, 1]", Place(file)
            )  # fmt: skip
        if not (counts >= 0).all() or not counts.any():
            raise InputError(
                f"entry '{name}' counts {counts.min():g} inputs, expected 1 or more; compute the "
                "importance matrix with more text", Place(file)
            )  # fmt: skip
        counts = counts.reshape((-1, 1))
        quotients = squares.reshape((counts.size, -1)) / np.where(counts > 0, counts, 1)
        means[name] = np.where(counts > 0, quotients, np.float32(1)).reshape(-1)
    return means


@dataclass
class _LegacyReader:
    """A position in a legacy file, which is checked against the file's size at each step."""

    file: str
    data: bytes
    offset: int = field(default=0)

    def read(self) -> dict[str, Array]:
        entries, means = self._positive("the number of entries"), {}
        for number in range(entries):
            name = self._text(f"the name of entry {number}")
            if name in means:
                raise self._error(f"has two entries '{name}'")
            calls = self._positive(f"the calls of entry '{name}'")
            values = self._positive(f"the number of values of entry '{name}'")
            squares = np.frombuffer(self._take(4 * values, f"the values of entry '{name}'"), "<f4")
            means[name] = squares / np.float32(calls)
        if self.offset < len(self.data):
            self._take(4, "the number of chunks")
        if self.offset < len(self.data):
            self._text("the name of the text")
        if self.offset < len(self.data):
            raise self._error(f"has {len(self.data) - self.offset:,} bytes after its end")
        return means

    def _error(self, message: str) -> InputError:
        return InputError(f"{message}; is it an importance matrix of llama.cpp?", Place(self.file))

    def _take(self, size: int, part: str) -> bytes:
        if size > len(self.data) - self.offset:
            raise self._error(f"ends within {part}, at byte {len(self.data):,}")
        self.offset += size
        return self.data[self.offset - size : self.offset]

    def _integer(self, part: str) -> int:
        return int.from_bytes(self._take(4, part), "little", signed=True)

    def _positive(self, part: str) -> int:
        value = self._integer(part)
        if value < 1:
            raise self._error(f"has {value} for {part}, expected 1 or more")
        return value

    def _text(self, part: str) -> str:
        size = self._integer(f"the length of {part}")
        if size < 0:
            raise self._error(f"has {size} for the length of {part}, expected 0 or more")
        try:
            return self._take(size, part).decode()
        except UnicodeDecodeError:
            raise self._error(f"has {part} that is not UTF-8") from None


def write_imatrix(
    path: str | os.PathLike[str],
    means: Mapping[str, Array],
    inputs: int,
    text: str,
    chunk: int,
    expert_inputs: Mapping[str, Array] | None = None,
) -> None:
    """Write an importance matrix in GGUF form, whole or not at all.

    Args:
        means: mean squares, float32 ``[K]`` or ``[experts, K]``, by the weight's name in GGUF
            files.
        inputs: tokens that were averaged.
        text: the name of their text.
        chunk: tokens of a chunk.
        expert_inputs: tokens of each expert, integers ``[experts]``, by the weight's name.

    Raises:
        InputError: the file cannot be written.
    """
    properties = [
        string_property(_TYPE, "imatrix"),
        strings_property("imatrix.datasets", [text]),
        u32_property("imatrix.chunk_count", -(-inputs // chunk)),
        u32_property("imatrix.chunk_size", chunk),
    ]
    tensors = []
    for name in sorted(means):
        counts = np.asarray((expert_inputs or {}).get(name, inputs), np.float32).reshape((-1, 1))
        tensors.append(PrimitiveTensor(np.atleast_2d(means[name]) * counts, name + _SUMS))
        tensors.append(PrimitiveTensor(counts, name + _COUNTS))
    write_tensors(path, properties, tensors)
