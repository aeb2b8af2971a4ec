// RUN: subquant opt %s --passes canonicalize-reductions --split-input-file | filecheck %s

// (G): integers, inputs and init values.
// CHECK-LABEL: func.func @integers(
// CHECK-SAME: %[[X:[^:]+]]: tensor<2x8xi8>, %[[I:[^:]+]]: tensor<i8>)
// CHECK-NEXT: %[[WX:.+]] = stablehlo.convert %[[X]] : (tensor<2x8xi8>) -> tensor<2x8xi32>
// CHECK-NEXT: %[[WI:.+]] = stablehlo.convert %[[I]] : (tensor<i8>) -> tensor<i32>
// CHECK-NEXT: %[[R:.+]] = stablehlo.reduce(%[[WX]] init: %[[WI]]) applies stablehlo.add across dimensions = [1] : (tensor<2x8xi32>, tensor<i32>) -> tensor<2xi32>
// CHECK-NEXT: return %[[R]]
func.func @integers(%x: tensor<2x8xi8>, %i: tensor<i8>) -> tensor<2xi32> {
  %0 = "stablehlo.reduce"(%x, %i) ({
  ^bb0(%a: tensor<i32>, %b: tensor<i32>):
    %s = stablehlo.add %a, %b : tensor<i32>
    stablehlo.return %s : tensor<i32>
  }) {dimensions = array<i64: 1>} : (tensor<2x8xi8>, tensor<i8>) -> tensor<2xi32>
  return %0 : tensor<2xi32>
}

// -----

// Unsigned integers keep their type until the conversion, which extends with zeros.
// CHECK-LABEL: func.func @unsigned(
// CHECK: stablehlo.convert %{{.+}} : (tensor<8xui8>) -> tensor<8xi32>
// CHECK: stablehlo.convert %{{.+}} : (tensor<ui8>) -> tensor<i32>
func.func @unsigned(%x: tensor<8xui8>, %i: tensor<ui8>) -> tensor<i32> {
  %0 = "stablehlo.reduce"(%x, %i) ({
  ^bb0(%a: tensor<i32>, %b: tensor<i32>):
    %s = stablehlo.add %a, %b : tensor<i32>
    stablehlo.return %s : tensor<i32>
  }) {dimensions = array<i64: 0>} : (tensor<8xui8>, tensor<ui8>) -> tensor<i32>
  return %0 : tensor<i32>
}

// -----

// (A): quantized types, in a window with padding: what is padded with is converted too.
// CHECK-LABEL: func.func @quantized(
// CHECK-SAME: %[[X:[^:]+]]: tensor<4x!quant.uniform<i8:f32, 5.000000e-01:1>>, %[[I:[^:]+]]: tensor<!quant
// CHECK-NEXT: %[[WX:.+]] = stablehlo.uniform_quantize %[[X]] : (tensor<4x!quant.uniform<i8:f32, 5.000000e-01:1>>) -> tensor<4x!quant.uniform<i32:f32, 2.500000e-01>>
// CHECK-NEXT: %[[WI:.+]] = stablehlo.uniform_quantize %[[I]] : (tensor<!quant.uniform<i8:f32, 5.000000e-01:1>>) -> tensor<!quant.uniform<i32:f32, 2.500000e-01>>
// CHECK-NEXT: "stablehlo.reduce_window"(%[[WX]], %[[WI]])
// CHECK-SAME: padding =
// CHECK: }) : (tensor<4x!quant.uniform<i32:f32, 2.500000e-01>>, tensor<!quant.uniform<i32:f32, 2.500000e-01>>) -> tensor<4x!quant.uniform<i32:f32, 2.500000e-01>>
!q = !quant.uniform<i8:f32, 0.5:1>
!a = !quant.uniform<i32:f32, 0.25>
func.func @quantized(%x: tensor<4x!q>, %i: tensor<!q>) -> tensor<4x!a> {
  %0 = "stablehlo.reduce_window"(%x, %i) ({
  ^bb0(%a: tensor<!a>, %b: tensor<!a>):
    %s = stablehlo.add %a, %b : tensor<!a>
    stablehlo.return %s : tensor<!a>
  }) {window_dimensions = array<i64: 3>, padding = dense<[[1, 1]]> : tensor<1x2xi64>}
    : (tensor<4x!q>, tensor<!q>) -> tensor<4x!a>
  return %0 : tensor<4x!a>
}

// -----

