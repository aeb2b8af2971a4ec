// RUN: subquant opt %s --passes "verify-quantization,lower-packed-storage" --split-input-file | filecheck %s

// A byte becomes a word with a byte for each integer of it.
// CHECK: #[[MAP:.+]] = affine_map<(d0, d1) -> (d0, d1)>
// CHECK-LABEL: func.func @nibbles(
// CHECK-SAME: %[[ARG0:[^: ]+]]: tensor<?x3xi8>) -> tensor<?x6xi8> {
// CHECK-NEXT: %[[C0:[^: ]+]] = arith.constant 0 : index
// CHECK-NEXT: %[[DIM:[^: ]+]] = tensor.dim %[[ARG0]], %[[C0]] : tensor<?x3xi8>
// CHECK-NEXT: %[[V0:[^: ]+]] = tensor.empty(%[[DIM]]) : tensor<?x3xi16>
// CHECK-NEXT: %[[V1:[^: ]+]] = linalg.generic {indexing_maps = [#[[MAP]], #[[MAP]]], iterator_types = ["parallel", "parallel"]} ins(%[[ARG0]] : tensor<?x3xi8>) outs(%[[V0]] : tensor<?x3xi16>) {
// CHECK-NEXT: ^bb0(%[[IN:[^: ]+]]: i8, %[[OUT:[^: ]+]]: i16):
// CHECK-NEXT: %[[C15_I8:[^: ]+]] = arith.constant 15 : i8
// CHECK-NEXT: %[[V3:[^: ]+]] = arith.andi %[[IN]], %[[C15_I8]] : i8
// CHECK-NEXT: %[[V4:[^: ]+]] = arith.extui %[[V3]] : i8 to i16
// CHECK-NEXT: %[[C4_I8:[^: ]+]] = arith.constant 4 : i8
// CHECK-NEXT: %[[V5:[^: ]+]] = arith.shrui %[[IN]], %[[C4_I8]] : i8
// CHECK-NEXT: %[[V6:[^: ]+]] = arith.andi %[[V5]], %[[C15_I8]] : i8
// CHECK-NEXT: %[[V7:[^: ]+]] = arith.extui %[[V6]] : i8 to i16
// CHECK-NEXT: %[[C8_I16:[^: ]+]] = arith.constant 8 : i16
// CHECK-NEXT: %[[V8:[^: ]+]] = arith.shli %[[V7]], %[[C8_I16]] : i16
// CHECK-NEXT: %[[V9:[^: ]+]] = arith.ori %[[V4]], %[[V8]] : i16
// CHECK-NEXT: linalg.yield %[[V9]] : i16
// CHECK-NEXT: } -> tensor<?x3xi16>
// CHECK-NEXT: %[[V2:[^: ]+]] = "flow.tensor.bitcast"(%[[V1]], %[[DIM]], %[[DIM]]) {operandSegmentSizes = array<i32: 1, 1, 1>} : (tensor<?x3xi16>, index, index) -> tensor<?x6xi8>
// CHECK-NEXT: return %[[V2]] : tensor<?x6xi8>
func.func @nibbles(%b: tensor<?x3xi8>) -> tensor<?x6xi8> {
  %q = "subquant.unpack"(%b) {bits = array<i64: 4>, operandSegmentSizes = array<i32: 1, 0>} : (tensor<?x3xi8>) -> tensor<?x6xi8>
  return %q : tensor<?x6xi8>
}

// -----

