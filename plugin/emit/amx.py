"""Emission of AMX instructions: tile registers of up to 16 rows of 64 bytes, and their products.

A row of a weight tile has a k-pack of four integers of each of 16 output channels; a row of an
activation tile has 16 k-packs of one row of M. A product adds to a tile of i32 accumulators::

    acc[m, n] += sum_(k, i) activations[m, 4 * k + i] * weight[k, 4 * n + i]

LLVM allocates tile registers only in functions that it generates itself. So kernels number the
registers, and emit inline assembly with side effects: LLVM keeps its order, and keeps no memory in
registers across it.

Sources: Intel's Software Developer's Manual, volume 1, chapter "Programming with Intel AMX"; for
the permission, Linux's ``Documentation/arch/x86/xstate.rst``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..core._mlir import Value, ir
from ..numerics.array_functions import convert
from ..numerics.element_types import I8, I64
from .operation import create, index_type, mlir_type, value
from .values import ArrayLike, Scalars, scalar
from .vectors import CACHE_LINE_BYTES, constant_vector, scratch, store

_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA = 158, 0x1023, 18
"""Linux, x86-64: ``arch_prctl``, ``ARCH_REQ_XCOMP_PERM`` and ``XFEATURE_XTILEDATA``.

The numbers are the kernel's ABI; without permission AMX instructions end the process.
"""
TILE_REGISTERS = 8
"""The tile registers of a thread."""
TILE_ROWS, TILE_ROW_BYTES = 16, 64
"""A tile register has up to 16 rows of 64 bytes, as long as a cache line."""


@dataclass(frozen=True)
class TileMemory:
    """The rows of a tile in memory.

    Attributes:
        start: the address of the first row, i64.
        stride: the bytes from a row to the next, i64.
        offset: a constant number of bytes that is added to `start`.
        is_streamed: the rows are not reused soon, and shall not displace others in the L1 cache.
    """

    start: ArrayLike
    stride: ArrayLike
    offset: int = 0
    is_streamed: bool = False


class AmxAssembly:
    """A sequence of AMX instructions, emitted as one ``llvm.inline_asm``."""

    def __init__(self) -> None:
        self._instructions: list[str] = []
        self._operands: list[Value] = []

    def configure(self, start: ArrayLike) -> None:
        """``ldtilecfg``: load a configuration from an address; clears all tiles.

        64 zeros are the configuration of a thread that uses no tiles.
        """
        self._instructions.append(f"ldtilecfg ({self._register(start)})")

    def store_configuration(self, start: ArrayLike) -> None:
        """``sttilecfg``: store the thread's configuration to an address."""
        self._instructions.append(f"sttilecfg ({self._register(start)})")

    def clear(self, tile: int) -> None:
        """``tilezero``: clear a tile."""
        self._instructions.append(f"tilezero %tmm{tile}")

    def load(self, tile: int, memory: TileMemory) -> None:
        """``tileloadd``, or ``tileloaddt1`` for streamed rows: load a tile."""
        name = "tileloaddt1" if memory.is_streamed else "tileloadd"
        self._instructions.append(f"{name} {self._rows(memory)}, %tmm{tile}")

    def store(self, tile: int, memory: TileMemory) -> None:
        """``tilestored``: store a tile."""
        self._instructions.append(f"tilestored %tmm{tile}, {self._rows(memory)}")

    def multiply(self, accumulators: int, activations: int, weight: int) -> None:
        """``tdpbssd``: add products of signed bytes to the accumulators."""
        self._instructions.append(f"tdpbssd %tmm{weight}, %tmm{activations}, %tmm{accumulators}")

    def prefetch(self, start: ArrayLike, cache_lines: range) -> None:
        """``prefetcht1``: prefetch some of the cache lines from an address on."""
        for number in cache_lines:
            offset = CACHE_LINE_BYTES * number
            self._instructions.append(f"prefetcht1 {offset or ''}({self._register(start)})")

    def emit(self) -> None:
        """Emit the instructions."""
        _assembly(self._instructions, ["r"] * len(self._operands), self._operands)

    def _rows(self, memory: TileMemory) -> str:
        start, stride = self._register(memory.start), self._register(memory.stride)
        return f"{memory.offset or ''}({start},{stride})"

    def _register(self, operand: ArrayLike) -> str:
        if operand.value not in self._operands:
            self._operands.append(operand.value)
        return f"${self._operands.index(operand.value)}"


class TileConfiguration:
    """Tile configuration of a workgroup, with scratch memory for it and for the thread's own.

    Args:
        shapes: rows, and bytes of a row, of each tile.
    """

    def __init__(self, shapes: Sequence[tuple[int, int]]) -> None:
        self._bytes = tile_configuration(shapes)
        self._memory, self._earlier = (scratch([len(self._bytes)], I8) for _ in range(2))

    def load(self) -> None:
        """Emit the configuration of the tiles, which clears them."""
        store(constant_vector(self._bytes, I8), self._memory, [0])
        assembly = AmxAssembly()
        assembly.store_configuration(address(self._earlier))
        assembly.configure(address(self._memory))
        assembly.emit()

    def restore(self) -> None:
        """Emit the configuration that the thread had before `load`.

        Other libraries configure a thread once: llama.cpp's next product would end the process.
        """
        assembly = AmxAssembly()
        assembly.configure(address(self._earlier))
        assembly.emit()


def tile_configuration(shapes: Sequence[tuple[int, int]]) -> list[int]:
    """The 64 bytes that ``ldtilecfg`` reads: rows, and bytes of a row, of each tile."""
    counts, sizes = ([shape[axis] for shape in shapes] for axis in (0, 1))
    unused = 16 - len(shapes)
    return [1, *[0] * 15, *(byte for size in sizes for byte in (size, 0)), *[0] * 2 * unused,
            *counts, *[0] * unused]  # fmt: skip


def request_permission() -> ArrayLike:
    """Request tile data from Linux (``arch_prctl``); true if the process may use AMX tiles."""
    constraints = ["={rax}", "{rax}", "{rdi}", "{rsi}", "~{rcx}", "~{r11}"]
    numbers = (_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA)
    operands = [Scalars().known(number, I64).value for number in numbers]
    [answer] = _assembly(["syscall"], constraints, operands, [mlir_type(I64)])
    return scalar(answer, I64) == 0


def i64_of(index: ArrayLike) -> ArrayLike:
    """An index as i64."""
    return convert(index, I64)


def i64_constant(number: int) -> ArrayLike:
    """A constant of i64."""
    return Scalars().known(number, I64)


def address(memory: Value) -> ArrayLike:
    """The address of the first element of a memref, i64."""
    pointer = value("memref.extract_aligned_pointer_as_index", [memory], index_type())
    return scalar(value("arith.index_cast", [pointer], mlir_type(I64)), I64)


def _assembly(
    instructions: Sequence[str],
    constraints: Sequence[str],
    operands: Sequence[Value],
    results: Sequence[ir.Type] = (),
) -> Sequence[Value]:
    attributes = {
        "asm_string": ir.StringAttr.get("\n".join(instructions)),
        "constraints": ir.StringAttr.get(",".join([*constraints, "~{memory}"])),
        "has_side_effects": ir.UnitAttr.get(),
    }
    return list(create("llvm.inline_asm", operands, results, attributes).results)
