"""Programs and helpers of the tests of device memory."""

from __future__ import annotations

import numpy as np

import subquant
from programs import PRODUCT, one_operation
from subquant.runtime import Device, Executable

QUANTIZED = """
!w = !quant.uniform<i4:f32:{0:2}, {{0.5:1}, {0.25:-2}}>
!n = !quant.uniform<i8<-127:127>:f32, 0.5>
func.func @product(%w: tensor<4x8x!w>, %x: tensor<8xf32>) -> tensor<4xf32>
    attributes {subquant.argument_names = ["weights", "x"]} {
  %d = quant.dcast %w : tensor<4x8x!w> to tensor<4x8xf32>
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<4xf32>
  %i = linalg.fill ins(%z : f32) outs(%e : tensor<4xf32>) -> tensor<4xf32>
  %y = linalg.matvec ins(%d, %x : tensor<4x8xf32>, tensor<8xf32>)
      outs(%i : tensor<4xf32>) -> tensor<4xf32>
  return %y : tensor<4xf32>
}
func.func @halve(%q: tensor<6x!n>) -> tensor<6x!n> {
  %x = quant.dcast %q : tensor<6x!n> to tensor<6xf32>
  %c = arith.constant dense<0.5> : tensor<6xf32>
  %h = arith.mulf %x, %c : tensor<6xf32>
  %r = quant.qcast %h : tensor<6xf32> to tensor<6x!n>
  return %r : tensor<6x!n>
}
"""
"""Functions of quantized arguments: `product` and `halve`."""

PROGRAM = (
    QUANTIZED
    + """
func.func @twice(%x: tensor<6xi8>) -> (tensor<6xi8>, tensor<6xi8>) {
  %y = arith.addi %x, %x : tensor<6xi8>
  return %y, %y : tensor<6xi8>, tensor<6xi8>
}
func.func @same(%x: tensor<?xf32>) -> tensor<?xf32> {
  return %x : tensor<?xf32>
}
func.func @any(%x: tensor<*xf32>) -> tensor<*xf32> {
  return %x : tensor<*xf32>
}
func.func @number(%x: f32) -> f32 {
  return %x : f32
}
"""
)
UPDATES = """
func.func @update(%c: tensor<16384xf32>, %x: tensor<4xf32>, %i: tensor<i32>) -> tensor<16384xf32>
    attributes {subquant.argument_names = ["cache", "x", "i"]} {
  %0 = stablehlo.dynamic_update_slice %c, %x, %i
      : (tensor<16384xf32>, tensor<4xf32>, tensor<i32>) -> tensor<16384xf32>
  return %0 : tensor<16384xf32>
}
func.func @through(%c: tensor<128x128xf32>, %x: tensor<4xf32>) -> tensor<16384xf32> {
  %z = stablehlo.constant dense<0.0> : tensor<128x128xf32>
  %i = stablehlo.constant dense<7> : tensor<i32>
  %s = stablehlo.add %c, %z : tensor<128x128xf32>
  %r = stablehlo.reshape %s : (tensor<128x128xf32>) -> tensor<16384xf32>
  %0 = func.call @private(%r, %x, %i)
      : (tensor<16384xf32>, tensor<4xf32>, tensor<i32>) -> tensor<16384xf32>
  return %0 : tensor<16384xf32>
}
func.func private @private(%c: tensor<16384xf32>, %x: tensor<4xf32>, %i: tensor<i32>)
    -> tensor<16384xf32> {
  %0 = stablehlo.dynamic_update_slice %c, %x, %i
      : (tensor<16384xf32>, tensor<4xf32>, tensor<i32>) -> tensor<16384xf32>
  return %0 : tensor<16384xf32>
}
func.func @identity(%x: tensor<16384xi32>) -> tensor<16384xi32> {
  %z = stablehlo.constant dense<0> : tensor<16384xi32>
  %0 = stablehlo.add %x, %z : tensor<16384xi32>
  return %0 : tensor<16384xi32>
}
"""
ACCUMULATES = """
func.func @accumulate(%a: tensor<64x64xf32>, %b: tensor<64x64xf32>, %c: tensor<64x64xf32>)
    -> tensor<64x64xf32> {
  %0 = linalg.matmul ins(%a, %b : tensor<64x64xf32>, tensor<64x64xf32>)
      outs(%c : tensor<64x64xf32>) -> tensor<64x64xf32>
  return %0 : tensor<64x64xf32>
}
func.func @insert(%a: tensor<128x64xf32>, %b: tensor<4x64xf32>) -> tensor<128x64xf32> {
  %0 = tensor.insert_slice %b into %a[3, 0][4, 64][1, 1]
      : tensor<4x64xf32> into tensor<128x64xf32>
  return %0 : tensor<128x64xf32>
}
func.func @loop(%c: tensor<16384xf32>, %x: tensor<4xf32>, %n: index) -> tensor<16384xf32> {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %r = scf.for %i = %c0 to %n step %c1 iter_args(%a = %c) -> tensor<16384xf32> {
    %0 = tensor.insert_slice %x into %a[%i][4][1] : tensor<4xf32> into tensor<16384xf32>
    scf.yield %0 : tensor<16384xf32>
  }
  return %r : tensor<16384xf32>
}
"""
LARGE = one_operation(PRODUCT, ("64x1024xf32", "1024x512xf32"), "64x512xf32", name="large")


def compile_for(text: str, device: Device) -> Executable:
    """Compile a program for a device, and load it there."""
    target = "vulkan" if device.is_vulkan else "llvm-cpu"
    return subquant.compile(text, target=target, device=device)


def aligned_copy(array: np.ndarray, offset: int = 0) -> np.ndarray:
    """Return a copy that starts `offset` bytes after a multiple of 64."""
    memory = np.empty(array.nbytes + 128, np.uint8)
    start = -memory.ctypes.data % 64 + offset
    copy = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy
