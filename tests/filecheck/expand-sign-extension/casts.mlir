// RUN: subquant opt %s --passes "expand-sign-extension" --split-input-file | filecheck %s

// Through i32: flip the sign bit, and subtract what it stood for.
// CHECK-LABEL: func.func @scalars(
// CHECK-SAME: %[[X:[^:]+]]: i8, %[[Y:[^:]+]]: i16) -> (i16, i32, i64, f32, f16) {
// CHECK-NEXT: %[[EXTUI:.+]] = arith.extui %[[X]] : i8 to i32
// CHECK-NEXT: %[[C:.+]] = arith.constant 128 : i32
// CHECK-NEXT: %[[XORI:.+]] = arith.xori %[[EXTUI]], %[[C]] : i32
// CHECK-NEXT: %[[SUBI:.+]] = arith.subi %[[XORI]], %[[C]] : i32
// CHECK-NEXT: %[[TRUNCI:.+]] = arith.trunci %[[SUBI]] : i32 to i16
// CHECK-NEXT: %[[EXTUI2:.+]] = arith.extui %[[X]] : i8 to i32
// CHECK-NEXT: %[[C2:.+]] = arith.constant 128 : i32
// CHECK-NEXT: %[[XORI2:.+]] = arith.xori %[[EXTUI2]], %[[C2]] : i32
// CHECK-NEXT: %[[SUBI2:.+]] = arith.subi %[[XORI2]], %[[C2]] : i32
// CHECK-NEXT: %[[EXTUI3:.+]] = arith.extui %[[Y]] : i16 to i32
// CHECK-NEXT: %[[C3:.+]] = arith.constant 32768 : i32
// CHECK-NEXT: %[[XORI3:.+]] = arith.xori %[[EXTUI3]], %[[C3]] : i32
// CHECK-NEXT: %[[SUBI3:.+]] = arith.subi %[[XORI3]], %[[C3]] : i32
// CHECK-NEXT: %[[EXTSI:.+]] = arith.extsi %[[SUBI3]] : i32 to i64
// CHECK-NEXT: %[[EXTUI4:.+]] = arith.extui %[[X]] : i8 to i32
// CHECK-NEXT: %[[C4:.+]] = arith.constant 128 : i32
// CHECK-NEXT: %[[XORI4:.+]] = arith.xori %[[EXTUI4]], %[[C4]] : i32
// CHECK-NEXT: %[[SUBI4:.+]] = arith.subi %[[XORI4]], %[[C4]] : i32
// CHECK-NEXT: %[[SITOFP:.+]] = arith.sitofp %[[SUBI4]] : i32 to f32
// CHECK-NEXT: %[[EXTUI5:.+]] = arith.extui %[[Y]] : i16 to i32
// CHECK-NEXT: %[[C5:.+]] = arith.constant 32768 : i32
// CHECK-NEXT: %[[XORI5:.+]] = arith.xori %[[EXTUI5]], %[[C5]] : i32
// CHECK-NEXT: %[[SUBI5:.+]] = arith.subi %[[XORI5]], %[[C5]] : i32
// CHECK-NEXT: %[[SITOFP2:.+]] = arith.sitofp %[[SUBI5]] : i32 to f16
// CHECK-NEXT: return %[[TRUNCI]], %[[SUBI2]], %[[EXTSI]], %[[SITOFP]], %[[SITOFP2]] : i16, i32, i64, f32, f16
func.func @scalars(%x: i8, %y: i16) -> (i16, i32, i64, f32, f16) {
  %a = arith.extsi %x : i8 to i16
  %b = arith.extsi %x : i8 to i32
  %c = arith.extsi %y : i16 to i64
  %d = arith.sitofp %x : i8 to f32
  %e = arith.sitofp %y : i16 to f16
  return %a, %b, %c, %d, %e : i16, i32, i64, f32, f16
}

// -----

