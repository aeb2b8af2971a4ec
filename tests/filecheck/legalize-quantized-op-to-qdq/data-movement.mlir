// RUN: subquant opt %s --passes "legalize-quantized-op-to-qdq{data-movement=true}" | filecheck %s

!q = !quant.uniform<i8:f32, 0.5:3>
!axis0 = !quant.uniform<i8:f32:0, {1.0, 2.0}>
!axis1 = !quant.uniform<i8:f32:1, {1.0, 2.0}>

// CHECK-LABEL: func.func @transpose(
// CHECK-NEXT: %[[A:.+]] = stablehlo.uniform_dequantize %{{.+}} : (tensor<2x3x!quant.uniform<i8:f32:0, {1.000000e+00,2.000000e+00}>>) -> tensor<2x3xf32>
// CHECK-NEXT: %[[T:.+]] = stablehlo.transpose %[[A]], dims = [1, 0] : (tensor<2x3xf32>) -> tensor<3x2xf32>
// CHECK-NEXT: %[[R:.+]] = stablehlo.uniform_quantize %[[T]] : (tensor<3x2xf32>) -> tensor<3x2x!quant.uniform<i8:f32:1, {1.000000e+00,2.000000e+00}>>
// CHECK-NEXT: return %[[R]]
func.func @transpose(%x: tensor<2x3x!axis0>) -> tensor<3x2x!axis1> {
  %r = stablehlo.transpose %x, dims = [1, 0] : (tensor<2x3x!axis0>) -> tensor<3x2x!axis1>
  return %r : tensor<3x2x!axis1>
}

// CHECK-LABEL: func.func @sort(
// CHECK: "stablehlo.sort"
// CHECK-NEXT: ^bb0(%[[A:[^:]+]]: tensor<f32>, %[[B:[^:]+]]: tensor<f32>):
// CHECK-NEXT: stablehlo.compare LT, %[[A]], %[[B]] : (tensor<f32>, tensor<f32>) -> tensor<i1>
// CHECK: stablehlo.uniform_quantize
func.func @sort(%x: tensor<4x!q>) -> tensor<4x!q> {
  %r = "stablehlo.sort"(%x) ({
  ^bb0(%a: tensor<!q>, %b: tensor<!q>):
    %p = stablehlo.compare LT, %a, %b : (tensor<!q>, tensor<!q>) -> tensor<i1>
    stablehlo.return %p : tensor<i1>
  }) : (tensor<4x!q>) -> tensor<4x!q>
  return %r : tensor<4x!q>
}
