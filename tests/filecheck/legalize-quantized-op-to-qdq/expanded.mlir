// RUN: subquant opt %s --passes legalize-quantized-op-to-qdq --split-input-file | filecheck %s

// CHECK-LABEL: func.func @add(
// CHECK-SAME: %[[X:[^:]+]]: tensor<4x!quant.uniform<i8:f32, 5.000000e-01:3>>, %[[Y:[^:]+]]: tensor<4x!quant.uniform<i8:f32, 2.000000e+00>>
// CHECK-NEXT: %[[A:.+]] = stablehlo.uniform_dequantize %[[X]] : (tensor<4x!quant.uniform<i8:f32, 5.000000e-01:3>>) -> tensor<4xf32>
// CHECK-NEXT: %[[B:.+]] = stablehlo.uniform_dequantize %[[Y]] : (tensor<4x!quant.uniform<i8:f32, 2.000000e+00>>) -> tensor<4xf32>
// CHECK-NEXT: %[[S:.+]] = stablehlo.add %[[A]], %[[B]] : tensor<4xf32>
// CHECK-NEXT: %[[R:.+]] = stablehlo.uniform_quantize %[[S]] : (tensor<4xf32>) -> tensor<4x!quant.uniform<i8:f32, 3.000000e+00:-1>>
// CHECK-NEXT: return %[[R]]
!q1 = !quant.uniform<i8:f32, 0.5:3>
!q2 = !quant.uniform<i8:f32, 2.0>
!q3 = !quant.uniform<i8:f32, 3.0:-1>
func.func @add(%x: tensor<4x!q1>, %y: tensor<4x!q2>) -> tensor<4x!q3> {
  %r = stablehlo.add %x, %y : (tensor<4x!q1>, tensor<4x!q2>) -> tensor<4x!q3>
  return %r : tensor<4x!q3>
}

// -----

// Hybrid weights are dequantized; what was float stays so. The expressed type is the type's own.
// CHECK-LABEL: func.func @hybrid(
// CHECK-SAME: %[[X:[^:]+]]: tensor<3x4xbf16>, %[[W:[^:]+]]:
// CHECK-NEXT: %[[B:.+]] = stablehlo.uniform_dequantize %[[W]] : (tensor<4x2x!quant.uniform<i4:bf16:1, {1.000000e+00,2.000000e+00}>>) -> tensor<4x2xbf16>
// CHECK-NEXT: %[[R:.+]] = stablehlo.dot_general %[[X]], %[[B]], contracting_dims = [1] x [0] : (tensor<3x4xbf16>, tensor<4x2xbf16>) -> tensor<3x2xbf16>
// CHECK-NEXT: return %[[R]]
!w = !quant.uniform<i4:bf16:1, {1.0, 2.0}>
func.func @hybrid(%x: tensor<3x4xbf16>, %w: tensor<4x2x!w>) -> tensor<3x2xbf16> {
  %r = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<3x4xbf16>, tensor<4x2x!w>) -> tensor<3x2xbf16>
  return %r : tensor<3x2xbf16>
}

// -----

// A requantization is its two casts; a comparison needs no quantize.
// CHECK-LABEL: func.func @casts_and_predicates(
// CHECK-NEXT: %[[A:.+]] = stablehlo.uniform_dequantize
// CHECK-NEXT: %[[Q:.+]] = stablehlo.uniform_quantize %[[A]] : (tensor<?xf32>) -> tensor<?x!quant.uniform<i4:f32, 2.000000e+00>>
// CHECK-NEXT: %[[B:.+]] = stablehlo.uniform_dequantize %[[Q]]
// CHECK-NEXT: %[[C:.+]] = stablehlo.uniform_dequantize %[[Q]]
// CHECK-NEXT: %[[P:.+]] = stablehlo.compare GE, %[[B]], %[[C]] : (tensor<?xf32>, tensor<?xf32>) -> tensor<?xi1>
// CHECK-NEXT: return %[[P]]
!q = !quant.uniform<i8:f32, 0.5>
!p = !quant.uniform<i4:f32, 2.0>
func.func @casts_and_predicates(%x: tensor<?x!q>) -> tensor<?xi1> {
  %a = stablehlo.uniform_quantize %x : (tensor<?x!q>) -> tensor<?x!p>
  %r = stablehlo.compare GE, %a, %a : (tensor<?x!p>, tensor<?x!p>) -> tensor<?xi1>
  return %r : tensor<?xi1>
}

