"""Device arrays: copies, NumPy's protocols, quantized arguments, results, and donation."""

from __future__ import annotations

import gc
import weakref

import ml_dtypes
import numpy as np
import pytest

from device_programs import PROGRAM, compile_for
from devices import ON_DEVICES
from subquant import DeviceArray
from subquant.errors import SignatureError, UsageError
from subquant.numerics.casts import dequantize, quantize
from subquant.runtime import Device

LARGE = 1 << 16


@ON_DEVICES
@pytest.mark.parametrize(
    "dtype",
    [np.float32, np.float16, ml_dtypes.bfloat16, np.int8, np.uint8, np.int32, np.int64, np.bool_],
)
def test_put_and_read_back(device: Device, device_name: str, dtype: type) -> None:
    array = np.arange(24).reshape(2, 3, 4)[:, ::2].astype(dtype)
    put = device.put(array)
    assert isinstance(put, DeviceArray)
    assert (put.shape, put.ndim, put.size, len(put)) == ((2, 2, 4), 3, 16, 2)
    assert put.dtype == array.dtype
    assert put.nbytes == array.nbytes
    np.testing.assert_array_equal(put.numpy(), array, strict=True)
    np.testing.assert_array_equal(np.asarray(put), array, strict=True)
    array[:] = 0
    assert np.asarray(put).any(), "it is a copy"
    for other in (np.zeros((0, 3), dtype), np.ones((), dtype)):
        np.testing.assert_array_equal(np.asarray(device.put(other)), other, strict=True)


@ON_DEVICES
def test_dlpack_and_numpy_protocols(device: Device, device_name: str) -> None:
    array = np.arange(6, dtype=np.float32)
    put = device.put(array)
    np.testing.assert_array_equal(np.from_dlpack(put), array)
    old = np.asarray(put).copy()
    np.testing.assert_array_equal(np.add(put, 1), old + 1)
    np.testing.assert_array_equal(np.asarray(put, np.float64), old.astype(np.float64), strict=True)
    assert put.__dlpack_device__() == (1, 0)
    assert put.__dlpack__()  # to what knows no array that is only to be read: of a copy


def test_numpy_reads_the_memory_itself(cpu: Device) -> None:
    """The view is read-only, and keeps the memory alive."""
    put = cpu.put(np.arange(6, dtype=np.float32))
    view = np.asarray(put)
    assert np.shares_memory(view, np.asarray(put))
    assert not view.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 1
    del put
    np.testing.assert_array_equal(view, np.arange(6))
    packed = cpu.put(np.arange(6, dtype=ml_dtypes.bfloat16))
    with pytest.raises(ValueError, match="takes a copy to read"):
        packed.__array__(copy=False)


def test_an_array_keeps_its_device_open() -> None:
    device = Device("local-sync")
    opened = weakref.ref(device.open())
    put = device.put(np.ones(1 << 20, np.uint8))
    del device
    assert opened() is not None
    assert np.asarray(put).all()
    del put
    assert opened() is None


@ON_DEVICES
def test_the_garbage_collector_frees_arrays(device: Device, device_name: str) -> None:
    """A buffer that is freed after its device crashes, in whatever order the collector works."""
    own = Device(device.name)
    for _ in range(3):
        cycle: list[object] = [compile_for(PROGRAM, own)]
        cycle += [cycle, cycle[0].twice(np.ones(6, np.int8), resident=True), own.put([1.0])]
        cycle.append(np.asarray(cycle[-1]))
        arrays = [weakref.ref(cycle[-2]), weakref.ref(cycle[2][0])]
        own = Device(device.name)
        del cycle
        gc.collect()
        assert [array() for array in arrays] == [None, None]


@ON_DEVICES
def test_a_quantized_argument_is_packed_once(device: Device, device_name: str) -> None:
    product = compile_for(PROGRAM, device).product
    rng = np.random.default_rng(1)
    stored, x = rng.integers(-8, 8, (4, 8)).astype(np.int8), rng.random(8, np.float32)
    parameters = product.signature.inputs[0].parameters
    expected = dequantize(stored, parameters).astype(np.float64) @ x
    weights = product.put(0, stored)
    assert weights.type is product.signature.inputs[0]
    np.testing.assert_allclose(product(weights, x), expected, rtol=1e-6)
    np.testing.assert_array_equal(weights.numpy(), stored, strict=True)
    np.testing.assert_array_equal(
        weights.numpy(quantized_io=True), dequantize(stored, parameters), strict=True
    )
    if product.signature.inputs[0].plane_bits is not None:
        assert weights.nbytes == 16
    reals = dequantize(stored, parameters) + np.float32(0.01)
    repacked = product.put("weights", reals, quantized_io=True)
    np.testing.assert_array_equal(repacked.numpy(), quantize(reals, parameters), strict=True)
    np.testing.assert_allclose(product(repacked, x, quantized_io=True), expected, rtol=1e-6)


