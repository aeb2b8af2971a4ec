"""AMX: registers of two axes, *tiles* of up to 16 rows of 64 bytes, and their products.

A row of a tile of weights is a group of four integers of each of 16 columns; a row of a tile of
activations is 16 groups of one row. What is added to a tile of sums, of i32, is::

    sums[m, n] += sum_(k, i) activations[m, 4 * k + i] * weight[k, 4 * n + i]

LLVM allocates tiles in functions of its own making only. Here a tile is known by its number, and
the instructions are inline assembly with side effects, whose order LLVM keeps, and across which it
keeps nothing of memory in registers.

Source: Intel's Software Developer's Manual, volume 1, chapter "Programming with Intel AMX"; of the
permission Linux's ``Documentation/arch/x86/xstate.rst``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..core._mlir import Value, ir
from ..numerics.element_types import I64
from .operation import create, index_type, mlir_type, value
from .values import Formula, Scalars, scalar

__all__ = ["Rows", "Tiled", "address", "configuration", "permitted"]

_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA = 158, 0x1023, 18


@dataclass(frozen=True)
class Rows:
    """The rows of a tile in memory.

    Attributes:
        start: the address of the first one, as i64.
        apart: bytes from a row to the next, as i64.
        offset: bytes from `start`.
        is_passing: they are not read again soon, and shall not take the place of others in the
            first cache.
    """

    start: Formula
    apart: Formula
    offset: int = 0
    is_passing: bool = False


class Tiled:
    """Instructions that follow one another."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._operands: list[Value] = []

    def configure(self, start: Formula) -> None:
        """``ldtilecfg``: read what `configuration` says from an address; all tiles are zeros."""
        self._lines.append(f"ldtilecfg ({self._register(start)})")

    def clear(self, tile: int) -> None:
        """``tilezero``: make a tile zeros."""
        self._lines.append(f"tilezero %tmm{tile}")

    def load(self, tile: int, rows: Rows) -> None:
        """``tileloadd``, or ``tileloaddt1`` of what passes: read a tile."""
        name = "tileloaddt1" if rows.is_passing else "tileloadd"
        self._lines.append(f"{name} {self._place(rows)}, %tmm{tile}")

    def store(self, tile: int, rows: Rows) -> None:
        """``tilestored``: write a tile."""
        self._lines.append(f"tilestored %tmm{tile}, {self._place(rows)}")

    def multiply(self, sums: int, activations: int, weight: int) -> None:
        """``tdpbssd``: add the products of signed bytes to sums."""
        self._lines.append(f"tdpbssd %tmm{weight}, %tmm{activations}, %tmm{sums}")

    def prefetch(self, start: Formula, lines: int) -> None:
        """``prefetcht1``: ask for so many lines of 64 bytes from an address on."""
        for line in range(lines):
            self._lines.append(f"prefetcht1 {64 * line or ''}({self._register(start)})")

    def release(self) -> None:
        """``tilerelease``: there are no tiles any more, which threads would keep otherwise."""
        self._lines.append("tilerelease")

    def emit(self) -> None:
        """Write the instructions."""
        _assembly(self._lines, ["r"] * len(self._operands), self._operands)

    def _place(self, rows: Rows) -> str:
        return f"{rows.offset or ''}({self._register(rows.start)},{self._register(rows.apart)})"

    def _register(self, given: Formula) -> str:
        if given.value not in self._operands:
            self._operands.append(given.value)
        return f"${self._operands.index(given.value)}"


def configuration(shapes: Sequence[tuple[int, int]]) -> list[int]:
    """The 64 bytes that say how many rows each tile has, and how many bytes a row."""
    counts, sizes = ([shape[axis] for shape in shapes] for axis in (0, 1))
    missing = 16 - len(shapes)
    return [1, *[0] * 15, *(byte for size in sizes for byte in (size, 0)), *[0] * 2 * missing,
            *counts, *[0] * missing]  # fmt: skip


def permitted() -> Formula:
    """True if Linux lets this process use tiles, for which it is asked here."""
    constraints = ["={rax}", "{rax}", "{rdi}", "{rsi}", "~{rcx}", "~{r11}"]
    numbers = (_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA)
    given = [Scalars().known(number, I64).value for number in numbers]
    [answer] = _assembly(["syscall"], constraints, given, [mlir_type(I64)])
    return scalar(answer, I64) == 0


def address(memory: Value) -> Formula:
    """Where a memref begins, as i64."""
    found = value("memref.extract_aligned_pointer_as_index", [memory], index_type())
    return scalar(value("arith.index_cast", [found], mlir_type(I64)), I64)


def _assembly(
    lines: Sequence[str],
    constraints: Sequence[str],
    operands: Sequence[Value],
    results: Sequence[ir.Type] = (),
) -> Sequence[Value]:
    attributes = {
        "asm_string": ir.StringAttr.get("\n".join(lines)),
        "constraints": ir.StringAttr.get(",".join([*constraints, "~{memory}"])),
        "has_side_effects": ir.UnitAttr.get(),
    }
    return list(create("llvm.inline_asm", operands, results, attributes).results)
