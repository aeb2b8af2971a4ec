// RUN: subquant opt %s --passes "legalize-integer-widths" --split-input-file | filecheck %s

// Values that a loop carries, and scalars of tensors.
// CHECK-LABEL: func.func @loops(
// CHECK-SAME: %[[X:[^:]+]]: tensor<4xi8>, %[[N:[^:]+]]: index) -> tensor<4xi8> attributes {subquant.function_type = (tensor<4xi4>, index) -> tensor<4xi4>} {
// CHECK-NEXT: %[[C:.+]] = arith.constant 0 : index
// CHECK-NEXT: %[[C2:.+]] = arith.constant 1 : index
// CHECK-NEXT: %[[FOR:.+]] = scf.for %[[ARG:.+]] = %[[C]] to %[[N]] step %[[C2]] iter_args(%[[ARG2:.+]] = %[[X]]) -> (tensor<4xi8>) {
// CHECK-NEXT: %[[EXTRACT:.+]] = tensor.extract %[[ARG2]][%[[ARG]]] : tensor<4xi8>
// CHECK-NEXT: %[[INSERT:.+]] = tensor.insert %[[EXTRACT]] into %[[ARG2]][%[[C]]] : tensor<4xi8>
// CHECK-NEXT: scf.yield %[[INSERT]] : tensor<4xi8>
// CHECK-NEXT: }
// CHECK-NEXT: return %[[FOR]] : tensor<4xi8>
func.func @loops(%x: tensor<4xi4>, %n: index) -> tensor<4xi4> {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %r = scf.for %i = %c0 to %n step %c1 iter_args(%a = %x) -> tensor<4xi4> {
    %e = tensor.extract %a[%i] : tensor<4xi4>
    %b = tensor.insert %e into %a[%c0] : tensor<4xi4>
    scf.yield %b : tensor<4xi4>
  }
  return %r : tensor<4xi4>
}

// -----

// CHECK-LABEL: func.func @blocks(
// CHECK-SAME: %[[C:[^:]+]]: i1, %[[X:[^:]+]]: i8, %[[Y:[^:]+]]: i8) -> i8 attributes {subquant.function_type = (i1, i3, i3) -> i3} {
// CHECK-NEXT: cf.cond_br %[[C]], ^bb1(%[[X]] : i8), ^bb1(%[[Y]] : i8)
// CHECK-NEXT: ^bb1(%[[ARG:[^:]+]]: i8):
// CHECK-NEXT: return %[[ARG]] : i8
func.func @blocks(%c: i1, %x: i3, %y: i3) -> i3 {
  cf.cond_br %c, ^bb1(%x : i3), ^bb1(%y : i3)
^bb1(%r: i3):
  return %r : i3
}

// -----

// Element-wise operations on tensors become loops, whose scalars are then converted.
// CHECK: #[[MAP:.+]] = affine_map<(d0) -> (d0)>
// CHECK-LABEL: func.func @elementwise(
// CHECK-SAME: %[[X:[^:]+]]: tensor<4xi8>) -> tensor<4xi32> attributes {subquant.function_type = (tensor<4xi4>) -> tensor<4xi32>} {
// CHECK-NEXT: %[[EMPTY:.+]] = tensor.empty() : tensor<4xi32>
// CHECK-NEXT: %[[GENERIC:.+]] = linalg.generic {indexing_maps = [#[[MAP]], #[[MAP]]], iterator_types = ["parallel"]} ins(%[[X]] : tensor<4xi8>) outs(%[[EMPTY]] : tensor<4xi32>) {
// CHECK-NEXT: ^bb0(%[[IN:[^:]+]]: i8, %[[OUT:[^:]+]]: i32):
// CHECK-NEXT: %[[C:.+]] = arith.constant 15 : i8
// CHECK-NEXT: %[[ANDI:.+]] = arith.andi %[[IN]], %[[C]] : i8
// CHECK-NEXT: %[[EXTUI:.+]] = arith.extui %[[ANDI]] : i8 to i32
// CHECK-NEXT: linalg.yield %[[EXTUI]] : i32
// CHECK-NEXT: } -> tensor<4xi32>
// CHECK-NEXT: return %[[GENERIC]] : tensor<4xi32>
func.func @elementwise(%x: tensor<4xi4>) -> tensor<4xi32> {
  %r = arith.extui %x : tensor<4xi4> to tensor<4xi32>
  return %r : tensor<4xi32>
}

// -----