@ON_DEVICES
def test_results_stay_on_the_device(device: Device, device_name: str) -> None:
    executable = compile_for(PROGRAM, device)
    q = np.array([-127, -3, 0, 5, 8, 126], np.int8)
    parameters = executable.halve.signature.inputs[0].parameters
    expected = q
    result = executable.halve(q, resident=True)
    for _ in range(2):
        expected = quantize(dequantize(expected, parameters) / 2, parameters)
        np.testing.assert_array_equal(result.numpy(), expected, strict=True)
        result = executable.halve(result, resident=True)
    first, second = executable.twice(result, resident=True)  # storage is what plain integers are
    doubled = quantize(dequantize(expected, parameters) / 2, parameters) * 2
    np.testing.assert_array_equal(first.numpy(), doubled)
    np.testing.assert_array_equal(second.numpy(), doubled)
    assert executable.number(1.5, resident=True) == 1.5


@ON_DEVICES
def test_dynamic_and_unranked_arguments(device: Device, device_name: str) -> None:
    executable = compile_for(PROGRAM, device)
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    unranked = executable.any(device.put(array), resident=True)
    assert unranked.shape == (2, 3)
    np.testing.assert_array_equal(executable.any(unranked), array, strict=True)
    row = executable.same(device.put(array[0]), resident=True)
    np.testing.assert_array_equal(executable.same(row), array[0], strict=True)
    np.testing.assert_array_equal(executable.any(row), array[0], strict=True)
    assert "of shape (3,)" in repr(row)


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("twice", np.ones(5, np.int8), "argument 0 of 'twice' must have the shape 6, got 5"),
        (
            "twice",
            np.ones(6, np.int16),
            "tensor<6xi8>, got <DeviceArray tensor<6xi16>",
        ),
        ("twice", np.ones(6, np.float32), "must be stored as tensor<6xi8>"),
        ("halve", np.ones(6, np.int8), "must be stored as tensor<6x!quant.uniform<"),
        ("halve", np.ones(6, np.uint8), "f.put(argument, array)"),
        ("same", np.ones((2, 2), np.float32), "must have the shape ?, got 2x2"),
        ("number", np.ones((), np.float32), "must be stored as f32"),
    ],
)
def test_arrays_that_do_not_fit(cpu: Device, name: str, array: np.ndarray, message: str) -> None:
    with pytest.raises(SignatureError) as caught:
        compile_for(PROGRAM, cpu)[name](cpu.put(array))
    assert message in str(caught.value)


def test_wrong_uses(cpu: Device) -> None:
    executable = compile_for(PROGRAM, cpu)
    assert executable.product.put("weights", np.zeros((4, 8), np.int8)).shape == (4, 8)
    for argument in (2, -1, "none", True):
        with pytest.raises(UsageError, match=f"function 'product' has no argument '{argument}'"):
            executable.product.put(argument, np.zeros((4, 8), np.int8))
    with pytest.raises(SignatureError, match="argument 0 of 'halve' must have storage values in"):
        executable.halve.put(0, np.full(6, -128))
    with pytest.raises(SignatureError, match="argument 0 of 'number' is a number"):
        executable.number.put(0, 1.0)
    with pytest.raises(SignatureError, match="the array is no array that programs take"):
        cpu.put(np.array(["a"]))
    with pytest.raises(TypeError, match="no length"):
        len(cpu.put(1.0))


@pytest.mark.vulkan
def test_an_array_of_another_device(cpu: Device, vulkan: Device) -> None:
    array = np.ones(6, np.int8)
    for here, there in ((cpu, vulkan), (vulkan, cpu)):
        with pytest.raises(SignatureError, match="lies in the memory of another device"):
            compile_for(PROGRAM, here).twice(there.put(array))


def test_cpu_devices_share_memory(cpu: Device) -> None:
    array = np.arange(6, dtype=np.float32)
    put = Device("llvm-cpu", threads=1).put(array)
    result = compile_for(PROGRAM, cpu).same(put, resident=True)
    del put
    np.testing.assert_array_equal(result.numpy(), array)
