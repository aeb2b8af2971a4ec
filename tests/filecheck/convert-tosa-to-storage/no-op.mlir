// RUN: subquant opt %s --passes convert-tosa-to-storage | filecheck %s

// Signless integers in TOSA; quantized and unsigned values elsewhere.
// CHECK-LABEL: func.func @signless(
// CHECK: tosa.add
// CHECK-LABEL: func.func @elsewhere(
// CHECK: quant.dcast
func.func @signless(%x: tensor<4xi32>) -> tensor<4xi32> {
  %0 = tosa.add %x, %x : (tensor<4xi32>, tensor<4xi32>) -> tensor<4xi32>
  return %0 : tensor<4xi32>
}
func.func @elsewhere(%x: tensor<4x!quant.uniform<i8:f32, 0.5>>) -> tensor<4xf32> {
  %0 = quant.dcast %x : tensor<4x!quant.uniform<i8:f32, 0.5>> to tensor<4xf32>
  return %0 : tensor<4xf32>
}
