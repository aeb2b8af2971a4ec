"""Tensors of PyTorch as operands of subquant's formulas.

The formulas of `subquant.numerics`, `subquant.layouts` and `subquant.ops` use the operators and
functions of NumPy's arrays. A `TorchArray` answers them with operations of PyTorch, with NumPy's
type promotion, so a layer in PyTorch is the formula of the layer in NumPy: eager, and in a program
that ``torch.export`` traces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import torch

from ..errors import UnsupportedError
from ..numerics.element_types import AnyArray, Array, DType, ElementType
from ..numerics.symbolic_arrays import SymbolicArray, function_dtype

_DTYPES: dict[DType, torch.dtype] = {
    np.dtype(np.bool_): torch.bool,
    **{np.dtype(f"i{n}"): getattr(torch, f"int{8 * n}") for n in (1, 2, 4, 8)},
    **{np.dtype(f"u{n}"): getattr(torch, f"uint{8 * n}") for n in (1, 2, 4, 8)},
    **{np.dtype(f"f{n}"): getattr(torch, f"float{8 * n}") for n in (2, 4, 8)},
    np.dtype(ml_dtypes.bfloat16): torch.bfloat16,
}
_NUMPY_DTYPES = {own: dtype for dtype, own in _DTYPES.items()}

_UFUNCS: dict[np.ufunc, Callable[..., torch.Tensor]] = {
    np.add: torch.add, np.subtract: torch.sub, np.multiply: torch.mul,
    np.true_divide: torch.div, np.negative: torch.neg, np.absolute: torch.abs,
    np.maximum: torch.maximum, np.minimum: torch.minimum, np.rint: torch.round,
    np.exp: torch.exp, np.sqrt: torch.sqrt, np.isfinite: torch.isfinite,
    np.bitwise_and: torch.bitwise_and, np.bitwise_or: torch.bitwise_or,
    np.bitwise_xor: torch.bitwise_xor, np.left_shift: torch.bitwise_left_shift,
    np.right_shift: torch.bitwise_right_shift,
    np.less: torch.lt, np.less_equal: torch.le, np.greater: torch.gt,
    np.greater_equal: torch.ge, np.equal: torch.eq, np.not_equal: torch.ne,
}  # fmt: skip
_OF_TENSORS_ONLY = (np.maximum, np.minimum)
"""Functions that PyTorch does not compute with a number as operand."""

FUNCTIONS: dict[Callable[..., AnyArray], Callable[..., AnyArray]] = {}
"""Functions of arrays and their translations, which `torch_functions` registers."""


def tensor_of_array(array: AnyArray) -> torch.Tensor:
    """Return an array that may be written to as a tensor of its memory, others as a copy.

    Raises:
        UnsupportedError: PyTorch has no such element type.
    """
    array = np.require(array, requirements=("C", "W"))
    if array.dtype not in _DTYPES:
        raise UnsupportedError(f"PyTorch has no tensors of {array.dtype.name}")
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def array_of_tensor(value: Any) -> Any:
    """Return the elements of a tensor as an array, bf16 included; other values as they are.

    Raises:
        UnsupportedError: the tensor is sparse, has no data, or has a type that NumPy lacks.
    """
    if not isinstance(value, torch.Tensor):
        return value
    if value.layout != torch.strided or value.is_meta:
        kind = "meta device" if value.is_meta else f"layout {value.layout}"
        raise UnsupportedError(f"expected a dense tensor with data, found one of the {kind}")
    if value.dtype not in _NUMPY_DTYPES and not value.is_complex():
        raise UnsupportedError(
            f"NumPy has no arrays of {value.dtype}; give the bytes, as by view(torch.uint8)"
        )
    tensor = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


def torch_array(value: AnyArray, dtype: DType | None = None, device: Any = None) -> TorchArray:
    """Return an array or a number as a constant; a `TorchArray` converted."""
    if isinstance(value, TorchArray):
        return value if dtype is None else value.astype(dtype)
    return TorchArray(tensor_of_array(np.asarray(value, dtype)).to(device))


class TorchArray(SymbolicArray, np.lib.mixins.NDArrayOperatorsMixin):
    """A tensor of PyTorch with the operators and methods of NumPy's arrays."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    @property
    def dtype(self) -> DType:
        """NumPy's."""
        return _NUMPY_DTYPES[self.tensor.dtype]

    @property
    def element(self) -> ElementType:
        """The element type."""
        return ElementType.of_dtype(self.dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents of the axes."""
        return tuple(self.tensor.shape)

    # -- types ------------------------------------------------------------------------------------

    def astype(self, dtype: npt.DTypeLike) -> TorchArray:
        """Convert elements; floats become integers towards zero."""
        return TorchArray(self.tensor.to(_DTYPES[np.dtype(dtype)]))

    def convert(self, element: ElementType) -> TorchArray:
        """Convert elements to an element type."""
        return self.astype(element.dtype)

    def bits_of(self, element: ElementType) -> TorchArray:
        """Return the bits as elements of a type of the same width."""
        return TorchArray(self.tensor.view(_DTYPES[element.dtype]))

    # -- shapes -----------------------------------------------------------------------------------

    def reshape(self, *shape: int | Sequence[int]) -> TorchArray:
        """Return another shape of as many elements; one extent may be -1."""
        sizes = shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
        is_same = tuple(sizes) == self.shape
        return self if is_same else TorchArray(self.tensor.reshape(tuple(sizes)))

    def transpose(self, *axes: Any) -> TorchArray:
        """Permute the axes; reverse them if none are given."""
        order = axes[0] if len(axes) == 1 and isinstance(axes[0], (tuple, list)) else axes
        return TorchArray(self.tensor.permute(tuple(order) or tuple(reversed(range(self.ndim)))))

    def __getitem__(self, key: Any) -> TorchArray:
        """Index by integers, slices, ``...``, None, and arrays of integers."""
        keys = key if isinstance(key, tuple) else (key,)
        return TorchArray(self.tensor[tuple(
            tensor_of_array(k).to(self.tensor.device) if isinstance(k, np.ndarray) else k
            for k in keys
        )])  # fmt: skip

    # -- reductions -------------------------------------------------------------------------------

    def sum(self, axis: Any = None, dtype: Any = None, keepdims: bool = False) -> TorchArray:
        """Add along axes; narrow integers in `dtype`, by default NumPy's int64 for them."""
        target = np.dtype(dtype or np.add.reduce(np.ones(1, self.dtype)).dtype)
        return TorchArray(
            torch.sum(self.tensor, self._axes(axis), keepdim=keepdims, dtype=_DTYPES[target])
        )

    def max(self, axis: Any = None, keepdims: bool = False) -> TorchArray:
        """Return the greatest along axes."""
        return TorchArray(torch.amax(self.tensor, self._axes(axis), keepdim=keepdims))

    def min(self, axis: Any = None, keepdims: bool = False) -> TorchArray:
        """Return the least along axes."""
        return TorchArray(torch.amin(self.tensor, self._axes(axis), keepdim=keepdims))

    def _axes(self, axis: int | Sequence[int] | None) -> list[int]:
        if axis is None:
            return list(range(self.ndim))
        return [axis] if isinstance(axis, int) else list(axis)

    # -- NumPy's protocols ------------------------------------------------------------------------

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *inputs: AnyArray, **options: object
    ) -> AnyArray:
        """Compute elementwise functions, with the result dtype of NumPy."""
        function = _UFUNCS.get(ufunc)
        if function is None or method != "__call__" or options:
            raise UnsupportedError(f"np.{ufunc.__name__} has no translation to PyTorch")
        dtype = function_dtype(ufunc, inputs)
        needs_tensors = ufunc in _OF_TENSORS_ONLY
        return TorchArray(function(*(self._operand(v, dtype, needs_tensors) for v in inputs)))

    def _operand(self, value: AnyArray, dtype: DType, needs_tensor: bool) -> Any:
        """Return a tensor of a dtype; a single known number as a number of Python."""
        if isinstance(value, TorchArray):
            return value.astype(dtype).tensor
        array: Array = np.asarray(value, dtype)
        if array.ndim == 0 and not needs_tensor:
            return array.item() if dtype.kind != "V" else float(array)
        return tensor_of_array(array).to(self.tensor.device)

    def __array_function__(
        self,
        function: Callable[..., AnyArray],
        types: Iterable[type],
        args: Sequence[AnyArray],
        options: Mapping[str, object],
    ) -> AnyArray:
        """Compute functions of arrays: NumPy's, and those of `subquant.numerics`."""
        implementation = FUNCTIONS.get(function)
        if implementation is None:
            name = getattr(function, "__name__", str(function))
            raise UnsupportedError(f"the function '{name}' of arrays has no translation to PyTorch")
        return implementation(*args, **options)
