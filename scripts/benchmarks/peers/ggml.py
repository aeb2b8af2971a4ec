"""llama.cpp's ggml: ``ggml_mul_mat`` on its CPU backend, by ctypes; for the peer `llama`.

Weights lie as llama.cpp would have them: in the first of the backend's extra buffer types (AMX,
repacked) that computes the product, else in the plain one. The environment variable
``SUBQUANT_LLAMA`` says where the libraries are, which `scripts/bench` builds.
"""

from __future__ import annotations

import ctypes
import os
from ctypes import POINTER, c_bool, c_char_p, c_int, c_int64, c_size_t, c_void_p
from typing import Any

import numpy as np

from ..blocks import FORMATS
from . import Array, Unsupported

_TYPES = {"Q4_0": 2, "Q4_1": 3, "Q5_0": 6, "Q8_0": 8, "Q4_K": 12, "Q6_K": 14}
_F32 = 0
_FOR_WEIGHTS = 1


class _Parameters(ctypes.Structure):
    _fields_ = (("mem_size", c_size_t), ("mem_buffer", c_void_p), ("no_alloc", c_bool))


_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "ggml_init": (c_void_p, _Parameters),
    "ggml_free": (None, c_void_p),
    "ggml_new_tensor_2d": (c_void_p, c_void_p, c_int, c_int64, c_int64),
    "ggml_mul_mat": (c_void_p, c_void_p, c_void_p, c_void_p),
    "ggml_new_graph": (c_void_p, c_void_p),
    "ggml_build_forward_expand": (None, c_void_p, c_void_p),
    "ggml_nbytes": (c_size_t, c_void_p),
    "ggml_backend_cpu_init": (c_void_p,),
    "ggml_backend_free": (None, c_void_p),
    "ggml_backend_cpu_set_n_threads": (None, c_void_p, c_int),
    "ggml_backend_get_device": (c_void_p, c_void_p),
    "ggml_backend_dev_backend_reg": (c_void_p, c_void_p),
    "ggml_backend_dev_supports_op": (c_bool, c_void_p, c_void_p),
    "ggml_backend_reg_get_proc_address": (c_void_p, c_void_p, c_char_p),
    "ggml_backend_get_default_buffer_type": (c_void_p, c_void_p),
    "ggml_backend_buft_name": (c_char_p, c_void_p),
    "ggml_backend_buft_alloc_buffer": (c_void_p, c_void_p, c_size_t),
    "ggml_backend_alloc_ctx_tensors_from_buft": (c_void_p, c_void_p, c_void_p),
    "ggml_backend_buffer_free": (None, c_void_p),
    "ggml_backend_buffer_set_usage": (None, c_void_p, c_int),
    "ggml_backend_tensor_set": (None, c_void_p, c_void_p, c_size_t, c_size_t),
    "ggml_backend_tensor_get": (None, c_void_p, c_void_p, c_size_t, c_size_t),
    "ggml_backend_graph_compute": (c_int, c_void_p, c_void_p),
}
"""Results and arguments, as ``ggml.h``, ``ggml-backend.h`` and ``ggml-cpu.h`` declare them."""


def _load() -> Any:
    if "SUBQUANT_LLAMA" not in os.environ:
        raise Unsupported("it is not installed")
    for name in ("ggml-base", "ggml-cpu", "ggml"):
        path = os.path.join(os.environ["SUBQUANT_LLAMA"], "bin", f"lib{name}.so")
        library = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
    for name, (result, *arguments) in _FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


_ggml = _load()


def _context() -> Any:
    return _ggml.ggml_init(_Parameters(2**22, None, True))