// So do named operations.
// CHECK: #[[MAP:.+]] = affine_map<(d0, d1, d2) -> (d0, d2)>
// CHECK: #[[MAP1:.+]] = affine_map<(d0, d1, d2) -> (d2, d1)>
// CHECK: #[[MAP2:.+]] = affine_map<(d0, d1, d2) -> (d0, d1)>
// CHECK-LABEL: func.func @named(
// CHECK-SAME: %[[A:[^:]+]]: tensor<2x3xi8>, %[[B:[^:]+]]: tensor<3x4xi8>, %[[C:[^:]+]]: tensor<2x4xi32>) -> tensor<2x4xi32> attributes {subquant.function_type = (tensor<2x3xi4>, tensor<3x4xi4>, tensor<2x4xi32>) -> tensor<2x4xi32>} {
// CHECK-NEXT: %[[GENERIC:.+]] = linalg.generic {indexing_maps = [#[[MAP]], #[[MAP1]], #[[MAP2]]], iterator_types = ["parallel", "parallel", "reduction"]} ins(%[[A]], %[[B]] : tensor<2x3xi8>, tensor<3x4xi8>) outs(%[[C]] : tensor<2x4xi32>) {
// CHECK-NEXT: ^bb0(%[[IN:[^:]+]]: i8, %[[IN2:[^:]+]]: i8, %[[OUT:[^:]+]]: i32):
// CHECK-NEXT: %[[EXTSI:.+]] = arith.extsi %[[IN]] : i8 to i32
// CHECK-NEXT: %[[EXTSI2:.+]] = arith.extsi %[[IN2]] : i8 to i32
// CHECK-NEXT: %[[MULI:.+]] = arith.muli %[[EXTSI]], %[[EXTSI2]] : i32
// CHECK-NEXT: %[[ADDI:.+]] = arith.addi %[[OUT]], %[[MULI]] : i32
// CHECK-NEXT: linalg.yield %[[ADDI]] : i32
// CHECK-NEXT: } -> tensor<2x4xi32>
// CHECK-NEXT: return %[[GENERIC]] : tensor<2x4xi32>
func.func @named(%a: tensor<2x3xi4>, %b: tensor<3x4xi4>, %c: tensor<2x4xi32>) -> tensor<2x4xi32> {
  %r = linalg.matmul ins(%a, %b : tensor<2x3xi4>, tensor<3x4xi4>) outs(%c : tensor<2x4xi32>) -> tensor<2x4xi32>
  return %r : tensor<2x4xi32>
}

// -----

// A block may use what a block further down defines.
// CHECK-LABEL: func.func @blocks_out_of_order(
// CHECK-SAME: %[[X:[^:]+]]: i32) -> i32 {
// CHECK-NEXT: cf.br ^bb2
// CHECK-NEXT: ^bb1:
// CHECK-NEXT: %[[C:.+]] = arith.constant 15 : i8
// CHECK-NEXT: %[[ANDI:.+]] = arith.andi %[[N:.+]], %[[C]] : i8
// CHECK-NEXT: %[[EXTUI:.+]] = arith.extui %[[ANDI]] : i8 to i32
// CHECK-NEXT: return %[[EXTUI]] : i32
// CHECK-NEXT: ^bb2:
// CHECK-NEXT: %[[TRUNCI:.+]] = arith.trunci %[[X]] : i32 to i8
// CHECK-NEXT: %[[C2:.+]] = arith.constant 4 : i8
// CHECK-NEXT: %[[SHLI:.+]] = arith.shli %[[TRUNCI]], %[[C2]] : i8
// CHECK-NEXT: %[[N]] = arith.shrsi %[[SHLI]], %[[C2]] : i8
// CHECK-NEXT: cf.br ^bb1
func.func @blocks_out_of_order(%x: i32) -> i32 {
  cf.br ^bb2
^bb1:
  %w = arith.extui %n : i4 to i32
  return %w : i32
^bb2:
  %n = arith.trunci %x : i32 to i4
  cf.br ^bb1
}

// -----

// Two zero extensions in a row: both mask.
// CHECK-LABEL: func.func @extended_twice(
// CHECK-SAME: %[[X:[^:]+]]: i8) -> (i16, i32) attributes {subquant.function_type = (i3) -> (i12, i32)} {
// CHECK-NEXT: %[[C:.+]] = arith.constant 7 : i8
// CHECK-NEXT: %[[ANDI:.+]] = arith.andi %[[X]], %[[C]] : i8
// CHECK-NEXT: %[[EXTUI:.+]] = arith.extui %[[ANDI]] : i8 to i16
// CHECK-NEXT: %[[C2:.+]] = arith.constant 4095 : i16
// CHECK-NEXT: %[[ANDI2:.+]] = arith.andi %[[EXTUI]], %[[C2]] : i16
// CHECK-NEXT: %[[EXTUI2:.+]] = arith.extui %[[ANDI2]] : i16 to i32
// CHECK-NEXT: return %[[EXTUI]], %[[EXTUI2]] : i16, i32
func.func @extended_twice(%x: i3) -> (i12, i32) {
  %a = arith.extui %x : i3 to i12
  %b = arith.extui %a : i12 to i32
  return %a, %b : i12, i32
}
