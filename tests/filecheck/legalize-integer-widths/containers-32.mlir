// RUN: subquant opt %s --passes "legalize-integer-widths{containers=32}" --split-input-file | filecheck %s

// CHECK: #[[MAP:.+]] = affine_map<(d0) -> (d0)>
// CHECK-LABEL: func.func @tensors(
// CHECK-SAME: %[[X:[^:]+]]: tensor<4xi32>, %[[B:[^:]+]]: i1) -> tensor<4xi32> attributes {subquant.function_type = (tensor<4xi8>, i1) -> tensor<4xi8>} {
// CHECK-NEXT: %[[C:.+]] = arith.constant dense<[-1, 127, -128, 0]> : tensor<4xi32>
// CHECK-NEXT: %[[GENERIC:.+]] = linalg.generic {indexing_maps = [#[[MAP]], #[[MAP]], #[[MAP]]], iterator_types = ["parallel"]} ins(%[[X]], %[[C]] : tensor<4xi32>, tensor<4xi32>) outs(%[[X]] : tensor<4xi32>) {
// CHECK-NEXT: ^bb0(%[[IN:[^:]+]]: i32, %[[IN2:[^:]+]]: i32, %[[OUT:[^:]+]]: i32):
// CHECK-NEXT: %[[ADDI:.+]] = arith.addi %[[IN]], %[[IN2]] : i32
// CHECK-NEXT: %[[C2:.+]] = arith.constant 24 : i32
// CHECK-NEXT: %[[SHLI:.+]] = arith.shli %[[ADDI]], %[[C2]] : i32
// CHECK-NEXT: %[[SHRSI:.+]] = arith.shrsi %[[SHLI]], %[[C2]] : i32
// CHECK-NEXT: linalg.yield %[[SHRSI]] : i32
// CHECK-NEXT: } -> tensor<4xi32>
// CHECK-NEXT: return %[[GENERIC]] : tensor<4xi32>
func.func @tensors(%x: tensor<4xi8>, %b: i1) -> tensor<4xi8> {
  %c = arith.constant dense<[-1, 127, -128, 0]> : tensor<4xi8>
  %r = arith.addi %x, %c : tensor<4xi8>
  return %r : tensor<4xi8>
}

// -----

// CHECK-LABEL: func.func @scalars(
// CHECK-SAME: %[[X:[^:]+]]: i32, %[[Y:[^:]+]]: i32) -> (i32, i32, i32, i32) attributes {subquant.function_type = (i8, i16) -> (i32, i32, i8, i16)} {
// CHECK-NEXT: %[[C:.+]] = arith.constant 255 : i32
// CHECK-NEXT: %[[ANDI:.+]] = arith.andi %[[X]], %[[C]] : i32
// CHECK-NEXT: %[[BITCAST:.+]] = arith.bitcast %[[ANDI]] : i32 to i32
// CHECK-NEXT: %[[BITCAST2:.+]] = arith.bitcast %[[Y]] : i32 to i32
// CHECK-NEXT: %[[C2:.+]] = arith.constant 24 : i32
// CHECK-NEXT: %[[SHLI:.+]] = arith.shli %[[BITCAST]], %[[C2]] : i32
// CHECK-NEXT: %[[SHRSI:.+]] = arith.shrsi %[[SHLI]], %[[C2]] : i32
// CHECK-NEXT: %[[C3:.+]] = arith.constant 255 : i32
// CHECK-NEXT: %[[ANDI2:.+]] = arith.andi %[[X]], %[[C3]] : i32
// CHECK-NEXT: %[[BITCAST3:.+]] = arith.bitcast %[[ANDI2]] : i32 to i32
// CHECK-NEXT: return %[[BITCAST]], %[[BITCAST2]], %[[SHRSI]], %[[BITCAST3]] : i32, i32, i32, i32
func.func @scalars(%x: i8, %y: i16) -> (i32, i32, i8, i16) {
  %a = arith.extui %x : i8 to i32
  %b = arith.extsi %y : i16 to i32
  %c = arith.trunci %a : i32 to i8
  %d = arith.extui %x : i8 to i16
  return %a, %b, %c, %d : i32, i32, i8, i16
}

// -----

// 64-bit integers outside of loops stay: extents are passed as such.
// CHECK-LABEL: func.func @extents(
// CHECK-SAME: %[[X:[^:]+]]: tensor<?xi64>, %[[I:[^:]+]]: index) -> i64 {
// CHECK-NEXT: %[[EXTRACT:.+]] = tensor.extract %[[X]][%[[I]]] : tensor<?xi64>
// CHECK-NEXT: return %[[EXTRACT]] : i64
func.func @extents(%x: tensor<?xi64>, %i: index) -> i64 {
  %r = tensor.extract %x[%i] : tensor<?xi64>
  return %r : i64
}
