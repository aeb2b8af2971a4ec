"""Prepacked weights: arguments of a function that its kernels read in a packed layout.

For a function with such weights the executable has a variant that takes them prepacked as well, and
a function for each that prepacks it (`subquant.transforms.contraction.prepack_arguments`).
`Function.put` prepacks an array. Another array in the device's memory is prepacked when the
function gets it for the second time, since prepacking does not pay for one call. The packed tensors
are kept with the array, which never changes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..errors import InputError
from ..signature import LAYOUTS_KEY
from .device_arrays import DeviceArray
from .entry_points import EntryPoints, prepacking_functions
from .open_device import iree_runtime

_MAX_TENSORS = 64
"""The bound of the number of tensors that a weight is packed to."""


class PrepackedWeights:
    """The weights of a function that its kernels read prepacked.

    Args:
        function: the variant, which takes the packed tensors after the arguments.
        functions: for each weight, by the number of its argument, the function that prepacks it and
            the number of its tensors.

    Attributes:
        function: as above.
        entry: the entry points of the variant.
    """

    def __init__(self, function: Any, functions: Mapping[int, tuple[Any, int]]) -> None:
        self.function = function
        self.entry = EntryPoints(function)
        self._functions = functions
        self._key = object()  # the key in `DeviceArray.prepacked`, which keeps no executable alive

    @classmethod
    def of(
        cls, name: str, reflection: Mapping[str, str], lookup: Callable[[str], Any]
    ) -> PrepackedWeights | None:
        """Return the prepacked weights that an executable records for a function; None for none.

        Raises:
            InputError: the record is damaged.
        """
        text = reflection.get(LAYOUTS_KEY)
        if text is None:
            return None
        try:
            counts = {
                int(index): range(1, _MAX_TENSORS)[count - 1]
                for index, count in json.loads(text).items()
            }
            return cls(*prepacking_functions(name, counts, lookup))
        except (AttributeError, LookupError, RecursionError, RuntimeError, TypeError, ValueError):
            raise InputError("its weights have no layouts; compile the module again") from None

    def prepack(self, index: int, array: DeviceArray, invoke: Callable[..., object]) -> None:
        """Prepack an array for an argument, if that is a weight."""
        if index in self._functions:
            self._views_of(index, array, invoke)

    def views(self, arguments: Sequence[object], invoke: Callable[..., object]) -> list[Any] | None:
        """Return the packed tensors for the variant; None if it is not to be called."""
        is_new = False
        for index in self._functions:
            array = arguments[index]
            if not isinstance(array, DeviceArray):
                return None
            if self._key not in array.prepacked:
                array.prepacked[self._key] = ()
                is_new = True
        if is_new:
            return None
        views: list[Any] = []
        for index in self._functions:
            views += self._views_of(index, arguments[index], invoke)
        return views

    def _views_of(self, index: int, array: Any, invoke: Callable[..., object]) -> Sequence[Any]:
        views: Sequence[Any] = array.prepacked.get(self._key, ())
        if not views:
            runtime = iree_runtime()
            function, count = self._functions[index]
            pushed, popped = runtime.VmVariantList(1), runtime.VmVariantList(count)
            pushed.push_ref(array.view)
            invoke(function, pushed, popped)
            view_type = runtime.HalBufferView
            views = [popped.get_as_object(number, view_type) for number in range(count)]
            array.prepacked[self._key] = views
        return views
