"""Weights among the arguments of a function, laid out for its kernels once.

An executable has, for a function with such, another one that takes them laid out besides, and one
of each that does so (`subquant.kernels.pack.prepack_arguments`). An array that `Function.put`
stores is laid out there; one that is in the device's memory otherwise when the function meets it a
second time, as what is computed for one call only would be laid out in vain. What is laid out is
kept beside the array, which does not change.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..errors import InputError
from ..signature import LAID_OUT, LAYOUTS_KEY
from .device_arrays import DeviceArray
from .entry_points import Entry
from .open_device import iree_runtime

__all__ = ["Layouts"]

_MOST = 64
"""Tensors that a weight is laid out into."""


class Layouts:
    """How the weights of a function are laid out.

    Args:
        function: takes what is laid out after the arguments.
        layouts: for each weight, by its number, what lays it out, and into how many tensors.

    Attributes:
        function: as above.
        entry: how it is called.
    """

    def __init__(self, function: Any, layouts: Mapping[int, tuple[Any, int]]) -> None:
        self.function = function
        self.entry = Entry(function)
        self._layouts = layouts
        self._key = object()  # of what arrays keep, which do not keep the executable

    @classmethod
    def of(
        cls, name: str, reflection: Mapping[str, str], lookup: Callable[[str], Any]
    ) -> Layouts | None:
        """The layouts that are recorded of a function; None if it has none.

        Raises:
            InputError: what is recorded is wrong.
        """
        text = reflection.get(LAYOUTS_KEY)
        if text is None:
            return None
        try:
            layouts = {
                int(place): (lookup(f"{name}{LAID_OUT}_{int(place)}"), range(1, _MOST)[count - 1])
                for place, count in json.loads(text).items()
            }
            return cls(lookup(f"{name}{LAID_OUT}"), layouts)
        except (AttributeError, LookupError, RecursionError, RuntimeError, TypeError, ValueError):
            raise InputError("its weights have no layouts; compile the module again") from None

    def lay_out(self, place: int, array: DeviceArray, invoke: Callable[..., object]) -> None:
        """Lay an array out that is to be an argument, if that is a weight."""
        if place in self._layouts:
            self._pieces(place, array, invoke)

    def pieces(
        self, arguments: Sequence[object], invoke: Callable[..., object]
    ) -> list[Any] | None:
        """What the function takes besides its arguments; None if it is not to be called."""
        found: list[Any] = []
        is_new = False
        for place in self._layouts:
            array = arguments[place]
            if not isinstance(array, DeviceArray):
                return None
            if self._key not in array.laid_out:
                array.laid_out[self._key] = ()
                is_new = True
        if is_new:
            return None
        for place in self._layouts:
            found += self._pieces(place, arguments[place], invoke)
        return found

    def _pieces(self, place: int, array: Any, invoke: Callable[..., object]) -> Sequence[Any]:
        pieces: Sequence[Any] = array.laid_out.get(self._key, ())
        if not pieces:
            runtime = iree_runtime()
            function, count = self._layouts[place]
            pushed, popped = runtime.VmVariantList(1), runtime.VmVariantList(count)
            pushed.push_ref(array.view)
            invoke(function, pushed, popped)
            view = runtime.HalBufferView
            pieces = [popped.get_as_object(number, view) for number in range(count)]
            array.laid_out[self._key] = pieces
        return pieces
