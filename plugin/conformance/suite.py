"""The project's own programs, from tables of operations, types, shapes and attributes.

The tables are in ``suite_casts.py`` and so on. A row stands for one program, or for one a type;
types are named in `suite_types.TYPES`, and in a row ``"i8 u8 > i8b"`` means operands of the types
i8 and u8 and a result of type i8b. Every program's inputs have a fixed seed.
"""

from __future__ import annotations

import functools

from .program import Program
from .suite_casts import casts
from .suite_contractions import convolutions, dots
from .suite_elementwise import elementwise
from .suite_lowered import legalized, solvers
from .suite_movement import moves
from .suite_reductions import reductions

NOT_EXPRESSIBLE = {"triangular_solve": "StableHLO's own verifier refuses quantized operands"}
"""Operations that the specification lists and no program can be written for, with the reason."""


@functools.cache
def programs() -> tuple[Program, ...]:
    """Return the programs of the suite, in order; names are unique."""
    suite = (
        *casts(), *elementwise(), *dots(), *convolutions(), *reductions(), *moves(),
        *solvers(), *legalized(),
    )  # fmt: skip
    names = [program.name for program in suite]
    assert len(set(names)) == len(names), sorted({n for n in names if names.count(n) > 1})
    return suite