// Element-wise operations on tensors are written as loops first.
// CHECK: #[[MAP:.+]] = affine_map<(d0) -> (d0)>
// CHECK-LABEL: func.func @elementwise(
// CHECK-SAME: %[[X:[^:]+]]: tensor<4xi8>) -> tensor<4xi32> {
// CHECK-NEXT: %[[EMPTY:.+]] = tensor.empty() : tensor<4xi32>
// CHECK-NEXT: %[[GENERIC:.+]] = linalg.generic {indexing_maps = [#[[MAP]], #[[MAP]]], iterator_types = ["parallel"]} ins(%[[X]] : tensor<4xi8>) outs(%[[EMPTY]] : tensor<4xi32>) {
// CHECK-NEXT: ^bb0(%[[IN:[^:]+]]: i8, %[[OUT:[^:]+]]: i32):
// CHECK-NEXT: %[[EXTUI:.+]] = arith.extui %[[IN]] : i8 to i32
// CHECK-NEXT: %[[C:.+]] = arith.constant 128 : i32
// CHECK-NEXT: %[[XORI:.+]] = arith.xori %[[EXTUI]], %[[C]] : i32
// CHECK-NEXT: %[[SUBI:.+]] = arith.subi %[[XORI]], %[[C]] : i32
// CHECK-NEXT: linalg.yield %[[SUBI]] : i32
// CHECK-NEXT: } -> tensor<4xi32>
// CHECK-NEXT: return %[[GENERIC]] : tensor<4xi32>
func.func @elementwise(%x: tensor<4xi8>) -> tensor<4xi32> {
  %r = arith.extsi %x : tensor<4xi8> to tensor<4xi32>
  return %r : tensor<4xi32>
}

// -----

// So are named operations, whose extensions are hidden.
// CHECK: #[[MAP:.+]] = affine_map<(d0, d1, d2) -> (d0, d2)>
// CHECK: #[[MAP1:.+]] = affine_map<(d0, d1, d2) -> (d2, d1)>
// CHECK: #[[MAP2:.+]] = affine_map<(d0, d1, d2) -> (d0, d1)>
// CHECK-LABEL: func.func @named(
// CHECK-SAME: %[[A:[^:]+]]: tensor<2x3xi8>, %[[B:[^:]+]]: tensor<3x4xi8>, %[[C:[^:]+]]: tensor<2x4xi32>) -> tensor<2x4xi32> {
// CHECK-NEXT: %[[GENERIC:.+]] = linalg.generic {indexing_maps = [#[[MAP]], #[[MAP1]], #[[MAP2]]], iterator_types = ["parallel", "parallel", "reduction"]} ins(%[[A]], %[[B]] : tensor<2x3xi8>, tensor<3x4xi8>) outs(%[[C]] : tensor<2x4xi32>) {
// CHECK-NEXT: ^bb0(%[[IN:[^:]+]]: i8, %[[IN2:[^:]+]]: i8, %[[OUT:[^:]+]]: i32):
// CHECK-NEXT: %[[EXTUI:.+]] = arith.extui %[[IN]] : i8 to i32
// CHECK-NEXT: %[[C2:.+]] = arith.constant 128 : i32
// CHECK-NEXT: %[[XORI:.+]] = arith.xori %[[EXTUI]], %[[C2]] : i32
// CHECK-NEXT: %[[SUBI:.+]] = arith.subi %[[XORI]], %[[C2]] : i32
// CHECK-NEXT: %[[EXTUI2:.+]] = arith.extui %[[IN2]] : i8 to i32
// CHECK-NEXT: %[[C3:.+]] = arith.constant 128 : i32
// CHECK-NEXT: %[[XORI2:.+]] = arith.xori %[[EXTUI2]], %[[C3]] : i32
// CHECK-NEXT: %[[SUBI2:.+]] = arith.subi %[[XORI2]], %[[C3]] : i32
// CHECK-NEXT: %[[MULI:.+]] = arith.muli %[[SUBI]], %[[SUBI2]] : i32
// CHECK-NEXT: %[[ADDI:.+]] = arith.addi %[[OUT]], %[[MULI]] : i32
// CHECK-NEXT: linalg.yield %[[ADDI]] : i32
// CHECK-NEXT: } -> tensor<2x4xi32>
// CHECK-NEXT: return %[[GENERIC]] : tensor<2x4xi32>
func.func @named(%a: tensor<2x3xi8>, %b: tensor<3x4xi8>, %c: tensor<2x4xi32>) -> tensor<2x4xi32> {
  %r = linalg.matmul ins(%a, %b : tensor<2x3xi8>, tensor<3x4xi8>) outs(%c : tensor<2x4xi32>) -> tensor<2x4xi32>
  return %r : tensor<2x4xi32>
}

