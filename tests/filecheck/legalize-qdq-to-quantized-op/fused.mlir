// RUN: subquant opt %s --passes legalize-qdq-to-quantized-op --split-input-file | filecheck %s

// CHECK-LABEL: func.func @add(
// CHECK-SAME: %[[X:[^:]+]]: tensor<4x!quant.uniform<i8:f32, 5.000000e-01:3>>, %[[Y:[^:]+]]: tensor<4x!quant.uniform<i8:f32, 2.000000e+00>>
// CHECK-NEXT: %[[R:.+]] = stablehlo.add %[[X]], %[[Y]] : (tensor<4x!quant.uniform<i8:f32, 5.000000e-01:3>>, tensor<4x!quant.uniform<i8:f32, 2.000000e+00>>) -> tensor<4x!quant.uniform<i8:f32, 3.000000e+00:-1>>
// CHECK-NEXT: return %[[R]]
!q1 = !quant.uniform<i8:f32, 0.5:3>
!q2 = !quant.uniform<i8:f32, 2.0>
!q3 = !quant.uniform<i8:f32, 3.0:-1>
func.func @add(%x: tensor<4x!q1>, %y: tensor<4x!q2>) -> tensor<4x!q3> {
  %a = stablehlo.uniform_dequantize %x : (tensor<4x!q1>) -> tensor<4xf32>
  %b = quant.dcast %y : tensor<4x!q2> to tensor<4xf32>
  %s = stablehlo.add %a, %b : tensor<4xf32>
  %r = quant.qcast %s : tensor<4xf32> to tensor<4x!q3>
  return %r : tensor<4x!q3>
}

// -----

// A dequantize with other uses stays for them; equal quantizes become one value; a chain fuses.
// CHECK-LABEL: func.func @uses(
// CHECK-SAME: %[[X:[^:]+]]: tensor<4x!quant.uniform<i8:f32, 5.000000e-01:3>>)
// CHECK-NEXT: %[[A:.+]] = stablehlo.uniform_dequantize %[[X]]
// CHECK-NEXT: %[[M:.+]] = stablehlo.multiply %[[X]], %[[X]] : tensor<4x!quant.uniform<i8:f32, 5.000000e-01:3>>
// CHECK-NEXT: %[[T:.+]] = stablehlo.tanh %[[M]] : tensor<4x!quant.uniform<i8:f32, 5.000000e-01:3>>
// CHECK-NEXT: return %[[A]], %[[M]], %[[M]], %[[T]]
!q = !quant.uniform<i8:f32, 0.5:3>
func.func @uses(%x: tensor<4x!q>) -> (tensor<4xf32>, tensor<4x!q>, tensor<4x!q>, tensor<4x!q>) {
  %a = stablehlo.uniform_dequantize %x : (tensor<4x!q>) -> tensor<4xf32>
  %s = stablehlo.multiply %a, %a : tensor<4xf32>
  %r = stablehlo.uniform_quantize %s : (tensor<4xf32>) -> tensor<4x!q>
  %t = stablehlo.uniform_quantize %s : (tensor<4xf32>) -> tensor<4x!q>
  %b = stablehlo.uniform_dequantize %r : (tensor<4x!q>) -> tensor<4xf32>
  %u = stablehlo.tanh %b : tensor<4xf32>
  %v = stablehlo.uniform_quantize %u : (tensor<4xf32>) -> tensor<4x!q>
  return %a, %r, %t, %v : tensor<4xf32>, tensor<4x!q>, tensor<4x!q>, tensor<4x!q>
}

// -----

// Predicates and indices pass through; a result that is a predicate needs no quantize.
// CHECK-LABEL: func.func @operands_of_other_types(
// CHECK-SAME: %[[X:[^:]+]]: tensor<4x!quant.uniform<i8:f32, 5.000000e-01>>, %[[N:[^:]+]]: tensor<i32>
// CHECK-NEXT: %[[P:.+]] = stablehlo.compare LT, %[[X]], %[[X]] : (tensor<4x!quant.uniform<i8:f32, 5.000000e-01>>, tensor<4x!quant.uniform<i8:f32, 5.000000e-01>>) -> tensor<4xi1>
// CHECK-NEXT: %[[S:.+]] = stablehlo.select %[[P]], %[[X]], %[[X]] : tensor<4xi1>, tensor<4x!quant.uniform<i8:f32, 5.000000e-01>>
// CHECK-NEXT: %[[D:.+]] = stablehlo.dynamic_slice %[[S]], %[[N]], sizes = [2] : (tensor<4x!quant.uniform<i8:f32, 5.000000e-01>>, tensor<i32>) -> tensor<2x!quant.uniform<i8:f32, 5.000000e-01>>
// CHECK-NEXT: return %[[D]]
!q = !quant.uniform<i8:f32, 0.5>
func.func @operands_of_other_types(%x: tensor<4x!q>, %n: tensor<i32>) -> tensor<2x!q> {
  %a = stablehlo.uniform_dequantize %x : (tensor<4x!q>) -> tensor<4xf32>
  %p = stablehlo.compare LT, %a, %a : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xi1>
  %s = stablehlo.select %p, %a, %a : tensor<4xi1>, tensor<4xf32>
  %r = stablehlo.uniform_quantize %s : (tensor<4xf32>) -> tensor<4x!q>
  %b = stablehlo.uniform_dequantize %r : (tensor<4x!q>) -> tensor<4xf32>
  %d = stablehlo.dynamic_slice %b, %n, sizes = [2] : (tensor<4xf32>, tensor<i32>) -> tensor<2xf32>
  %t = stablehlo.uniform_quantize %d : (tensor<2xf32>) -> tensor<2x!q>
  return %t : tensor<2x!q>
}

