"""The project's own programs, from tables of operations, types, shapes and attributes.

The tables are in ``suite_casts.py`` and so on. A row stands for one program, or for one a type;
types are named in `suite_types.TYPES`, and in a row ``"i8 u8 > i8b"`` means operands of the types
i8 and u8 and a result of type i8b. Every program's inputs have a fixed seed.
"""

from __future__ import annotations

import functools
import re

from .program import Program
from .suite_casts import casts
from .suite_contractions import convolutions, dots
from .suite_elementwise import elementwise
from .suite_lowered import legalized, solvers
from .suite_movement import moves
from .suite_reductions import reductions

__all__ = ["NOT_EXPRESSIBLE", "QUANTIZED_OPERATIONS", "programs"]

NOT_EXPRESSIBLE = {
    "triangular_solve": "StableHLO's own verifier refuses quantized operands",
}
"""Operations that the specification lists and no program can be written for, with the reason."""

QUANTIZED_OPERATIONS = tuple(
    re.findall(
        r"\w+",
        """
        abs add all_gather all_reduce all_to_all async_done async_start atan2
        batch_norm_grad batch_norm_inference batch_norm_training bitcast_convert
        broadcast_in_dim case cbrt ceil cholesky clamp collective_broadcast
        collective_permute collective_reduce compare concatenate constant convolution cosine
        divide dot_general dynamic_broadcast_in_dim dynamic_conv dynamic_gather dynamic_iota
        dynamic_pad dynamic_reshape dynamic_slice dynamic_update_slice exponential
        exponential_minus_one floor gather get_dimension_size if infeed iota is_finite log
        log_plus_one logistic map maximum minimum multiply negate optimization_barrier
        outfeed pad power recv reduce reduce_precision reduce_scatter reduce_window
        remainder reshape reverse round_nearest_afz round_nearest_even rsqrt scatter select
        select_and_scatter send sign sine slice sort sqrt subtract tan tanh transpose
        triangular_solve uniform_dequantize uniform_quantize
        """,
    )
)
"""The operations whose tables in StableHLO's specification admit quantized types."""


@functools.cache
def programs() -> tuple[Program, ...]:
    """Return the programs of the suite, in order; names are unique."""
    made = (
        *casts(), *elementwise(), *dots(), *convolutions(), *reductions(), *moves(),
        *solvers(), *legalized(),
    )  # fmt: skip
    names = [program.name for program in made]
    assert len(set(names)) == len(names), sorted({n for n in names if names.count(n) > 1})
    return made
