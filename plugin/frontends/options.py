"""How models are imported."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import UsageError
from ..options import Activations, Semantics, check_choices

__all__ = ["AS_IN_FILE", "ImportOptions"]

_LARGEST_BATCH = 1 << 20


@dataclass(frozen=True)
class ImportOptions:
    """How a model of another tool becomes a module.

    Args:
        semantics: how its operators compute.
        activations: what float operators with integer weights multiply: activations as they are,
            or rounded to 8 bits.
        batch: the extent of the first dimension of its inputs: a number, ``dynamic``, or "" for
            what the file says.
        every_tensor: functions return all that their operators compute, in the order of execution,
            in place of their results.

    Raises:
        UsageError: another batch or choice.
    """

    semantics: Semantics = "litert"
    activations: Activations = "float"
    batch: str = ""
    every_tensor: bool = False

    def __post_init__(self) -> None:
        check_choices(self)
        if self.batch not in ("", "dynamic") and not (
            self.batch.isascii()
            and self.batch.isdecimal()
            and len(self.batch) < 9
            and 1 <= int(self.batch) <= _LARGEST_BATCH
        ):
            raise UsageError(
                f"expected a batch of 1 to {_LARGEST_BATCH:,}, or 'dynamic', got '{self.batch}'"
            )

    @property
    def batch_size(self) -> int | None:
        """The extent, if it is a number."""
        return int(self.batch) if self.batch not in ("", "dynamic") else None


AS_IN_FILE = ImportOptions()
"""What a model is without any options."""