// Bits above the low plane's; single bits by way of four.
// CHECK: #[[MAP:.+]] = affine_map<(d0) -> (d0)>
// CHECK-LABEL: func.func @three_bits(
// CHECK-SAME: %[[ARG0:[^: ]+]]: tensor<2xi8>, %[[ARG1:[^: ]+]]: tensor<1xi8>) -> tensor<8xi3> {
// CHECK-NEXT: %[[V0:[^: ]+]] = tensor.empty() : tensor<2xi32>
// CHECK-NEXT: %[[V1:[^: ]+]] = linalg.generic {indexing_maps = [#[[MAP]], #[[MAP]]], iterator_types = ["parallel"]} ins(%[[ARG0]] : tensor<2xi8>) outs(%[[V0]] : tensor<2xi32>) {
// CHECK-NEXT: ^bb0(%[[IN:[^: ]+]]: i8, %[[OUT:[^: ]+]]: i32):
// CHECK-NEXT: %[[C3_I8:[^: ]+]] = arith.constant 3 : i8
// CHECK-NEXT: %[[V11:[^: ]+]] = arith.andi %[[IN]], %[[C3_I8]] : i8
// CHECK-NEXT: %[[V12:[^: ]+]] = arith.extui %[[V11]] : i8 to i32
// CHECK-NEXT: %[[C2_I8:[^: ]+]] = arith.constant 2 : i8
// CHECK-NEXT: %[[V13:[^: ]+]] = arith.shrui %[[IN]], %[[C2_I8]] : i8
// CHECK-NEXT: %[[V14:[^: ]+]] = arith.andi %[[V13]], %[[C3_I8]] : i8
// CHECK-NEXT: %[[V15:[^: ]+]] = arith.extui %[[V14]] : i8 to i32
// CHECK-NEXT: %[[C8_I32:[^: ]+]] = arith.constant 8 : i32
// CHECK-NEXT: %[[V16:[^: ]+]] = arith.shli %[[V15]], %[[C8_I32]] : i32
// CHECK-NEXT: %[[V17:[^: ]+]] = arith.ori %[[V12]], %[[V16]] : i32
// CHECK-NEXT: %[[C4_I8:[^: ]+]] = arith.constant 4 : i8
// CHECK-NEXT: %[[V18:[^: ]+]] = arith.shrui %[[IN]], %[[C4_I8]] : i8
// CHECK-NEXT: %[[V19:[^: ]+]] = arith.andi %[[V18]], %[[C3_I8]] : i8
// CHECK-NEXT: %[[V20:[^: ]+]] = arith.extui %[[V19]] : i8 to i32
// CHECK-NEXT: %[[C16_I32:[^: ]+]] = arith.constant 16 : i32
// CHECK-NEXT: %[[V21:[^: ]+]] = arith.shli %[[V20]], %[[C16_I32]] : i32
// CHECK-NEXT: %[[V22:[^: ]+]] = arith.ori %[[V17]], %[[V21]] : i32
// CHECK-NEXT: %[[C6_I8:[^: ]+]] = arith.constant 6 : i8
// CHECK-NEXT: %[[V23:[^: ]+]] = arith.shrui %[[IN]], %[[C6_I8]] : i8
// CHECK-NEXT: %[[V24:[^: ]+]] = arith.andi %[[V23]], %[[C3_I8]] : i8
// CHECK-NEXT: %[[V25:[^: ]+]] = arith.extui %[[V24]] : i8 to i32
// CHECK-NEXT: %[[C24_I32:[^: ]+]] = arith.constant 24 : i32
// CHECK-NEXT: %[[V26:[^: ]+]] = arith.shli %[[V25]], %[[C24_I32]] : i32
// CHECK-NEXT: %[[V27:[^: ]+]] = arith.ori %[[V22]], %[[V26]] : i32
// CHECK-NEXT: linalg.yield %[[V27]] : i32
// CHECK-NEXT: } -> tensor<2xi32>
// CHECK-NEXT: %[[V2:[^: ]+]] = "flow.tensor.bitcast"(%[[V1]]) {operandSegmentSizes = array<i32: 1, 0, 0>} : (tensor<2xi32>) -> tensor<8xi8>
// CHECK-NEXT: %[[V3:[^: ]+]] = tensor.empty() : tensor<1xi16>
// CHECK-NEXT: %[[V4:[^: ]+]] = linalg.generic {indexing_maps = [#[[MAP]], #[[MAP]]], iterator_types = ["parallel"]} ins(%[[ARG1]] : tensor<1xi8>) outs(%[[V3]] : tensor<1xi16>) {
// CHECK-NEXT: ^bb0(%[[IN:[^: ]+]]: i8, %[[OUT:[^: ]+]]: i16):
// CHECK-NEXT: %[[C15_I8:[^: ]+]] = arith.constant 15 : i8
// CHECK-NEXT: %[[V11:[^: ]+]] = arith.andi %[[IN]], %[[C15_I8]] : i8
// CHECK-NEXT: %[[V12:[^: ]+]] = arith.extui %[[V11]] : i8 to i16
// CHECK-NEXT: %[[C4_I8:[^: ]+]] = arith.constant 4 : i8
// CHECK-NEXT: %[[V13:[^: ]+]] = arith.shrui %[[IN]], %[[C4_I8]] : i8
// CHECK-NEXT: %[[V14:[^: ]+]] = arith.andi %[[V13]], %[[C15_I8]] : i8
// CHECK-NEXT: %[[V15:[^: ]+]] = arith.extui %[[V14]] : i8 to i16
// CHECK-NEXT: %[[C8_I16:[^: ]+]] = arith.constant 8 : i16
// CHECK-NEXT: %[[V16:[^: ]+]] = arith.shli %[[V15]], %[[C8_I16]] : i16
// CHECK-NEXT: %[[V17:[^: ]+]] = arith.ori %[[V12]], %[[V16]] : i16
// CHECK-NEXT: linalg.yield %[[V17]] : i16
// CHECK-NEXT: } -> tensor<1xi16>
// CHECK-NEXT: %[[V5:[^: ]+]] = "flow.tensor.bitcast"(%[[V4]]) {operandSegmentSizes = array<i32: 1, 0, 0>} : (tensor<1xi16>) -> tensor<2xi8>
// CHECK-NEXT: %[[V6:[^: ]+]] = tensor.empty() : tensor<2xi32>
// CHECK-NEXT: %[[V7:[^: ]+]] = linalg.generic {indexing_maps = [#[[MAP]], #[[MAP]]], iterator_types = ["parallel"]} ins(%[[V5]] : tensor<2xi8>) outs(%[[V6]] : tensor<2xi32>) {
// CHECK-NEXT: ^bb0(%[[IN:[^: ]+]]: i8, %[[OUT:[^: ]+]]: i32):
// CHECK-NEXT: %[[C1_I8:[^: ]+]] = arith.constant 1 : i8
// CHECK-NEXT: %[[V11:[^: ]+]] = arith.andi %[[IN]], %[[C1_I8]] : i8
// CHECK-NEXT: %[[V12:[^: ]+]] = arith.extui %[[V11]] : i8 to i32
// CHECK-NEXT: %[[V13:[^: ]+]] = arith.shrui %[[IN]], %[[C1_I8]] : i8
// CHECK-NEXT: %[[V14:[^: ]+]] = arith.andi %[[V13]], %[[C1_I8]] : i8
// CHECK-NEXT: %[[V15:[^: ]+]] = arith.extui %[[V14]] : i8 to i32
// CHECK-NEXT: %[[C8_I32:[^: ]+]] = arith.constant 8 : i32
// CHECK-NEXT: %[[V16:[^: ]+]] = arith.shli %[[V15]], %[[C8_I32]] : i32
// CHECK-NEXT: %[[V17:[^: ]+]] = arith.ori %[[V12]], %[[V16]] : i32
// CHECK-NEXT: %[[C2_I8:[^: ]+]] = arith.constant 2 : i8
// CHECK-NEXT: %[[V18:[^: ]+]] = arith.shrui %[[IN]], %[[C2_I8]] : i8
// CHECK-NEXT: %[[V19:[^: ]+]] = arith.andi %[[V18]], %[[C1_I8]] : i8
// CHECK-NEXT: %[[V20:[^: ]+]] = arith.extui %[[V19]] : i8 to i32
// CHECK-NEXT: %[[C16_I32:[^: ]+]] = arith.constant 16 : i32
// CHECK-NEXT: %[[V21:[^: ]+]] = arith.shli %[[V20]], %[[C16_I32]] : i32
// CHECK-NEXT: %[[V22:[^: ]+]] = arith.ori %[[V17]], %[[V21]] : i32
// CHECK-NEXT: %[[C3_I8:[^: ]+]] = arith.constant 3 : i8
// CHECK-NEXT: %[[V23:[^: ]+]] = arith.shrui %[[IN]], %[[C3_I8]] : i8
// CHECK-NEXT: %[[V24:[^: ]+]] = arith.andi %[[V23]], %[[C1_I8]] : i8
// CHECK-NEXT: %[[V25:[^: ]+]] = arith.extui %[[V24]] : i8 to i32
// CHECK-NEXT: %[[C24_I32:[^: ]+]] = arith.constant 24 : i32
// CHECK-NEXT: %[[V26:[^: ]+]] = arith.shli %[[V25]], %[[C24_I32]] : i32
// CHECK-NEXT: %[[V27:[^: ]+]] = arith.ori %[[V22]], %[[V26]] : i32
// CHECK-NEXT: linalg.yield %[[V27]] : i32
// CHECK-NEXT: } -> tensor<2xi32>
// CHECK-NEXT: %[[V8:[^: ]+]] = "flow.tensor.bitcast"(%[[V7]]) {operandSegmentSizes = array<i32: 1, 0, 0>} : (tensor<2xi32>) -> tensor<8xi8>
// CHECK-NEXT: %[[V9:[^: ]+]] = tensor.empty() : tensor<8xi3>
// CHECK-NEXT: %[[V10:[^: ]+]] = linalg.generic {indexing_maps = [#[[MAP]], #[[MAP]], #[[MAP]]], iterator_types = ["parallel"]} ins(%[[V2]], %[[V8]] : tensor<8xi8>, tensor<8xi8>) outs(%[[V9]] : tensor<8xi3>) {
// CHECK-NEXT: ^bb0(%[[IN:[^: ]+]]: i8, %[[IN_0:[^: ]+]]: i8, %[[OUT:[^: ]+]]: i3):
// CHECK-NEXT: %[[C2_I8:[^: ]+]] = arith.constant 2 : i8
// CHECK-NEXT: %[[V11:[^: ]+]] = arith.shli %[[IN_0]], %[[C2_I8]] : i8
// CHECK-NEXT: %[[V12:[^: ]+]] = arith.ori %[[IN]], %[[V11]] : i8
// CHECK-NEXT: %[[V13:[^: ]+]] = arith.trunci %[[V12]] : i8 to i3
// CHECK-NEXT: linalg.yield %[[V13]] : i3
// CHECK-NEXT: } -> tensor<8xi3>
// CHECK-NEXT: return %[[V10]] : tensor<8xi3>
func.func @three_bits(%l: tensor<2xi8>, %h: tensor<1xi8>) -> tensor<8xi3> {
  %q = "subquant.unpack"(%l, %h) {bits = array<i64: 2, 1>, operandSegmentSizes = array<i32: 1, 1>} : (tensor<2xi8>, tensor<1xi8>) -> tensor<8xi3>
  return %q : tensor<8xi3>
}
