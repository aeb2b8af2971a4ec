// RUN: subquant opt %s --passes "lower-quant-casts" --split-input-file | filecheck %s

// The number of scales fixes the extent: it is checked, then static.
// CHECK: #[[MAP:.+]] = affine_map<(d0, d1, d2) -> (d0, d1, d2)>
// CHECK: #[[MAP1:.+]] = affine_map<(d0, d1, d2) -> (d1)>
// CHECK-LABEL: func.func @dynamic(
// CHECK-SAME: %[[Q:[^:]+]]: tensor<2x?x!quant.uniform<i8:f32:{1:4}, {{.*}}>>) -> tensor<2x?xf32> {
// CHECK-NEXT: %[[SCAST:.+]] = quant.scast %[[Q]] : tensor<2x?x!quant.uniform<i8:f32:{1:4}, {{.*}}>> to tensor<2x?xi8>
// CHECK-NEXT: %[[C:.+]] = arith.constant 1 : index
// CHECK-NEXT: %[[DIM:.+]] = tensor.dim %[[SCAST]], %[[C]] : tensor<2x?xi8>
// CHECK-NEXT: %[[C2:.+]] = arith.constant 8 : index
// CHECK-NEXT: %[[CMPI:.+]] = arith.cmpi eq, %[[DIM]], %[[C2]] : index
// CHECK-NEXT: cf.assert %[[CMPI]], "'quant.dcast' op at {{[^ ]+}}: dimension 1 must be 8 at run time (2 blocks of 4)"
// CHECK-NEXT: %[[CAST:.+]] = tensor.cast %[[SCAST]] : tensor<2x?xi8> to tensor<2x8xi8>
// CHECK-NEXT: %[[C3:.+]] = arith.constant dense<[1.000000e+00, 2.000000e+00]> : tensor<2xf32>
// CHECK-NEXT: %[[EXPANDED:.+]] = tensor.expand_shape %[[CAST]] {{\[\[}}0], [1, 2]] output_shape [2, 2, 4] : tensor<2x8xi8> into tensor<2x2x4xi8>
// CHECK-NEXT: %[[EMPTY:.+]] = tensor.empty() : tensor<2x2x4xf32>
// CHECK-NEXT: %[[GENERIC:.+]] = linalg.generic {indexing_maps = [#[[MAP]], #[[MAP1]], #[[MAP]]], iterator_types = ["parallel", "parallel", "parallel"]} ins(%[[EXPANDED]], %[[C3]] : tensor<2x2x4xi8>, tensor<2xf32>) outs(%[[EMPTY]] : tensor<2x2x4xf32>) {
// CHECK-NEXT: ^bb0(%[[IN:[^:]+]]: i8, %[[IN2:[^:]+]]: f32, %[[OUT:[^:]+]]: f32):
// CHECK-NEXT: %[[EXTSI:.+]] = arith.extsi %[[IN]] : i8 to i32
// CHECK-NEXT: %[[SITOFP:.+]] = arith.sitofp %[[EXTSI]] : i32 to f32
// CHECK-NEXT: %[[MULF:.+]] = arith.mulf %[[SITOFP]], %[[IN2]] : f32
// CHECK-NEXT: linalg.yield %[[MULF]] : f32
// CHECK-NEXT: } -> tensor<2x2x4xf32>
// CHECK-NEXT: %[[COLLAPSED:.+]] = tensor.collapse_shape %[[GENERIC]] {{\[\[}}0], [1, 2]] : tensor<2x2x4xf32> into tensor<2x8xf32>
// CHECK-NEXT: %[[CAST2:.+]] = tensor.cast %[[COLLAPSED]] : tensor<2x8xf32> to tensor<2x?xf32>
// CHECK-NEXT: return %[[CAST2]] : tensor<2x?xf32>
!q = !quant.uniform<i8:f32:{1:4}, {{1.0, 2.0}}>
func.func @dynamic(%q: tensor<2x?x!q>) -> tensor<2x?xf32> {
  %x = quant.dcast %q : tensor<2x?x!q> to tensor<2x?xf32>
  return %x : tensor<2x?xf32>
}