// -----

// Contractions keep their attributes; weights are per axis, and along that axis so is the result.
// CHECK-LABEL: func.func @contractions(
// CHECK-SAME: %[[X:[^:]+]]: {{.+}}, %[[W:[^:]+]]: tensor<4x2x!quant.uniform<i8:f32:1, {1.000000e+00,2.000000e+00}>>
// CHECK-NEXT: %[[R:.+]] = stablehlo.dot_general %[[X]], %[[W]], contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<3x4x!quant.uniform<i8:f32, 5.000000e-01:3>>, tensor<4x2x!quant.uniform<i8:f32:1, {1.000000e+00,2.000000e+00}>>) -> tensor<3x2x!quant.uniform<i32:f32:1, {5.000000e-01,1.000000e+00}>>
// CHECK-NEXT: return %[[R]]
!q = !quant.uniform<i8:f32, 0.5:3>
!w = !quant.uniform<i8:f32:1, {1.0, 2.0}>
!r = !quant.uniform<i32:f32:1, {0.5, 1.0}>
func.func @contractions(%x: tensor<3x4x!q>, %w: tensor<4x2x!w>) -> tensor<3x2x!r> {
  %a = stablehlo.uniform_dequantize %x : (tensor<3x4x!q>) -> tensor<3x4xf32>
  %b = stablehlo.uniform_dequantize %w : (tensor<4x2x!w>) -> tensor<4x2xf32>
  %s = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<3x4xf32>, tensor<4x2xf32>) -> tensor<3x2xf32>
  %r = stablehlo.uniform_quantize %s : (tensor<3x2xf32>) -> tensor<3x2x!r>
  return %r : tensor<3x2x!r>
}

// -----

// A body gets the type of the result; an integer operand of the same reduction stays.
// CHECK-LABEL: func.func @argmax(
// CHECK-SAME: %[[X:[^:]+]]: {{.+}}, %[[I:[^:]+]]: tensor<4xi32>, %[[Z:[^:]+]]: tensor<!quant.uniform<i8:f32, 5.000000e-01>>, %[[N:[^:]+]]: tensor<i32>
// CHECK-NEXT: %[[R:.+]]:2 = stablehlo.reduce(%[[X]] init: %[[Z]]), (%[[I]] init: %[[N]]) across dimensions = [0]
// CHECK-NEXT: reducer(%[[A:[^:]+]]: tensor<!quant.uniform<i8:f32, 5.000000e-01>>, %[[B:[^:]+]]: tensor<!quant.uniform<i8:f32, 5.000000e-01>>) (%[[J:[^:]+]]: tensor<i32>, %[[K:[^:]+]]: tensor<i32>)
// CHECK-NEXT: %[[P:.+]] = stablehlo.compare GT, %[[A]], %[[B]] : (tensor<!quant.uniform<i8:f32, 5.000000e-01>>, tensor<!quant.uniform<i8:f32, 5.000000e-01>>) -> tensor<i1>
// CHECK-NEXT: %[[V:.+]] = stablehlo.select %[[P]], %[[A]], %[[B]] : tensor<i1>, tensor<!quant.uniform<i8:f32, 5.000000e-01>>
// CHECK-NEXT: %[[W:.+]] = stablehlo.select %[[P]], %[[J]], %[[K]] : tensor<i1>, tensor<i32>
// CHECK-NEXT: stablehlo.return %[[V]], %[[W]]
// CHECK-NEXT: }
// CHECK-NEXT: return %[[R]]#0, %[[R]]#1
!q = !quant.uniform<i8:f32, 0.5>
func.func @argmax(%x: tensor<4x!q>, %i: tensor<4xi32>, %z: tensor<!q>, %n: tensor<i32>) -> (tensor<!q>, tensor<i32>) {
  %a = stablehlo.uniform_dequantize %x : (tensor<4x!q>) -> tensor<4xf32>
  %b = stablehlo.uniform_dequantize %z : (tensor<!q>) -> tensor<f32>
  %r:2 = stablehlo.reduce(%a init: %b), (%i init: %n) across dimensions = [0] : (tensor<4xf32>, tensor<4xi32>, tensor<f32>, tensor<i32>) -> (tensor<f32>, tensor<i32>)
    reducer(%c: tensor<f32>, %d: tensor<f32>) (%j: tensor<i32>, %k: tensor<i32>) {
      %p = stablehlo.compare GT, %c, %d : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %v = stablehlo.select %p, %c, %d : tensor<i1>, tensor<f32>
      %w = stablehlo.select %p, %j, %k : tensor<i1>, tensor<i32>
      stablehlo.return %v, %w : tensor<f32>, tensor<i32>
    }
  %s = stablehlo.uniform_quantize %r#0 : (tensor<f32>) -> tensor<!q>
  return %s, %r#1 : tensor<!q>, tensor<i32>
}

