"""Import options of a model."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..core.option_fields import Activations, Semantics, check_choices
from ..errors import UsageError, quoted

_MAX_BATCH = 1 << 20
"""The batch size (`--batch`), at most."""
_DIM_SIZE = re.compile("[1-9][0-9]{0,8}")


@dataclass(frozen=True)
class ImportOptions:
    """The options with which a model of another tool becomes a module.

    Args:
        semantics: the semantics of its operators.
        activations: the activations of float operators with integer weights: floats, or quantized
            to 8 bits.
        batch: the size of the first dimension of its inputs: a number, ``dynamic``, or "" for that
            of the file.
        dims: ``name=N`` for each dynamic dimension of the file but the batch; ``input.axis=N`` for
            a TensorFlow Lite model.
        input_values: ``name=number`` or ``name=number,number,...`` for each input that becomes a
            constant; the integers of one that is quantized.
        every_tensor: functions return all tensors that their operators compute, in the order of
            execution, in place of their results.

    Raises:
        UsageError: another batch, dimension size or choice.
    """

    semantics: Semantics = "litert"
    activations: Activations = "float"
    batch: str = ""
    every_tensor: bool = False
    dims: tuple[str, ...] = ()
    input_values: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_choices(self)
        if self.batch not in ("", "dynamic") and not (
            self.batch.isascii()
            and self.batch.isdecimal()
            and len(self.batch) < 9
            and 1 <= int(self.batch) <= _MAX_BATCH
        ):
            raise UsageError(
                f"expected a batch of 1 to {_MAX_BATCH:,}, or 'dynamic', got '{self.batch}'"
            )
        for dim in self.dims:
            name, _, size = dim.rpartition("=")
            if not name or not _DIM_SIZE.fullmatch(size):
                raise UsageError(
                    f"expected a dimension size as NAME=N, N from 1 on, got {quoted(dim)}"
                )

        for value in self.input_values:
            name, _, numbers = value.rpartition("=")
            if not name or not numbers:
                raise UsageError(
                    "expected a value as NAME=NUMBER or NAME=NUMBER,NUMBER,..., got "
                    f"{quoted(value)}"
                )

    @property
    def batch_size(self) -> int | None:
        """The batch, if it is a number."""
        return int(self.batch) if self.batch not in ("", "dynamic") else None


AS_IN_FILE = ImportOptions()
"""The options that import a model as it is in the file."""