// -----

// subquant casts allow a shorter last block: a range of extents, and the tensor stays dynamic.
// CHECK: #[[MAP:.+]] = affine_map<(d0, d1) -> (d0, d1)>
// CHECK-LABEL: func.func @dynamic_ragged(
// CHECK-SAME: %[[Q:[^:]+]]: tensor<2x?x!quant.uniform<i8:f32:{1:4}, {{.*}}>>) -> tensor<2x?xf32> {
// CHECK-NEXT: %[[SCAST:.+]] = "subquant.scast"(%[[Q]]) : (tensor<2x?x!quant.uniform<i8:f32:{1:4}, {{.*}}>>) -> tensor<2x?xi8>
// CHECK-NEXT: %[[C:.+]] = arith.constant 1 : index
// CHECK-NEXT: %[[DIM:.+]] = tensor.dim %[[SCAST]], %[[C]] : tensor<2x?xi8>
// CHECK-NEXT: %[[C2:.+]] = arith.constant 4 : index
// CHECK-NEXT: %[[CEILDIVSI:.+]] = arith.ceildivsi %[[DIM]], %[[C2]] : index
// CHECK-NEXT: %[[C3:.+]] = arith.constant 2 : index
// CHECK-NEXT: %[[CMPI:.+]] = arith.cmpi eq, %[[CEILDIVSI]], %[[C3]] : index
// CHECK-NEXT: cf.assert %[[CMPI]], "'subquant.dcast' op at {{[^ ]+}}: dimension 1 must be 5 to 8 at run time (2 blocks of 4, the last may be shorter)"
// CHECK-NEXT: %[[C4:.+]] = arith.constant dense<[1.000000e+00, 2.000000e+00]> : tensor<2xf32>
// CHECK-NEXT: %[[C5:.+]] = arith.constant 1 : index
// CHECK-NEXT: %[[DIM2:.+]] = tensor.dim %[[SCAST]], %[[C5]] : tensor<2x?xi8>
// CHECK-NEXT: %[[EMPTY:.+]] = tensor.empty(%[[DIM2]]) : tensor<2x?xf32>
// CHECK-NEXT: %[[GENERIC:.+]] = linalg.generic {indexing_maps = [#[[MAP]], #[[MAP]]], iterator_types = ["parallel", "parallel"]} ins(%[[SCAST]] : tensor<2x?xi8>) outs(%[[EMPTY]] : tensor<2x?xf32>) {
// CHECK-NEXT: ^bb0(%[[IN:[^:]+]]: i8, %[[OUT:[^:]+]]: f32):
// CHECK-NEXT: %[[INDEX:.+]] = linalg.index 1 : index
// CHECK-NEXT: %[[C6:.+]] = arith.constant 4 : index
// CHECK-NEXT: %[[DIVUI:.+]] = arith.divui %[[INDEX]], %[[C6]] : index
// CHECK-NEXT: %[[EXTRACT:.+]] = tensor.extract %[[C4]][%[[DIVUI]]] : tensor<2xf32>
// CHECK-NEXT: %[[EXTSI:.+]] = arith.extsi %[[IN]] : i8 to i32
// CHECK-NEXT: %[[SITOFP:.+]] = arith.sitofp %[[EXTSI]] : i32 to f32
// CHECK-NEXT: %[[MULF:.+]] = arith.mulf %[[SITOFP]], %[[EXTRACT]] : f32
// CHECK-NEXT: linalg.yield %[[MULF]] : f32
// CHECK-NEXT: } -> tensor<2x?xf32>
// CHECK-NEXT: return %[[GENERIC]] : tensor<2x?xf32>
!q = !quant.uniform<i8:f32:{1:4}, {{1.0, 2.0}}>
func.func @dynamic_ragged(%q: tensor<2x?x!q>) -> tensor<2x?xf32> {
  %x = "subquant.dcast"(%q) : (tensor<2x?x!q>) -> tensor<2x?xf32>
  return %x : tensor<2x?xf32>
}
