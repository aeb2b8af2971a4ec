// RUN: subquant opt %s --passes "legalize-qdq-to-quantized-op{hybrid=true}" | filecheck %s
// RUN: subquant opt %s --passes "legalize-qdq-to-quantized-op{explain=true}" 2>&1 | filecheck %s --check-prefix EXPLAIN
// RUN: not subquant opt %s --passes "legalize-qdq-to-quantized-op{hybrid=yes}" 2>&1 | filecheck %s --check-prefix WRONG

// WRONG: error: option 'hybrid' of legalize-qdq-to-quantized-op must be true or false, got 'yes'

!q = !quant.uniform<i8:f32, 0.5>
!w = !quant.uniform<i4:f32:1, {1.0, 2.0}>

// CHECK-LABEL: func.func @weights(
// CHECK-NEXT: %[[R:.+]] = stablehlo.dot_general %{{.+}}, %{{.+}}, contracting_dims = [1] x [0] : (tensor<3x4xf32>, tensor<4x2x!quant.uniform<i4:f32:1, {1.000000e+00,2.000000e+00}>>) -> tensor<3x2xf32>
// CHECK-NEXT: return %[[R]]
// EXPLAIN: hybrid.mlir:[[# @LINE + 3]]:8: remark: 'stablehlo.dot_general' op is left alone: operand 0 is not dequantized; with hybrid=true operand 1 alone can be quantized
func.func @weights(%x: tensor<3x4xf32>, %w: tensor<4x2x!w>) -> tensor<3x2xf32> {
  %b = stablehlo.uniform_dequantize %w : (tensor<4x2x!w>) -> tensor<4x2xf32>
  %s = stablehlo.dot_general %x, %b, contracting_dims = [1] x [0] : (tensor<3x4xf32>, tensor<4x2xf32>) -> tensor<3x2xf32>
  return %s : tensor<3x2xf32>
}

// Storage types differ, so only the weights can be quantized: the casts around stay.
// CHECK-LABEL: func.func @two_storage_types(
// CHECK-NEXT: %[[A:.+]] = stablehlo.uniform_dequantize
// CHECK-NEXT: %[[S:.+]] = stablehlo.dot_general %[[A]], %{{.+}}, contracting_dims = [1] x [0] : (tensor<3x4xf32>, tensor<4x2x!quant.uniform<i4:f32:1, {1.000000e+00,2.000000e+00}>>) -> tensor<3x2xf32>
// CHECK-NEXT: %[[R:.+]] = stablehlo.uniform_quantize %[[S]]
// CHECK-NEXT: return %[[R]]
// EXPLAIN: hybrid.mlir:{{[0-9]+}}:8: remark: 'stablehlo.dot_general' op is left alone: operand 0 and operand 1 must have one storage type, got !quant.uniform<i8:f32, 5.000000e-01> and !quant.uniform<i4:f32:1, {1.000000e+00,2.000000e+00}> (C17); with hybrid=true operand 1 alone can be quantized
func.func @two_storage_types(%x: tensor<3x4x!q>, %w: tensor<4x2x!w>) -> tensor<3x2x!q> {
  %a = stablehlo.uniform_dequantize %x : (tensor<3x4x!q>) -> tensor<3x4xf32>
  %b = stablehlo.uniform_dequantize %w : (tensor<4x2x!w>) -> tensor<4x2xf32>
  %s = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] : (tensor<3x4xf32>, tensor<4x2xf32>) -> tensor<3x2xf32>
  %r = stablehlo.uniform_quantize %s : (tensor<3x2xf32>) -> tensor<3x2x!q>
  return %r : tensor<3x2x!q>
}
