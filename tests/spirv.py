"""Inspection of Vulkan executables: cross-thread reads, and operations that drivers may contract.

IREE keeps values between two loops of a dispatch in workgroup memory. Without a barrier
between the loops, a thread may read only its own writes. The index expressions of reads and writes
tell: they are sums of products of the thread's number in its workgroup and of uniform values. A
device shows the difference only by chance.

Source: SPIR-V specification, 2.3 and 3; FlatBuffers, vectors of 32-bit words.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterator
from typing import TypeAlias

_MAGIC = struct.pack("<I", 0x07230203)
_HEADER = 5
_ENTRY_POINT, _EXECUTION_MODE, _CONSTANT, _COMPOSITE, _VARIABLE = 15, 16, 43, 44, 59
_LOAD, _STORE, _ACCESS_CHAINS, _DECORATE, _EXTRACT = 61, 62, (65, 66), 71, 81
_ADD, _SUBTRACT, _MULTIPLY, _PHI, _BARRIER = 128, 130, 132, 245, 224
_LOCAL_SIZE, _BUILT_IN, _LOCAL_INVOCATION_ID, _WORKGROUP = 17, 11, 27, 4
_TYPE_ARRAY, _TYPE_STRUCT, _TYPE_POINTER, _FUNCTION = 28, 30, 32, 7
_NO_CONTRACTION, _HAS_NAN = 42, (4461, 32)
_ROUNDED = frozenset((127, 129, 131, 133, 136, 142, 148))
"""``OpFNegate``, ``OpFAdd``, ``OpFSub``, ``OpFMul``, ``OpFDiv``, with a scalar, ``OpDot``."""
_COMPUTING = frozenset((_LOAD, *_ACCESS_CHAINS, _PHI, *range(77, 84), *range(109, 215)))

_Terms: TypeAlias = dict[object, int]
"""Coefficients of the thread indices, modulo 2**32."""


def races(executable: bytes) -> list[str]:
    """Return the entry points with cross-thread reads without a barrier."""
    return [shader.name for shader in map(_Shader, _modules(executable)) if shader.races()]


def private_arrays(executable: bytes) -> int:
    """Return the number of types of arrays that each invocation has for itself."""
    count = 0
    for words in _modules(executable):
        module = _instructions(words)
        arrays = {each[0] for each in module[_TYPE_ARRAY]}
        arrays |= {each[0] for each in module[_TYPE_STRUCT] if not arrays.isdisjoint(each[1:])}
        pointers = module[_TYPE_POINTER]
        count += sum(each[1] == _FUNCTION and each[2] in arrays for each in pointers)
    return count


def writes_tables(executable: bytes) -> list[str]:
    """Return the entry points that store constants of several elements."""
    return [shader.name for shader in map(_Shader, _modules(executable)) if shader.tables]


def loosely_computed(executable: bytes) -> list[str]:
    """Return operations that a driver may contract, and entry points without NaN preservation.

    Results of operations without ``NoContraction``, and entry points without
    ``SignedZeroInfNanPreserve`` of 32 bits, by their numbers.
    """
    actual = []
    for words in _modules(executable):
        module = _instructions(words)
        rounded = [each[1] for code in _ROUNDED for each in module[code]]
        exact = {each[0] for each in module[_DECORATE] if each[1] == _NO_CONTRACTION}
        preserving = {each[0] for each in module[_EXECUTION_MODE] if each[1:3] == _HAS_NAN}
        entries = [each[1] for each in module[_ENTRY_POINT]]
        actual += [f"operation {each}" for each in rounded if each not in exact]
        actual += [f"entry point {each}" for each in entries if each not in preserving]
    return actual


def _modules(data: bytes) -> Iterator[tuple[int, ...]]:
    """The SPIR-V modules of an executable, each a vector of words after its length."""
    at = data.find(_MAGIC)
    while at >= 0:
        (count,) = struct.unpack_from("<I", data, at - 4)
        if _HEADER < count <= (len(data) - at) // 4:
            yield struct.unpack_from(f"<{count}I", data, at)
        at = data.find(_MAGIC, at + 4)


def _instructions(words: tuple[int, ...]) -> defaultdict[int, list[tuple[int, ...]]]:
    """Return the operands of a module's instructions by opcode."""
    at, by_code = _HEADER, defaultdict(list)
    while at < len(words):
        length, code = words[at] >> 16, words[at] & 0xFFFF
        by_code[code].append(words[at + 1 : at + length])
        at += length
    return by_code


class _Shader:
    def __init__(self, words: tuple[int, ...]) -> None:
        module = _instructions(words)
        entry = module[_ENTRY_POINT][-1]
        self.name = struct.pack(f"<{len(entry) - 2}I", *entry[2:]).partition(b"\0")[0].decode()
        modes, decorations = module[_EXECUTION_MODE], module[_DECORATE]
        self._sizes = next((each[2:5] for each in modes if each[1] == _LOCAL_SIZE), (1, 1, 1))
        thread = (_BUILT_IN, _LOCAL_INVOCATION_ID)
        self._thread = next((each[0] for each in decorations if each[1:] == thread), -1)
        self._constants = {each[1]: each[2] for each in module[_CONSTANT]}
        self._shared = {each[1] for each in module[_VARIABLE] if each[2] == _WORKGROUP}
        composites = {each[1] for each in module[_COMPOSITE]}
        self.tables = sum(each[1] in composites for each in module[_STORE])
        self._stored = [each[0] for each in module[_STORE]]
        self._loaded = [each[2] for each in module[_LOAD]]
        self._has_barrier = bool(module[_BARRIER])
        self._made: dict[int, tuple[int, tuple[int, ...]]] = {
            each[1]: (code, each[2:]) for code in _COMPUTING for each in module[code]
        }
        self._terms: dict[int, _Terms] = {}

    def races(self) -> bool:
        """Some workgroup memory is read at other positions than a thread writes."""
        stored, loaded = self._positions(self._stored), self._positions(self._loaded)
        actual = any(stored[v] != loaded[v] for v in stored.keys() & loaded.keys())
        return actual and not self._has_barrier

    def _positions(self, pointers: list[int]) -> dict[int, set[object]]:
        """For each variable of the workgroup, how the positions depend on the thread."""
        actual: dict[int, set[object]] = {}
        for pointer in pointers:
            code, words = self._made.get(pointer, (0, ()))
            if code in _ACCESS_CHAINS and words[0] in self._shared:
                position = tuple(frozenset(self._of(i).items()) for i in words[1:])
                actual.setdefault(words[0], set()).add(position)
        return actual

    def _of(self, value: int) -> _Terms:
        """Return the thread-dependent coefficients of a value (a loop counter's: its start's)."""
        if value not in self._terms:
            self._terms[value] = {}  # of a loop, while it is asked for
            self._terms[value] = self._computed(*self._made.get(value, (0, ())))
        return self._terms[value]

    def _computed(self, code: int, words: tuple[int, ...]) -> _Terms:
        if code == _EXTRACT and self._made.get(words[0]) == (_LOAD, (self._thread,)):
            return {("thread", words[1]): 1} if self._sizes[words[1]] > 1 else {}
        if code in (_LOAD, _EXTRACT) or not words:
            return {}
        if code == _PHI:
            return next((terms for terms in map(self._of, words[::2]) if terms), {})
        if code in (_ADD, _SUBTRACT):
            left, right = map(self._of, words)
            sign = 1 if code == _ADD else -1
            accumulators = {t: left.get(t, 0) + sign * right.get(t, 0) for t in {*left, *right}}
            return {term: n & 0xFFFFFFFF for term, n in accumulators.items() if n & 0xFFFFFFFF}
        if code == _MULTIPLY and (words[0] in self._constants or words[1] in self._constants):
            number, other = words if words[0] in self._constants else reversed(words)
            factor = self._constants[number]
            return {term: n * factor & 0xFFFFFFFF for term, n in self._of(other).items()}
        pieces = tuple(
            self._constants.get(word, frozenset(self._of(word).items())) for word in words
        )
        return {(code, pieces): 1} if any(map(self._of, words)) else {}