// -----

// And StableHLO's.
// CHECK: #[[MAP:.+]] = affine_map<(d0, d1) -> ()>
// CHECK: #[[MAP1:.+]] = affine_map<(d0, d1) -> (d0, d1)>
// CHECK: #[[MAP2:.+]] = affine_map<(d0, d1, d2) -> (d0, d2)>
// CHECK: #[[MAP3:.+]] = affine_map<(d0, d1, d2) -> (d2, d1)>
// CHECK: #[[MAP4:.+]] = affine_map<(d0, d1, d2) -> (d0, d1)>
// CHECK-LABEL: func.func @stablehlo(
// CHECK-SAME: %[[A:[^:]+]]: tensor<2x3xi8>, %[[B:[^:]+]]: tensor<3x4xi8>) -> tensor<2x4xi32> {
// CHECK: %[[GENERIC:.+]] = linalg.generic {indexing_maps = [#[[MAP]], #[[MAP1]]], iterator_types = ["parallel", "parallel"]} ins(%{{.+}} : i32) outs(%{{.+}} : tensor<2x4xi32>) {
// CHECK-NEXT: ^bb0(%[[IN:[^:]+]]: i32, %[[OUT:[^:]+]]: i32):
// CHECK-NEXT: linalg.yield %[[IN]] : i32
// CHECK: %[[GENERIC2:.+]] = linalg.generic {indexing_maps = [#[[MAP2]], #[[MAP3]], #[[MAP4]]], iterator_types = ["parallel", "parallel", "reduction"]} ins(%[[A]], %[[B]] : tensor<2x3xi8>, tensor<3x4xi8>) outs(%[[GENERIC]] : tensor<2x4xi32>) {
// CHECK-NEXT: ^bb0(%[[IN2:[^:]+]]: i8, %[[IN3:[^:]+]]: i8, %[[OUT2:[^:]+]]: i32):
// CHECK-NEXT: %[[EXTUI:.+]] = arith.extui %[[IN2]] : i8 to i32
// CHECK-NEXT: %[[C1:.+]] = arith.constant 128 : i32
// CHECK-NEXT: %[[XORI:.+]] = arith.xori %[[EXTUI]], %[[C1]] : i32
// CHECK-NEXT: %[[SUBI:.+]] = arith.subi %[[XORI]], %[[C1]] : i32
// CHECK-NEXT: %[[EXTUI2:.+]] = arith.extui %[[IN3]] : i8 to i32
// CHECK-NEXT: %[[C2:.+]] = arith.constant 128 : i32
// CHECK-NEXT: %[[XORI2:.+]] = arith.xori %[[EXTUI2]], %[[C2]] : i32
// CHECK-NEXT: %[[SUBI2:.+]] = arith.subi %[[XORI2]], %[[C2]] : i32
// CHECK-NEXT: %[[MULI:.+]] = arith.muli %[[SUBI]], %[[SUBI2]] : i32
// CHECK: linalg.yield %{{.+}} : i32
func.func @stablehlo(%a: tensor<2x3xi8>, %b: tensor<3x4xi8>) -> tensor<2x4xi32> {
  %r = stablehlo.dot %a, %b : (tensor<2x3xi8>, tensor<3x4xi8>) -> tensor<2x4xi32>
  return %r : tensor<2x4xi32>
}