// (F), several operands: only those of another type are converted. Dynamic shapes.
// CHECK-LABEL: func.func @several(
// CHECK-SAME: %[[X:[^:]+]]: tensor<?x8xf16>, %[[N:[^:]+]]: tensor<?x8xi32>, %[[I:[^:]+]]: tensor<f16>, %[[J:[^:]+]]: tensor<i32>)
// CHECK-NEXT: %[[WX:.+]] = stablehlo.convert %[[X]] : (tensor<?x8xf16>) -> tensor<?x8xf32>
// CHECK-NEXT: %[[WI:.+]] = stablehlo.convert %[[I]] : (tensor<f16>) -> tensor<f32>
// CHECK-NEXT: stablehlo.reduce(%[[WX]] init: %[[WI]]), (%[[N]] init: %[[J]]) across dimensions = [1]
func.func @several(%x: tensor<?x8xf16>, %n: tensor<?x8xi32>, %i: tensor<f16>, %j: tensor<i32>) -> (tensor<?xf32>, tensor<?xi32>) {
  %0:2 = "stablehlo.reduce"(%x, %n, %i, %j) ({
  ^bb0(%a: tensor<f32>, %c: tensor<i32>, %b: tensor<f32>, %d: tensor<i32>):
    %s = stablehlo.add %a, %b : tensor<f32>
    %t = stablehlo.maximum %c, %d : tensor<i32>
    stablehlo.return %s, %t : tensor<f32>, tensor<i32>
  }) {dimensions = array<i64: 1>} : (tensor<?x8xf16>, tensor<?x8xi32>, tensor<f16>, tensor<i32>) -> (tensor<?xf32>, tensor<?xi32>)
  return %0#0, %0#1 : tensor<?xf32>, tensor<?xi32>
}

// -----

// A scatter: inputs and updates, not the indices. What is not updated is converted too.
// CHECK-LABEL: func.func @scatter(
// CHECK-SAME: %[[X:[^:]+]]: tensor<8xi8>, %[[N:[^:]+]]: tensor<2x1xi8>, %[[U:[^:]+]]: tensor<2xi8>)
// CHECK-NEXT: %[[WX:.+]] = stablehlo.convert %[[X]] : (tensor<8xi8>) -> tensor<8xi16>
// CHECK-NEXT: %[[WU:.+]] = stablehlo.convert %[[U]] : (tensor<2xi8>) -> tensor<2xi16>
// CHECK-NEXT: "stablehlo.scatter"(%[[WX]], %[[N]], %[[WU]])
// CHECK: (tensor<8xi16>, tensor<2x1xi8>, tensor<2xi16>) -> tensor<8xi16>
func.func @scatter(%x: tensor<8xi8>, %n: tensor<2x1xi8>, %u: tensor<2xi8>) -> tensor<8xi16> {
  %0 = "stablehlo.scatter"(%x, %n, %u) ({
  ^bb0(%a: tensor<i16>, %b: tensor<i16>):
    %s = stablehlo.add %a, %b : tensor<i16>
    stablehlo.return %s : tensor<i16>
  }) {scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>}
    : (tensor<8xi8>, tensor<2x1xi8>, tensor<2xi8>) -> tensor<8xi16>
  return %0 : tensor<8xi16>
}

// -----

// Collectives: each operand.
// CHECK-LABEL: func.func @collectives(
// CHECK-SAME: %[[X:[^:]+]]: tensor<4xf16>, %[[Y:[^:]+]]: tensor<2xf16>)
// CHECK-NEXT: %[[WX:.+]] = stablehlo.convert %[[X]] : (tensor<4xf16>) -> tensor<4xf32>
// CHECK-NEXT: %[[WY:.+]] = stablehlo.convert %[[Y]] : (tensor<2xf16>) -> tensor<2xf32>
// CHECK-NEXT: "stablehlo.all_reduce"(%[[WX]], %[[WY]])
// CHECK: (tensor<4xf32>, tensor<2xf32>) -> (tensor<4xf32>, tensor<2xf32>)
// CHECK: %[[WX2:.+]] = stablehlo.convert %[[X]] : (tensor<4xf16>) -> tensor<4xf32>
// CHECK-NEXT: "stablehlo.reduce_scatter"(%[[WX2]])
// CHECK: (tensor<4xf32>) -> tensor<2xf32>
func.func @collectives(%x: tensor<4xf16>, %y: tensor<2xf16>) -> (tensor<4xf32>, tensor<2xf32>, tensor<2xf32>) {
  %0:2 = "stablehlo.all_reduce"(%x, %y) ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %s = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %s : tensor<f32>
  }) {replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>} : (tensor<4xf16>, tensor<2xf16>) -> (tensor<4xf32>, tensor<2xf32>)
  %1 = "stablehlo.reduce_scatter"(%x) ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %s = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %s : tensor<f32>
  }) {replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, scatter_dimension = 0 : i64} : (tensor<4xf16>) -> tensor<2xf32>
  return %0#0, %0#1, %1 : tensor<4xf32>, tensor<2xf32>, tensor<2xf32>
}