// -----

// Two functions of one operation, with an operand and a result of different storage.
// CHECK-LABEL: func.func @two_bodies(
// CHECK: "stablehlo.select_and_scatter"
// CHECK-NEXT: ^bb0(%{{.+}}: tensor<f32>, %{{.+}}: tensor<f32>):
// CHECK: stablehlo.compare GE, {{.+}} : (tensor<f32>, tensor<f32>) -> tensor<i1>
// CHECK: ^bb0(%{{.+}}: tensor<f32>, %{{.+}}: tensor<f32>):
// CHECK-NEXT: stablehlo.add {{.+}} : tensor<f32>
// CHECK: (tensor<4x4xf32>, tensor<2x2xf32>, tensor<f32>) -> tensor<4x4xf32>
// CHECK-NEXT: stablehlo.uniform_quantize {{.+}} : (tensor<4x4xf32>) -> tensor<4x4x!quant.uniform<i32:f32, 5.000000e-01>>
!q = !quant.uniform<i8:f32, 0.5>
!wide = !quant.uniform<i32:f32, 0.5>
func.func @two_bodies(%x: tensor<4x4x!q>, %s: tensor<2x2x!q>, %z: tensor<!q>) -> tensor<4x4x!wide> {
  %r = "stablehlo.select_and_scatter"(%x, %s, %z) ({
  ^bb0(%a: tensor<!q>, %b: tensor<!q>):
    %p = stablehlo.compare GE, %a, %b : (tensor<!q>, tensor<!q>) -> tensor<i1>
    stablehlo.return %p : tensor<i1>
  }, {
  ^bb0(%a: tensor<!wide>, %b: tensor<!wide>):
    %t = stablehlo.add %a, %b : tensor<!wide>
    stablehlo.return %t : tensor<!wide>
  }) {window_dimensions = array<i64: 2, 2>, window_strides = array<i64: 2, 2>} : (tensor<4x4x!q>, tensor<2x2x!q>, tensor<!q>) -> tensor<4x4x!wide>
  return %r : tensor<4x4x!wide>
}

// -----

// A body with casts in it keeps its element type; its operations are expanded where they are.
// CHECK-LABEL: func.func @casts_in_a_body(
// CHECK-NEXT: stablehlo.reduce(%{{.+}} init: %{{.+}}) across dimensions = [0] : (tensor<4x!quant.uniform<i8:f32, 5.000000e-01>>, tensor<!quant.uniform<i8:f32, 5.000000e-01>>)
// CHECK-NEXT: reducer(%[[A:[^:]+]]: tensor<!quant.uniform<i8:f32, 5.000000e-01>>, %[[B:[^:]+]]: tensor<!quant.uniform<i8:f32, 5.000000e-01>>)
// CHECK-NEXT: %[[X:.+]] = stablehlo.uniform_dequantize %[[A]]
// CHECK-NEXT: %[[Y:.+]] = stablehlo.exponential %[[X]] : tensor<f32>
// CHECK-NEXT: %[[Z:.+]] = stablehlo.uniform_quantize %[[Y]]
// CHECK-NEXT: %[[S:.+]] = stablehlo.uniform_dequantize %[[Z]]
// CHECK-NEXT: %[[T:.+]] = stablehlo.uniform_dequantize %[[B]]
// CHECK-NEXT: %[[U:.+]] = stablehlo.add %[[S]], %[[T]] : tensor<f32>
// CHECK-NEXT: %[[V:.+]] = stablehlo.uniform_quantize %[[U]]
// CHECK-NEXT: stablehlo.return %[[V]]
!q = !quant.uniform<i8:f32, 0.5>
func.func @casts_in_a_body(%x: tensor<4x!q>, %z: tensor<!q>) -> tensor<!q> {
  %r = stablehlo.reduce(%x init: %z) across dimensions = [0] : (tensor<4x!q>, tensor<!q>) -> tensor<!q>
    reducer(%a: tensor<!q>, %b: tensor<!q>) {
      %c = stablehlo.uniform_dequantize %a : (tensor<!q>) -> tensor<f32>
      %d = stablehlo.exponential %c : tensor<f32>
      %e = stablehlo.uniform_quantize %d : (tensor<f32>) -> tensor<!q>
      %f = stablehlo.add %e, %b : tensor<!q>
      stablehlo.return %f : tensor<!q>
    }
  return %r : tensor<!q>
}
