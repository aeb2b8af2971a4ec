"""Constant operands of a fused epilogue, as tables that its kernel reads.

A bias or a multiplier has one value for each N, or one for all. `ChannelVectors` emits vectors of
consecutive N: an array in an elementwise formula becomes a table, of which each vector reads its
part.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ...emit import ArrayLike
from ...emit.vectors import Vectors
from ...numerics.array_functions import convert
from ...numerics.element_types import BOOL, I8, I32, I64, ElementType


class NotEmitted(Exception):
    """The operations of an epilogue have no vector code."""


@dataclass(frozen=True)
class Table:
    """A value for each N, or one for all.

    Attributes:
        element: their element type: i64 that fits i32 is stored as i32, booleans as i8.
        is_uniform: the table has the one value of all N, once for each lane of a vector.
    """

    data: bytes
    element: ElementType
    is_uniform: bool = False


class ChannelVectors(Vectors):
    """Vectors of consecutive N, in which arrays are tables.

    Args:
        read: called with a table, returns its values for the N of the vector.
        uniform_tables: read the value of all N from a table too, so that kernels that differ in it
            share their code.
        table_cache: tables and uniform values of arrays, shared by all vectors of an epilogue.
    """

    def __init__(
        self,
        lanes: int,
        n: int,
        read: Callable[[Table], ArrayLike],
        *,
        uniform_tables: bool = False,
        table_cache: dict[Hashable, Table | int | float] | None = None,
    ) -> None:
        super().__init__(lanes)
        self._n = n
        self._read, self._uniform_tables = read, uniform_tables
        self._table_cache = {} if table_cache is None else table_cache

    def _written(self, number: Any, element: ElementType) -> Any:
        if not isinstance(number, np.ndarray):
            return super()._written(number, element)
        key = self._key(number, element)
        table = self._table_cache.get(key)
        if table is None and self._uniform_tables and number.size == 1:
            return self._grid(number, element)
        return super()._written(number, element) if table is None else self._value(table, element)

    def _key(self, numbers: npt.NDArray[Any], element: ElementType) -> Hashable:
        data = tuple(numbers.reshape(-1)) if numbers.dtype.hasobject else numbers.tobytes()
        return data, numbers.dtype, element, self.lanes, self._uniform_tables

    def _grid(self, numbers: npt.NDArray[Any], element: ElementType) -> Any:
        table = self._table_cache[self._key(numbers, element)] = self._table(numbers, element)
        return self._value(table, element)

    def _value(self, table: Table | int | float, element: ElementType) -> Any:
        if not isinstance(table, Table):
            return self._written(table, element)
        values = self.emitted(self._read(table).value, table.element)
        return convert(values, element).value

    def _table(self, numbers: npt.NDArray[Any], element: ElementType) -> Table | int | float:
        """A table of numbers, or the uniform value if that is not read from a table."""
        flat = numbers.reshape(-1)
        if flat.size not in (1, self._n):
            raise NotEmitted
        is_uniform = bool((flat == flat[0]).all())
        if is_uniform and not self._uniform_tables:
            uniform: int | float = flat[0].item()
            return uniform
        stored = I8 if element == BOOL else element
        if is_uniform:  # the stored type does not depend on the value
            flat = np.repeat(flat[:1], self.lanes)
        elif element.is_integer and element.bits == I64.bits:
            stored = I32 if (flat == flat.astype(I32.dtype)).all() else element
        return Table(np.ascontiguousarray(flat.astype(stored.dtype)).tobytes(), stored, is_uniform)
