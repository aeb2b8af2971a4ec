"""Run executables: NumPy arrays in, NumPy arrays out, on a CPU or a Vulkan device.

What an argument or result stands for comes from the function's recorded signature
(`subquant.signature`), so that quantized values can be given and taken as storage or as reals.

IREE 3.13's Python runtime fails to import host memory on software Vulkan devices, and can return
views of device memory that is freed with the result. So arguments are written into mapped device
buffers, and results are copied out, here and nowhere else.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from .errors import (
    EnvironmentProblem,
    ExecutionError,
    InputError,
    SignatureError,
    UsageError,
)
from .formats.irpa import check_mountable
from .quantization import Array, dequantize, quantize
from .signature import REFLECTION_KEY, TARGET_KEY, Signature, ValueType

__all__ = [
    "Device",
    "Executable",
    "Function",
    "array_of_argument",
    "array_of_result",
    "list_devices",
    "read_signatures",
]

DEVICES = {"llvm-cpu": "local-task", "vulkan": "vulkan"}
"""Target names to IREE device names; any IREE device URI is accepted as well."""

_FLOATS: dict[str, Any] = {
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "f32": np.float32,
    "f64": np.float64,
}


def _iree() -> Any:
    try:
        import iree.runtime
    except ImportError:
        raise EnvironmentProblem(
            "IREE's runtime is not installed; run: pip install iree-base-runtime"
        ) from None
    return iree.runtime


def _dtype_of(element: str) -> np.dtype[Any]:
    """The NumPy dtype that holds an MLIR element type in memory.

    Raises:
        InputError: no dtype does.
    """
    if element in _FLOATS:
        dtype: np.dtype[Any] = np.dtype(_FLOATS[element])
        return dtype
    if element == "index":
        return np.dtype(np.int64)
    match = re.fullmatch(r"[su]?i(\d+)", element)
    if match and int(match.group(1)) == 1:
        return np.dtype(np.bool_)
    if match and int(match.group(1)) <= 64:
        width = next(w for w in (8, 16, 32, 64) if w >= int(match.group(1)))
        return np.dtype(f"{'u' if element.startswith('u') else 'i'}{width // 8}")
    raise InputError(f"values of type '{element}' cannot be exchanged with NumPy")


def _element_type(element: str) -> int:
    """IREE's number for an MLIR element type."""
    types = _iree().HalElementType
    names = {"f16": "FLOAT_16", "bf16": "BFLOAT_16", "f32": "FLOAT_32", "f64": "FLOAT_64"}
    names |= {"i1": "BOOL_8", "i8": "INT_8", "i16": "INT_16", "i32": "INT_32", "i64": "INT_64"}
    names |= {f"ui{width}": f"UINT_{width}" for width in (8, 16, 32, 64)}
    names |= {"index": "INT_64"}
    if element not in names:
        raise InputError(f"values of type '{element}' cannot be exchanged with NumPy")
    return int(getattr(types, names[element]))


