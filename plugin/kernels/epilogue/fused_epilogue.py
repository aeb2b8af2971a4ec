"""Fused epilogue of a kernel: the code that it emits, and the tables that it reads.

The epilogue is emitted once ahead of the kernel, to list its tables and to get a text of its code:
kernels whose epilogues have equal texts share their code, and read different tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ...core._mlir import Value, ir
from ...emit import ArrayLike
from ...emit.constant_values import materialize
from ...emit.kernel import Binding
from ...emit.operation import constants_of, create, element_of
from ...emit.vectors import load, vector, vector_type
from ...numerics.element_types import I32, Array, ElementType
from ..isa.base import InstructionSet
from .f32_estimate import F32Epilogue, FastPathCheck
from .matcher import EpilogueMatch
from .tables import ChannelVectors, NotEmitted, Table


@dataclass(frozen=True)
class FusedEpilogue:
    """Operations on a vector of accumulators before a kernel stores it.

    Attributes:
        text: the code; epilogues of equal texts share it.
        tables: the constants that they read.
        vectors_per_estimate: vectors that are estimated together; 0 without estimates.
        fallback_by_vector: for each of the vectors that are computed together, True if its
            estimates are not all proved exact.
        table_kinds: the element types of the tables, and which are uniform: equal texts read tables
            from other bindings where these differ.
    """

    text: str
    emitter: F32Epilogue = field(compare=False)
    tables: tuple[Table, ...] = field(compare=False)
    element: ElementType
    target: InstructionSet
    vectors_per_estimate: int
    fallback_by_vector: tuple[bool, ...]
    table_kinds: tuple[tuple[ElementType, bool], ...] = field(init=False)

    def __post_init__(self) -> None:
        kinds = tuple((table.element, table.is_uniform) for table in self.tables)
        object.__setattr__(self, "table_kinds", kinds)

    @classmethod
    def of(
        cls, match: EpilogueMatch, target: InstructionSet, vectors: int = 1
    ) -> FusedEpilogue | None:
        """Emit the code of operations on vectors of N together; None if there is no vector code."""
        preview = _Preview(match, target)
        estimate, check, vectors_per_estimate = None, FastPathCheck(target), 0
        for vectors_per_estimate in (target.vectors_per_narrowing, 1):
            estimate, check = preview.emit(vectors_per_estimate)
            if estimate:
                break
        fallback = check.fallback_by_vector(match.n, vectors) if estimate else [True]
        text = estimate or ""
        if any(fallback):
            exact, _ = preview.emit(0, uniform_tables=estimate is not None)
            if exact is None:
                return None
            text += exact
        if any(fallback) and not all(fallback):
            text += preview.emit(vectors_per_estimate, needs_fallback=False)[0] or ""
        return cls(
            text,
            preview.emitter,
            tuple(preview.tables),
            element_of(match.result.type),
            target,
            vectors_per_estimate if estimate else 0,
            tuple(fallback),
        )

    @property
    def match(self) -> EpilogueMatch:
        """The operations of the program."""
        return self.emitter.match

    @property
    def needs_fallback(self) -> bool:
        """True if some estimates may be near a tie, so that exact operations follow them."""
        return any(self.fallback_by_vector)

    @property
    def initial_accumulators(self) -> Array:
        """The numbers that the accumulators of each N start with, i32."""
        initial = self.emitter.initial_accumulators
        flat = np.zeros(1, np.int64) if initial is None else initial.reshape(-1)
        return np.broadcast_to(flat, [self.match.n]).astype(np.int32)

    def _tables_by_binding(self) -> list[list[Table]]:
        """The tables of each binding: those of one element type."""
        groups: dict[object, list[Table]] = {}
        for table in self.tables:
            groups.setdefault((table.element, table.is_uniform), []).append(table)
        return list(groups.values())

    def bindings(self, width: int) -> list[Binding]:
        """The bindings of the tables; `width` is N, padded to whole vectors."""
        lanes = self.target.lanes
        return [
            Binding((len(tables), lanes if tables[0].is_uniform else width), tables[0].element)
            for tables in self._tables_by_binding()
        ]

    def operands(self, width: int) -> list[Value]:
        """The tables as tensors, for `bindings`."""
        tensors = []
        for tables in self._tables_by_binding():
            element = tables[0].element
            rows = [np.frombuffer(table.data, element.dtype) for table in tables]
            padding = 0 if tables[0].is_uniform else width - len(rows[0])
            tensors.append(materialize(np.pad(np.stack(rows), [(0, 0), (0, padding)]), element))
        return tensors

    def emit(self, memories: Sequence[Value], accumulators: ArrayLike, n: ArrayLike) -> ArrayLike:
        """Emit the exact operations for a vector from `n` on, with the memrefs of `bindings`."""
        form = self._form(memories, n, uniform_tables=self.vectors_per_estimate > 0)
        vector_ = form.emitted(accumulators.value, accumulators.element)
        return self.emitter.emit(form, vector_)

    def estimate(
        self,
        memories: Sequence[Value],
        accumulators: Sequence[ArrayLike],
        n: Sequence[ArrayLike],
        vectors: Sequence[int] = (),
    ) -> tuple[ArrayLike, ArrayLike | None]:
        """Emit the estimates of at most `vectors_per_estimate` vectors of accumulators.

        Args:
            memories: the memrefs of `bindings`.
            accumulators: the vectors, i32.
            n: the first N of each vector.
            vectors: their indices among the vectors that are computed together, if known.

        Returns:
            The results, concatenated; and a boolean, true if one is too near to a tie, so that the
            exact operations have to follow. None if all are proved exact.
        """
        forms = [self._form(memories, each, uniform_tables=True) for each in n]
        vectors_ = [form.emitted(v.value, I32) for form, v in zip(forms, accumulators, strict=True)]
        by_vector = self.fallback_by_vector
        fallback = [by_vector[vector_ % len(by_vector)] for vector_ in vectors]
        result, check = self.emitter.estimate(
            forms, vectors_, self.target, fallback or [self.needs_fallback] * len(vectors_)
        )
        return result, check.is_near_tie(forms[0])

    def _form(
        self, memories: Sequence[Value], n: ArrayLike, *, uniform_tables: bool
    ) -> ChannelVectors:
        """The form of a vector from `n` on, which loads the tables."""
        rows = {
            table: (memory, row)
            for memory, tables in zip(memories, self._tables_by_binding(), strict=True)
            for row, table in enumerate(tables)
        }
        lanes = self.target.lanes

        def read(table: Table) -> ArrayLike:
            memory, row = rows[table]
            return load(memory, [row, 0 if table.is_uniform else n.value], lanes, table.element)

        return ChannelVectors(
            lanes,
            self.match.n,
            read,
            uniform_tables=uniform_tables,
            table_cache=self.emitter.table_cache,
        )


class _Preview:
    """Emission of an epilogue ahead of its kernel, into modules of which only the text is used."""

    def __init__(self, match: EpilogueMatch, isa: InstructionSet) -> None:
        self.match, self.isa = match, isa
        self.emitter = F32Epilogue(match)
        self.tables: list[Table] = []

    def emit(
        self, vectors: int, *, needs_fallback: bool = True, uniform_tables: bool = True
    ) -> tuple[str | None, FastPathCheck]:
        """Emit estimates of some vectors, or for 0 the exact operations; return text and check.

        The text is None without estimates, or without vector code of the operations.
        """
        module, tables, check = ir.Module.create(), list(self.tables), FastPathCheck(self.isa)
        with ir.InsertionPoint(module.body), constants_of(module.body):
            forms = [  # two vectors stand for any number: all are computed alike
                ChannelVectors(
                    self.isa.lanes,
                    self.match.n,
                    self._read,
                    uniform_tables=uniform_tables,
                    table_cache=self.emitter.table_cache,
                )
                for _ in range(min(max(1, vectors), 2))
            ]
            element = element_of(self.match.accumulators.type)
            type_ = vector_type(self.isa.lanes, element)
            accumulators = [form.emitted(_placeholder(type_), element) for form in forms]
            try:
                if vectors:
                    fallback = [needs_fallback] * len(forms)
                    _, check = self.emitter.estimate(forms, accumulators, self.isa, fallback)
                    check.is_near_tie(forms[0])
                else:
                    self.emitter.emit(forms[0], accumulators[0])
            except (NotEmitted, TypeError, OverflowError):
                self.tables[:] = tables
                return None, check
        return str(module.operation.get_asm(assume_verified=True)), check

    def _read(self, table: Table) -> ArrayLike:
        if table not in self.tables:
            self.tables.append(table)
        index = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), self.tables.index(table))
        return vector(_placeholder(vector_type(self.isa.lanes, table.element), table=index))


def _placeholder(type_: ir.Type, **attributes: ir.Attribute) -> Value:
    """A value of a type that stands for an accumulator or a table."""
    cast = create("builtin.unrealized_conversion_cast", results=[type_], attributes=attributes)
    return cast.results[0]


def epilogue_bindings(
    epilogue: FusedEpilogue | None,
    width: int,
    shape: tuple[int | None, ...],
    accumulator: ElementType = I32,
) -> list[Binding]:
    """The last bindings of a kernel with an epilogue: its tables and the result.

    `width` is N, padded to whole vectors.
    """
    if epilogue is None:
        return [Binding(shape, accumulator)]
    return [*epilogue.bindings(width), Binding(shape, epilogue.element)]