class Products:
    """Products with several tensors of the same weights."""

    def __init__(self, kind: str, weights: Array, x: Array, threads: int, copies: int) -> None:
        self._backend = _ggml.ggml_backend_cpu_init()
        _ggml.ggml_backend_cpu_set_n_threads(self._backend, threads)
        self._shape = len(x), len(weights)
        shape_of_weights = _TYPES[kind], x.shape[1], len(weights)
        buffer_type = self._buffer_type(shape_of_weights, len(x))
        self._contexts = [_context(), _context()]
        tensors = [
            _ggml.ggml_new_tensor_2d(self._contexts[0], *shape_of_weights) for _ in range(copies)
        ]
        operand = _ggml.ggml_new_tensor_2d(self._contexts[1], _F32, x.shape[1], len(x))
        self._results = [_ggml.ggml_mul_mat(self._contexts[1], each, operand) for each in tensors]
        self._graphs = [_ggml.ggml_new_graph(self._contexts[1]) for _ in tensors]
        for graph, result in zip(self._graphs, self._results, strict=True):
            _ggml.ggml_build_forward_expand(graph, result)
        plain = _ggml.ggml_backend_get_default_buffer_type(self._backend)
        self._buffers = [
            _ggml.ggml_backend_alloc_ctx_tensors_from_buft(context, kind_of_buffer)
            for context, kind_of_buffer in zip(self._contexts, (buffer_type, plain), strict=True)
        ]
        _ggml.ggml_backend_buffer_set_usage(self._buffers[0], _FOR_WEIGHTS)
        for tensor in tensors:
            _write(tensor, weights)
        _write(operand, x)
        form = FORMATS[kind]
        self.notes = {
            "path": _ggml.ggml_backend_buft_name(buffer_type).decode(),
            "activations": {"block": form.size, "steps": 254},
            "bytes": weights.nbytes,
        }
        self._last = 0

    def _buffer_type(self, shape: tuple[int, int, int], rows: int) -> Any:
        """Return the buffer type in which llama.cpp stores these weights."""
        device = _ggml.ggml_backend_get_device(self._backend)
        for each in self._extra_buffer_types(device):
            context = _context()
            weights = _ggml.ggml_new_tensor_2d(context, *shape)
            operand = _ggml.ggml_new_tensor_2d(context, _F32, shape[1], rows)
            product = _ggml.ggml_mul_mat(context, weights, operand)
            buffer = _ggml.ggml_backend_buft_alloc_buffer(each, 0)
            # the second field of a tensor, as llama.cpp's loader sets it to ask
            ctypes.cast(weights, POINTER(c_void_p))[1] = buffer
            is_supported = _ggml.ggml_backend_dev_supports_op(device, product)
            _ggml.ggml_backend_buffer_free(buffer)
            _ggml.ggml_free(context)
            if is_supported:
                return each
        return _ggml.ggml_backend_get_default_buffer_type(self._backend)

    def _extra_buffer_types(self, device: Any) -> list[Any]:
        registry = _ggml.ggml_backend_dev_backend_reg(device)
        address = _ggml.ggml_backend_reg_get_proc_address(
            registry, b"ggml_backend_dev_get_extra_bufts"
        )
        if not address:
            return []
        array = ctypes.CFUNCTYPE(POINTER(c_void_p), c_void_p)(address)(device)
        types: list[Any] = []
        while array and array[len(types)]:
            types.append(array[len(types)])
        return types

    def __del__(self) -> None:
        for buffer in self._buffers:
            _ggml.ggml_backend_buffer_free(buffer)
        for context in self._contexts:
            _ggml.ggml_free(context)
        _ggml.ggml_backend_free(self._backend)

    def call(self, copy: int) -> None:
        """Compute the case once: see `Prepared`."""
        self._last = copy
        if _ggml.ggml_backend_graph_compute(self._backend, self._graphs[copy]):
            raise RuntimeError("ggml failed to compute the product")

    def result(self) -> Array:
        """Return the result: see `Prepared`."""
        result = np.zeros(self._shape, np.float32)
        _ggml.ggml_backend_tensor_get(
            self._results[self._last], result.ctypes.data, 0, result.nbytes
        )
        return result


def _write(tensor: Any, array: Array) -> None:
    array = np.ascontiguousarray(array)
    assert _ggml.ggml_nbytes(tensor) == array.nbytes
    _ggml.ggml_backend_tensor_set(tensor, array.ctypes.data, 0, array.nbytes)