// -----

// A sum of i8 that is quantized to i32 has an i32 body.
// CHECK-LABEL: func.func @wider_sum(
// CHECK: stablehlo.reduce(%{{.+}} init: %{{.+}}) across dimensions = [0] : (tensor<4x!quant.uniform<i8:f32, 5.000000e-01>>, tensor<!quant.uniform<i8:f32, 5.000000e-01>>) -> tensor<!quant.uniform<i32:f32, 2.500000e-01>>
// CHECK-NEXT: reducer
// CHECK-NEXT: stablehlo.add %{{.+}}, %{{.+}} : tensor<!quant.uniform<i32:f32, 2.500000e-01>>
// CHECK-NOT: uniform_
!q = !quant.uniform<i8:f32, 0.5>
!wide = !quant.uniform<i32:f32, 0.25>
func.func @wider_sum(%x: tensor<4x!q>, %z: tensor<!q>) -> tensor<!wide> {
  %a = stablehlo.uniform_dequantize %x : (tensor<4x!q>) -> tensor<4xf32>
  %b = stablehlo.uniform_dequantize %z : (tensor<!q>) -> tensor<f32>
  %r = stablehlo.reduce(%a init: %b) applies stablehlo.add across dimensions = [0] : (tensor<4xf32>, tensor<f32>) -> tensor<f32>
  %s = stablehlo.uniform_quantize %r : (tensor<f32>) -> tensor<!wide>
  return %s : tensor<!wide>
}

// -----

// Two casts with nothing between them are a requantization, or nothing.
// CHECK-LABEL: func.func @requantize(
// CHECK-SAME: %[[X:[^:]+]]: tensor
// CHECK-NEXT: %[[R:.+]] = stablehlo.uniform_quantize %[[X]] : (tensor<4x!quant.uniform<i8:f32, 5.000000e-01>>) -> tensor<4x!quant.uniform<i4:f32, 2.000000e+00>>
// CHECK-NEXT: return %[[R]], %[[X]]
!q = !quant.uniform<i8:f32, 0.5>
!p = !quant.uniform<i4:f32, 2.0>
func.func @requantize(%x: tensor<4x!q>) -> (tensor<4x!p>, tensor<4x!q>) {
  %a = quant.dcast %x : tensor<4x!q> to tensor<4xf32>
  %r = stablehlo.uniform_quantize %a : (tensor<4xf32>) -> tensor<4x!p>
  %s = quant.qcast %a : tensor<4xf32> to tensor<4x!q>
  return %r, %s : tensor<4x!p>, tensor<4x!q>
}

// -----

// Inside control flow, and an operation that generates values.
// CHECK-LABEL: func.func @in_branches(
// CHECK: stablehlo.if
// CHECK-NEXT: %[[I:.+]] = stablehlo.iota dim = 0 : tensor<4x!quant.uniform<i8:f32, 5.000000e-01>>
// CHECK-NEXT: stablehlo.return %[[I]]
// CHECK: %[[N:.+]] = stablehlo.negate %{{.+}} : tensor<4x!quant.uniform<i8:f32, 5.000000e-01>>
// CHECK-NEXT: stablehlo.return %[[N]]
!q = !quant.uniform<i8:f32, 0.5>
func.func @in_branches(%p: tensor<i1>, %x: tensor<4x!q>) -> tensor<4x!q> {
  %a = stablehlo.uniform_dequantize %x : (tensor<4x!q>) -> tensor<4xf32>
  %r = "stablehlo.if"(%p) ({
    %i = stablehlo.iota dim = 0 : tensor<4xf32>
    %s = stablehlo.uniform_quantize %i : (tensor<4xf32>) -> tensor<4x!q>
    stablehlo.return %s : tensor<4x!q>
  }, {
    %n = stablehlo.negate %a : tensor<4xf32>
    %s = stablehlo.uniform_quantize %n : (tensor<4xf32>) -> tensor<4x!q>
    stablehlo.return %s : tensor<4x!q>
  }) : (tensor<i1>) -> tensor<4x!q>
  return %r : tensor<4x!q>
}
