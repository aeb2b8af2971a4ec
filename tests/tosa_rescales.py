"""Rescales of TOSA: their text, and their values by the pseudocode of the specification."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

BACK = "tosa-rescale-legalize-to-stablehlo"


def tosa_rescale(
    value: int,
    multiplier: int,
    shift: int,
    zero_points: tuple[int, int],
    range_: tuple[int, int],
    double: bool,
) -> int:
    """The pseudocode of TOSA's RESCALE, in Python's integers; saturating where TOSA demands less.

    Arithmetic shifts of Python round down, as TOSA's do.
    """
    value -= zero_points[0]
    offset = 1 << (shift - 1)
    if double and shift > 31:
        offset += (1 << 30) if value >= 0 else -(1 << 30)
    result = ((value * multiplier + offset) >> shift) + zero_points[1]
    return min(max(result, range_[0]), range_[1])


def rescale(
    operands: str,
    source: str,
    target: str,
    *,
    channels: int = 1,
    zero_types: tuple[str, str] = ("i8", "i8"),
    rounding: str = "SINGLE_ROUND",
    scale32: bool = True,
    unsigned: tuple[bool, bool] = (False, False),
) -> str:
    """A rescale of names: the input, multipliers, shifts, and the zero points of both sides."""
    types = [source, f"{channels}xi{32 if scale32 else 16}", f"{channels}xi8"]
    types += [f"1x{zero_type}" for zero_type in zero_types]
    return (
        f"tosa.rescale {operands} {{input_unsigned = {str(unsigned[0]).lower()}, "
        f"output_unsigned = {str(unsigned[1]).lower()}, "
        f"per_channel = {str(channels > 1).lower()}, rounding_mode = {rounding}, "
        f"scale32 = {str(scale32).lower()}}} "
        f": ({', '.join(f'tensor<{type_}>' for type_ in types)}) -> tensor<{target}>"
    )


def constant(name: str, values: Sequence[float], element: str) -> str:
    """A line that defines ``%name``."""
    type_ = f"tensor<{len(values)}x{element}>"
    return f'%{name} = "tosa.const"() <{{values = dense<{values}> : {type_}}}> : () -> {type_}\n'


@dataclass
class Mode:
    """One rescale: types, flags and numbers; per channel where there are several multipliers."""

    source: str
    target: str
    multipliers: list[int]
    shifts: list[int]
    zero_points: tuple[int, int] = (0, 0)
    rounding: str = "SINGLE_ROUND"
    scale32: bool = True
    unsigned: tuple[bool, bool] = (False, False)

    def width(self, side: int) -> int:
        return int((self.source, self.target)[side].lstrip("ui"))

    def is_unsigned(self, side: int) -> bool:
        return self.unsigned[side] or (self.source, self.target)[side].startswith("u")

    def operations(self, number: int) -> str:
        """Lines that define ``%r`` and the number, of ``%x``."""
        zero_types = f"i{self.width(0)}", f"i{self.width(1)}"
        wrapped = []
        for side in (0, 1):
            half = 1 << (self.width(side) - 1)
            wrapped.append((self.zero_points[side] + half) % (2 * half) - half)
        rescaled = rescale(
            f"%x, %m{number}, %k{number}, %xz{number}, %rz{number}",
            f"NxCx{self.source}",
            f"NxCx{self.target}",
            channels=len(self.multipliers),
            zero_types=zero_types,
            rounding=self.rounding,
            scale32=self.scale32,
            unsigned=self.unsigned,
        )
        return (
            constant(f"m{number}", self.multipliers, f"i{32 if self.scale32 else 16}")
            + constant(f"k{number}", self.shifts, "i8")
            + constant(f"xz{number}", wrapped[:1], zero_types[0])
            + constant(f"rz{number}", wrapped[1:], zero_types[1])
            + f"%r{number} = {rescaled}\n"
        )

    def expected(self, values: np.ndarray) -> np.ndarray:
        low = 0 if self.is_unsigned(1) else -(1 << (self.width(1) - 1))
        range_ = (low, low + (1 << self.width(1)) - 1)
        double = self.rounding == "DOUBLE_ROUND" and self.scale32
        result = [
            [
                tosa_rescale(
                    int(value),
                    self.multipliers[c % len(self.multipliers)],
                    self.shifts[c % len(self.shifts)],
                    self.zero_points,
                    range_,
                    double,
                )
                for c, value in enumerate(row)
            ]
            for row in values
        ]
        return np.array(result)


def program(modes: list[Mode], shape: tuple[int | str, int], name: str = "main") -> str:
    """One function that rescales its argument in every mode."""
    body = "".join(mode.operations(number) for number, mode in enumerate(modes))
    results = ", ".join(f"%r{number}" for number in range(len(modes)))
    types = ", ".join(f"tensor<NxCx{mode.target}>" for mode in modes)
    text = (
        f"func.func @{name}(%x: tensor<NxCx{modes[0].source}>) -> ({types}) {{\n"
        f"{body}return {results} : {types}\n}}"
    )
    return text.replace("NxCx", f"{shape[0]}x{shape[1]}x")


def check_modes(modes: list[Mode], values: np.ndarray, results: list[np.ndarray]) -> None:
    assert len(results) == len(modes)
    for mode, result in zip(modes, results, strict=True):
        read, actual = (
            array.astype(np.int64) & ((1 << mode.width(side)) - 1 if mode.is_unsigned(side) else -1)
            for side, array in enumerate((values, result))
        )
        np.testing.assert_array_equal(actual, mode.expected(read), err_msg=str(mode))
