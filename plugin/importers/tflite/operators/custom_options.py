"""Options of custom operators, in a FlexBuffer map."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ....core.read_record import Irrelevant
from ....errors import InputError
from ...flatbuffer import UNKNOWN
from ..call import Call
from ..reading.flexbuffer import read_map

__all__ = ["CustomOptions"]


class CustomOptions:
    """The options of a custom operator; an option that is neither read nor irrelevant is an error.

    Args:
        call: the operator.
        irrelevant: options that need not be read.
    """

    def __init__(self, call: Call, irrelevant: Sequence[Irrelevant] = ()) -> None:
        try:
            options = read_map(call.operator.custom_options)
        except InputError as error:
            raise call.error(f"has options that cannot be read: {error.message}") from None
        self._call, self._options = call, call.record.custom_options(options, irrelevant)

    def required(self, name: str) -> float:
        """Return the number that is an option, which must be present."""
        if name not in self._options:
            raise self._call.error(f"has no option {name!r}")
        return self.get(name)

    def get(self, name: str, default: Any = None) -> float:
        """Return the number that is an option."""
        value = self._options.get(name, default)
        if value is UNKNOWN:
            raise self._call.error(f"has the option {name!r}, which is no number")
        return float(value)