class Device:
    """A device that runs executables.

    Args:
        name: ``llvm-cpu``, ``vulkan`` (the first one), or an IREE device URI such as
            ``vulkan://GPU-6d65...`` or ``local-sync``.

    Raises:
        EnvironmentProblem: there is no such device.
    """

    def __init__(self, name: str = "llvm-cpu") -> None:
        self.name = name
        runtime = _iree()
        uri = DEVICES.get(name, name)
        self.features: dict[str, bool] = {}
        try:
            if uri.startswith("vulkan"):
                uri, self.features = _pick_vulkan_device(uri)
            # A device in the cache, which is never emptied, keeps two threads of IREE spinning.
            self.handle = runtime.get_device(uri, cache=False)
        except (RuntimeError, ValueError, IndexError) as error:
            raise EnvironmentProblem(_no_device(uri, error)) from None

    @property
    def is_vulkan(self) -> bool:
        """True for a Vulkan device."""
        return DEVICES.get(self.name, self.name).startswith("vulkan")

    @property
    def has_8bit_storage(self) -> bool:
        """True for a device that loads and stores 8- and 16-bit values."""
        needed = ("storageBuffer8BitAccess", "storageBuffer16BitAccess", "shaderInt8")
        return not self.is_vulkan or all(self.features.get(name, False) for name in needed)

    @property
    def vulkan_target(self) -> str:
        """The key of `subquant.compiler.VULKAN_TARGETS` that this device can run."""
        return "generic" if self.has_8bit_storage else "generic-32bit"

    def upload(self, array: Array, element: str) -> Any:
        """Copy an array into a new device buffer and return a buffer view.

        Args:
            array: any shape, of the dtype that holds `element`.
            element: the MLIR element type.
        """
        runtime = _iree()
        data = np.ascontiguousarray(array)
        # Whole words, because a device may load the last bytes with the word around them.
        size = max(-(-data.nbytes // 4) * 4, 4)
        buffer = self.handle.allocator.allocate_buffer(
            memory_type=int(runtime.MemoryType.DEVICE_LOCAL | runtime.MemoryType.HOST_VISIBLE),
            allowed_usage=int(runtime.BufferUsage.DEFAULT | runtime.BufferUsage.MAPPING),
            allocation_size=size,
        )
        mapped = buffer.map()
        target = mapped.asarray((size,), np.dtype(np.uint8))
        target[: data.nbytes] = data.reshape(-1).view(np.uint8)
        target[data.nbytes :] = 0
        del target, mapped
        return runtime.HalBufferView(buffer, array.shape, _element_type(element))

    def download(self, view: Any, dtype: np.dtype[Any]) -> Array:
        """Copy a buffer view's contents into a new array."""
        runtime = _iree()
        shape = tuple(view.shape)
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        if not size:
            return np.zeros(shape, dtype)
        source = view.get_buffer()
        staging = self.handle.allocator.allocate_buffer(
            memory_type=int(runtime.MemoryType.HOST_LOCAL | runtime.MemoryType.DEVICE_VISIBLE),
            allowed_usage=int(runtime.BufferUsage.TRANSFER | runtime.BufferUsage.MAPPING),
            allocation_size=source.byte_length(),
        )
        done = self.handle.create_semaphore(0)
        fence = runtime.HalFence.create_at
        self.handle.queue_copy(source, staging, fence(done, 0), fence(done, 1))
        fence(done, 1).wait()
        mapped = staging.map()
        raw = mapped.asarray((source.byte_length(),), np.dtype(np.uint8))
        array: Array = raw[:size].copy().view(dtype).reshape(shape)
        del raw, mapped
        return array


def _pick_vulkan_device(uri: str) -> tuple[str, dict[str, bool]]:
    """Return the URI and the features of a device: the one named, or the most capable one."""
    driver = _iree().get_driver("vulkan")
    best: tuple[str, dict[str, bool]] | None = None
    for device in driver.query_available_devices():
        info = driver.dump_device_info(device["device_id"])
        features = {name: value == "yes" for name, value in re.findall(r"(\w+)=(yes|no)", info)}
        candidate = f"vulkan://{device['path']}"
        if uri == candidate:
            return candidate, features
        better = best is None or (
            features.get("storageBuffer8BitAccess", False)
            and not best[1].get("storageBuffer8BitAccess", False)
        )
        if better:
            best = candidate, features
    if best is None or uri != "vulkan":
        raise ValueError("not found among the devices of the Vulkan driver")
    return best


def list_devices() -> list[tuple[str, str]]:
    """Return the name and the description of each device that IREE finds here."""
    runtime = _iree()
    found = []
    for driver_name in ("local-task", "vulkan"):
        try:
            driver = runtime.get_driver(driver_name)
            devices = driver.query_available_devices()
        except (RuntimeError, ValueError, IndexError):
            continue
        for device in devices:
            path = str(device.get("path") or "")
            uri = f"{driver_name}://{path}" if path else driver_name
            found.append((uri, str(device.get("name") or driver_name)))
    return found


def _no_device(uri: str, error: Exception) -> str:
    reason = str(error).splitlines()[0]
    if uri.startswith("vulkan"):
        return (
            f"no Vulkan device '{uri}' ({reason}); on Debian install libvulkan1 and "
            "mesa-vulkan-drivers for a software device, or set VK_DRIVER_FILES"
        )
    return f"no device '{uri}' ({reason}); expected llvm-cpu, vulkan or an IREE device URI"


class Executable:
    """A loaded executable.

    Args:
        source: a path, or the bytes of a ``.vmfb``.
        device: a `Device` or its name.
        parameters: parameter files (``.irpa``) by scope.

    Raises:
        InputError: the file cannot be read or is no executable.
        EnvironmentProblem: there is no such device.
        ExecutionError: the executable was compiled for another device.
    """

    def __init__(
        self,
        source: str | os.PathLike[str] | bytes,
        device: Device | str = "llvm-cpu",
        parameters: Mapping[str, str | os.PathLike[str]] | None = None,
    ) -> None:
        runtime = _iree()
        name, self._module = _load_module(source)
        self.device = device if isinstance(device, Device) else Device(device)
        instance = _instance()
        _check_target(self._module, name, self.device)
        modules = [runtime.create_hal_module(instance, self.device.handle)]
        if parameters:
            modules.append(_parameters_module(instance, parameters))
        try:
            self._context = runtime.VmContext(instance, [*modules, self._module])
        except (RuntimeError, ValueError, IndexError) as error:
            raise ExecutionError(_load_message(name, self.device, error)) from None
        self.functions: dict[str, Function] = {}
        for function_name in _public_functions(self._module):
            handle = self._module.lookup_function(function_name)
            self.functions[function_name] = Function(function_name, handle, self)

    def __getitem__(self, name: str) -> Function:
        """Return a function by name; UsageError if there is none."""
        if name not in self.functions:
            raise UsageError(
                f"no function is named '{name}'; expected one of: {', '.join(self.functions)}"
            )
        return self.functions[name]

    def __getattr__(self, name: str) -> Function:
        functions = self.__dict__.get("functions", {})
        if name in functions:
            function: Function = functions[name]
            return function
        raise AttributeError(name)


class Function:
    """A function of an executable; call it with one array for each argument."""

    def __init__(self, name: str, handle: Any, executable: Executable) -> None:
        self.name = name
        self._handle = handle
        self._executable = executable
        self.signature = _signature_of(handle)

    def __repr__(self) -> str:
        if self.signature is None:
            return f"<function {self.name}>"
        inputs = ", ".join(str(value) for value in self.signature.inputs)
        outputs = ", ".join(str(value) for value in self.signature.outputs)
        return f"<function {self.name}({inputs}) -> ({outputs})>"

    def __call__(self, *arguments: Any, quantized_io: bool = False) -> Any:
        """Run the function.

        Args:
            *arguments: arrays or numbers, one for each argument of the signature. A quantized one
                is given as storage values (integers in the storage range).
            quantized_io: take reals for quantized arguments and return reals for quantized
                results: they are quantized and dequantized here by the reference arithmetic.

        Returns:
            An array for each result: the array itself if there is one, a tuple if there are more,
            None if there is none.

        Raises:
            SignatureError: an argument does not fit.
            ExecutionError: the runtime failed, or a check of a dynamic dimension did.
        """
        results = self.invoke(arguments, quantized_io=quantized_io)
        if not results:
            return None
        return results[0] if len(results) == 1 else tuple(results)

    def invoke(self, arguments: Sequence[Any], *, quantized_io: bool = False) -> list[Any]:
        """Run the function and return the list of its results; otherwise as a call."""
        if self.signature is None:
            raise SignatureError(
                f"function '{self.name}' has no signature to convert its arguments with; compile "
                "it with 'subquant compile'"
            )
        runtime = _iree()
        inputs = self.signature.inputs
        if len(arguments) != len(inputs):
            raise SignatureError(
                f"function '{self.name}' takes {len(inputs)} arguments, got {len(arguments)}"
            )
        device = self._executable.device
        pushed = runtime.VmVariantList(len(inputs))
        keep = []
        for number, (argument, type_) in enumerate(zip(arguments, inputs, strict=True)):
            where = f"argument {number} of '{self.name}'"
            array = array_of_argument(argument, type_, where, quantized_io)
            keep.append(_push(pushed, array, type_, device))
        popped = runtime.VmVariantList(len(self.signature.outputs))
        try:
            self._executable._context.invoke(self._handle, pushed, popped)
        except (RuntimeError, ValueError, IndexError) as error:
            raise ExecutionError(_run_message(self.name, error, inputs)) from None
        return _results(popped, self.signature.outputs, device, quantized_io)


# -- arguments ------------------------------------------------------------------------------------


def array_of_argument(argument: Any, type_: ValueType, where: str, quantized_io: bool) -> Array:
    """Check an argument and return the array that the program stores for it.

    Raises:
        SignatureError: it does not fit its type.
    """
    array = _as_array(argument, type_, where, quantized_io)
    _check_shape(array, type_, where)
    parameters = type_.parameters
    if parameters is None:
        return _check_integers(array, type_, where)
    if quantized_io:
        try:
            return quantize(array, parameters)
        except UsageError as error:
            raise SignatureError(f"{where}: {error.message}") from None
    storage = parameters.storage
    if array.size and not (
        storage.minimum <= int(array.min()) and int(array.max()) <= storage.maximum
    ):
        raise SignatureError(
            f"{where} must have storage values in {storage.minimum}:{storage.maximum}, got "
            f"{int(array.min())}:{int(array.max())}"
        )
    return array.astype(storage.dtype)


def _as_array(argument: Any, type_: ValueType, where: str, quantized_io: bool) -> Array:
    parameters = type_.parameters
    given = hasattr(argument, "dtype")
    try:
        array = np.asarray(argument)
    except ValueError:
        raise SignatureError(f"{where} is no rectangular array") from None
    real = array.dtype.kind == "f" or array.dtype == ml_dtypes.bfloat16
    integral = array.dtype.kind in "iu"
    if parameters is not None and quantized_io:
        if real or (integral and not given):
            return array.astype(parameters.expressed.dtype)
        raise SignatureError(
            f"{where} must be reals, to be quantized, got {array.dtype}; to give storage values, "
            "leave out quantized_io (--quantized-io)"
        )
    if parameters is not None:
        if integral:
            return array
        raise SignatureError(
            f"{where} must be storage values ({parameters.storage}), got {array.dtype}; to give "
            "reals, set quantized_io (--quantized-io)"
        )
    expected = _dtype_of(type_.element)
    if array.dtype == expected:
        return array
    if not given and (integral or (real and expected.kind != "i") or not array.size):
        if expected.kind in "iu" and array.size:
            return array  # checked against the width below
        with np.errstate(over="ignore"):
            return array.astype(expected)
    if integral and expected.kind in "iu" and not type_.element.startswith("u"):
        return array
    raise SignatureError(
        f"{where} must be of dtype {expected} ({type_.element}), got {array.dtype}; convert it "
        f"with astype"
    )


def _check_integers(array: Array, type_: ValueType, where: str) -> Array:
    """Check that integers fit their type (signed, or unsigned with the same bits)."""
    expected = _dtype_of(type_.element)
    if expected.kind not in "iu":
        return array
    match = re.search(r"\d+", type_.element)
    width = int(match.group()) if match else 64
    if array.size and width < 64:
        low, high = int(array.min()), int(array.max())
        if low < -(1 << (width - 1)) or high >= 1 << width:
            raise SignatureError(f"{where} must fit {type_.element}, got values {low}:{high}")
        bits = array.astype(np.int64) & ((1 << width) - 1)
        array = np.where(bits >> (width - 1), bits - (1 << width), bits)
    return array.astype(np.int64).astype(expected)


def _check_shape(array: Array, type_: ValueType, where: str) -> None:
    if type_.shape is None:
        return
    fits = array.ndim == len(type_.shape) and all(
        expected is None or expected == extent
        for extent, expected in zip(array.shape, type_.shape, strict=True)
    )
    if not fits:
        expected = "x".join("?" if n is None else str(n) for n in type_.shape) or "scalar"
        got = "x".join(str(n) for n in array.shape) or "scalar"
        raise SignatureError(f"{where} must have the shape {expected}, got {got}")


_ABI_ELEMENT = re.compile(r"tensor<(?:[0-9?]+x)*([a-z0-9]+)[^>]*>")


def _abi_element(abi: str) -> str:
    match = _ABI_ELEMENT.fullmatch(abi)
    return match.group(1) if match else abi


def _push(pushed: Any, array: Array, type_: ValueType, device: Device) -> Any:
    """Push an array of storage values as what the compiled function takes for it."""
    abi = type_.abi
    element = _abi_element(abi[0])
    held = _held(array, type_)
    if not abi[0].startswith("tensor"):
        if element in _FLOATS:
            pushed.push_float(float(held))
        else:
            pushed.push_int(int(held))
        return None
    if type_.shape is None:
        view = device.upload(held.reshape(-1), element)
        extents = device.upload(np.array(array.shape, np.int64), "i64")
        pushed.push_ref(view)
        pushed.push_ref(extents)
        return view, extents
    view = device.upload(held, element)
    pushed.push_ref(view)
    return view


def _held(array: Array, type_: ValueType) -> Array:
    """Storage values in their container, where a program holds them sign-extended."""
    dtype = _dtype_of(_abi_element(type_.abi[0]))
    parameters = type_.parameters
    if parameters is None or parameters.storage.signed:
        return array.astype(dtype)
    width = parameters.storage.width
    values = array.astype(np.int64)
    return np.where(values >> (width - 1), values - (1 << width), values).astype(dtype)


# -- results --------------------------------------------------------------------------------------


def _results(
    popped: Any, outputs: Sequence[ValueType], device: Device, quantized_io: bool
) -> list[Any]:
    runtime = _iree()
    results: list[Any] = []
    position = 0
    for type_ in outputs:
        element = _abi_element(type_.abi[0])
        if type_.abi[0].startswith("tensor"):
            view = popped.get_as_object(position, runtime.HalBufferView)
            array = device.download(view, _dtype_of(element))
            position += 1
            if type_.shape is None:
                extents = popped.get_as_object(position, runtime.HalBufferView)
                shape = device.download(extents, np.dtype(np.int64))
                if int(np.prod(shape)) != array.size:
                    raise ExecutionError(
                        f"a result has {array.size} elements, and its shape is {shape.tolist()}"
                    )
                array = array.reshape(shape)
                position += 1
        else:
            array = _scalar(popped.get_variant(position), _dtype_of(element))
            position += 1
        results.append(array_of_result(array, type_, quantized_io))
    return results


def _scalar(value: Any, dtype: np.dtype[Any]) -> Array:
    """A number from IREE's virtual machine, which gives narrow integers as unsigned ones."""
    if dtype.kind != "i":
        return np.asarray(value, dtype)
    bits = int(value) & ((1 << 8 * dtype.itemsize) - 1)
    return np.asarray(bits, f"u{dtype.itemsize}").view(dtype)


def array_of_result(array: Array, type_: ValueType, quantized_io: bool) -> Array:
    """Return what the user sees of an array that the program stores."""
    parameters = type_.parameters
    if parameters is None:
        unsigned = re.fullmatch(r"ui(\d+)", type_.element)
        if unsigned and int(unsigned.group(1)) < 64:  # narrow ones are held sign-extended
            array = array.astype(np.int64) & ((1 << int(unsigned.group(1))) - 1)
        return array.astype(_dtype_of(type_.element), copy=False).reshape(array.shape)
    storage = parameters.storage
    if not storage.signed:
        array = array.astype(np.int64) & ((1 << storage.width) - 1)
    stored = array.astype(storage.dtype)
    return dequantize(stored, parameters) if quantized_io else stored


# -- the rest -------------------------------------------------------------------------------------

_vm_instance: Any = None


def read_signatures(path: str | os.PathLike[str]) -> dict[str, Signature]:
    """Return the signatures of an executable's functions, without a device.

    Raises:
        InputError: the file cannot be read or is no executable.
    """
    _, module = _load_module(path)
    signatures = {}
    for name in _public_functions(module):
        signature = _signature_of(module.lookup_function(name))
        if signature is not None:
            signatures[name] = signature
    return signatures


def _load_module(source: str | os.PathLike[str] | bytes) -> tuple[str, Any]:
    if isinstance(source, bytes):
        name, data = "<bytes>", source
    else:
        name = str(source)
        try:
            data = Path(source).read_bytes()
        except OSError as error:
            raise InputError(f"cannot read '{name}': {error.strerror}") from None
    try:
        return name, _iree().VmModule.copy_buffer(_instance(), data)
    except (RuntimeError, ValueError, IndexError):
        raise InputError(
            f"'{name}' is no IREE executable; expected the output of 'subquant compile'"
        ) from None


def _public_functions(module: Any) -> list[str]:
    """The functions that subquant recorded; of other executables those that look like a user's."""
    names = list(module.function_names)
    ours = [n for n in names if REFLECTION_KEY in dict(module.lookup_function(n).reflection)]
    return ours or [n for n in names if not n.startswith("__") and "$" not in n]


def _signature_of(handle: Any) -> Signature | None:
    reflection = dict(handle.reflection)
    text = reflection.get(REFLECTION_KEY)
    if text is not None:
        return Signature.from_json(text)
    declaration = reflection.get("iree.abi.declaration")
    return None if declaration is None else _signature_of_declaration(declaration)


def _instance() -> Any:
    global _vm_instance
    if _vm_instance is None:
        _vm_instance = _iree().VmInstance()
    return _vm_instance


def _parameters_module(instance: Any, parameters: Mapping[str, str | os.PathLike[str]]) -> Any:
    runtime = _iree()
    providers = []
    for scope, path in parameters.items():
        index = runtime.ParameterIndex()
        if os.fspath(path).endswith(".irpa"):
            check_mountable(path)
        try:
            index.load(str(path))
        except (RuntimeError, ValueError, IndexError, OSError) as error:
            reason = str(error).splitlines()[0]
            raise InputError(f"cannot read the parameters '{path}': {reason}") from None
        providers.append(index.create_provider(scope=scope))
    return runtime.create_io_parameters_module(instance, *providers)


def _check_target(module: Any, name: str, device: Device) -> None:
    """Refuse an executable that needs a device of another kind, before the driver crashes on it."""
    for function_name in module.function_names:
        target = dict(module.lookup_function(function_name).reflection).get(TARGET_KEY)
        if target is None:
            continue
        kind, _, variant = target.partition(":")
        if (kind == "vulkan") != device.is_vulkan:
            right = "vulkan" if device.is_vulkan else "llvm-cpu"
            raise ExecutionError(
                f"'{name}' was compiled for {kind}, and the device is '{device.name}'; compile it "
                f"with --target {right}"
            )
        if kind == "vulkan" and variant != "generic-32bit" and not device.has_8bit_storage:
            raise ExecutionError(
                f"'{name}' loads and stores 8-bit values, which the device '{device.name}' does "
                "not; compile it with --vulkan-target generic-32bit"
            )


def _load_message(name: str, device: Device, error: Exception) -> str:
    reason = str(error).splitlines()[0]
    if "io_parameters" in reason:
        return f"'{name}' needs parameters; give them as scope=file.irpa (--parameters)"
    return (
        f"'{name}' cannot be loaded on the device '{device.name}': {reason}; compile it for this "
        f"device (--target {'vulkan' if device.is_vulkan else 'llvm-cpu'})"
    )


_MISMATCH = re.compile(r"input(\d+) shape dimension (\d+) mismatch; expected (\d+) but have (\d+)")


def _run_message(name: str, error: Exception, inputs: Sequence[ValueType]) -> str:
    """The reason in IREE's message, without the status and the trace around it."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else repr(error)
    mismatch = _MISMATCH.search(text)
    if mismatch:  # IREE moves a check of an argument's extent to the argument
        position, axis, expected, got = (int(group) for group in mismatch.groups())
        owners = [number for number, value in enumerate(inputs) for _ in value.abi]
        return (
            f"function '{name}' stopped: dimension {axis} of argument {owners[position]} must be "
            f"{expected} at run time, for the scales it meets, got {got}"
        )
    if "empty buffer range" in text:
        return (
            f"function '{name}' failed: a dynamic tensor has no elements, which IREE's Vulkan "
            "driver does not run; leave out the call, or run it on llvm-cpu"
        )
    parts = [part.strip() for part in text.split(";") if part.strip()]
    for index, part in enumerate(parts):
        if "FAILED_PRECONDITION" in part and index + 1 < len(parts):
            return f"function '{name}' stopped: {parts[index + 1]}"
    return f"function '{name}' failed: {text}"


_DECLARED = re.compile(r"%\w+: ([^,()]+(?:\([^)]*\))?)")


def _signature_of_declaration(declaration: str) -> Signature | None:
    """Read the signature that IREE records itself, for executables of other tools."""
    head, arrow, tail = declaration.partition(" -> ")
    inputs = _DECLARED.findall(head.partition("(")[2])
    outputs = _DECLARED.findall(tail) if arrow else []
    values = [[_declared_value(text.strip()) for text in part] for part in (inputs, outputs)]
    if any(value is None for part in values for value in part):
        return None
    complete = [tuple(value for value in part if value is not None) for part in values]
    return Signature(complete[0], complete[1])


def _declared_value(text: str) -> ValueType | None:
    tensor = re.fullmatch(r"tensor<((?:[0-9?]+x)*)([a-z0-9]+)>", text)
    if tensor:
        extents = [n for n in tensor.group(1).split("x") if n]
        shape = tuple(None if n == "?" else int(n) for n in extents)
        return ValueType(tensor.group(2), shape, abi=(text,))
    if re.fullmatch(r"[a-z]+[0-9]*", text):
        return ValueType(text, is_scalar=True, abi=(text,))
    return None
