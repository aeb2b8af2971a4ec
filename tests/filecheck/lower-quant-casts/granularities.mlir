// RUN: subquant opt %s --passes "lower-quant-casts" --split-input-file | filecheck %s

// x / s + z, saturate, round to nearest even, convert; and (q - z) * s.
// CHECK: #[[MAP:.+]] = affine_map<(d0, d1) -> (d0, d1)>
// CHECK-LABEL: func.func @per_tensor(
// CHECK-SAME: %[[X:[^:]+]]: tensor<4x?xf32>) -> tensor<4x?xf32> {
// CHECK-NEXT: %[[C:.+]] = arith.constant 1 : index
// CHECK-NEXT: %[[DIM:.+]] = tensor.dim %[[X]], %[[C]] : tensor<4x?xf32>
// CHECK-NEXT: %[[EMPTY:.+]] = tensor.empty(%[[DIM]]) : tensor<4x?xi8>
// CHECK-NEXT: %[[GENERIC:.+]] = linalg.generic {indexing_maps = [#[[MAP]], #[[MAP]]], iterator_types = ["parallel", "parallel"]} ins(%[[X]] : tensor<4x?xf32>) outs(%[[EMPTY]] : tensor<4x?xi8>) {
// CHECK-NEXT: ^bb0(%[[IN:[^:]+]]: f32, %[[OUT:[^:]+]]: i8):
// CHECK-NEXT: %[[C2:.+]] = arith.constant 2.000000e+00 : f32
// CHECK-NEXT: %[[DIVF:.+]] = arith.divf %[[IN]], %[[C2]] : f32
// CHECK-NEXT: %[[C3:.+]] = arith.constant 3.000000e+00 : f32
// CHECK-NEXT: %[[ADDF:.+]] = arith.addf %[[DIVF]], %[[C3]] : f32
// CHECK-NEXT: %[[C4:.+]] = arith.constant -1.280000e+02 : f32
// CHECK-NEXT: %[[CMPF:.+]] = arith.cmpf olt, %[[ADDF]], %[[C4]] : f32
// CHECK-NEXT: %[[C5:.+]] = arith.constant 1.270000e+02 : f32
// CHECK-NEXT: %[[CMPF2:.+]] = arith.cmpf ogt, %[[ADDF]], %[[C5]] : f32
// CHECK-NEXT: %[[SELECT:.+]] = arith.select %[[CMPF]], %[[C4]], %[[ADDF]] : f32
// CHECK-NEXT: %[[SELECT2:.+]] = arith.select %[[CMPF2]], %[[C5]], %[[SELECT]] : f32
// CHECK-NEXT: %[[CMPF3:.+]] = arith.cmpf uno, %[[ADDF]], %[[ADDF]] : f32
// CHECK-NEXT: %[[ROUNDEVEN:.+]] = math.roundeven %[[SELECT2]] : f32
// CHECK-NEXT: %[[C6:.+]] = arith.constant 0.000000e+00 : f32
// CHECK-NEXT: %[[SELECT3:.+]] = arith.select %[[CMPF3]], %[[C6]], %[[ROUNDEVEN]] : f32
// CHECK-NEXT: %[[FPTOSI:.+]] = arith.fptosi %[[SELECT3]] : f32 to i32
// CHECK-NEXT: %[[TRUNCI:.+]] = arith.trunci %[[FPTOSI]] : i32 to i8
// CHECK-NEXT: linalg.yield %[[TRUNCI]] : i8
// CHECK-NEXT: } -> tensor<4x?xi8>
// CHECK-NEXT: %[[SCAST:.+]] = quant.scast %[[GENERIC]] : tensor<4x?xi8> to tensor<4x?x!quant.uniform<i8:f32, 2.000000e+00:3>>
// CHECK-NEXT: %[[SCAST2:.+]] = quant.scast %[[SCAST]] : tensor<4x?x!quant.uniform<i8:f32, 2.000000e+00:3>> to tensor<4x?xi8>
// CHECK-NEXT: %[[C7:.+]] = arith.constant 1 : index
// CHECK-NEXT: %[[DIM2:.+]] = tensor.dim %[[SCAST2]], %[[C7]] : tensor<4x?xi8>
// CHECK-NEXT: %[[EMPTY2:.+]] = tensor.empty(%[[DIM2]]) : tensor<4x?xf32>
// CHECK-NEXT: %[[GENERIC2:.+]] = linalg.generic {indexing_maps = [#[[MAP]], #[[MAP]]], iterator_types = ["parallel", "parallel"]} ins(%[[SCAST2]] : tensor<4x?xi8>) outs(%[[EMPTY2]] : tensor<4x?xf32>) {
// CHECK-NEXT: ^bb0(%[[IN2:[^:]+]]: i8, %[[OUT2:[^:]+]]: f32):
// CHECK-NEXT: %[[EXTSI:.+]] = arith.extsi %[[IN2]] : i8 to i32
// CHECK-NEXT: %[[C8:.+]] = arith.constant 3 : i32
// CHECK-NEXT: %[[SUBI:.+]] = arith.subi %[[EXTSI]], %[[C8]] : i32
// CHECK-NEXT: %[[SITOFP:.+]] = arith.sitofp %[[SUBI]] : i32 to f32
// CHECK-NEXT: %[[C9:.+]] = arith.constant 2.000000e+00 : f32
// CHECK-NEXT: %[[MULF:.+]] = arith.mulf %[[SITOFP]], %[[C9]] : f32
// CHECK-NEXT: linalg.yield %[[MULF]] : f32
// CHECK-NEXT: } -> tensor<4x?xf32>
// CHECK-NEXT: return %[[GENERIC2]] : tensor<4x?xf32>
!q = !quant.uniform<i8:f32, 2.0:3>
func.func @per_tensor(%x: tensor<4x?xf32>) -> tensor<4x?xf32> {
  %q = quant.qcast %x : tensor<4x?xf32> to tensor<4x?x!q>
  %y = quant.dcast %q : tensor<4x?x!q> to tensor<4x?xf32>
  return %y : tensor<4x?xf32>
}

// -----

// Scales and zero points are indexed by the quantized dimension.
// CHECK: #[[MAP:.+]] = affine_map<(d0, d1) -> (d0, d1)>
// CHECK: #[[MAP1:.+]] = affine_map<(d0, d1) -> (d1)>
// CHECK-LABEL: func.func @per_axis(
// CHECK-SAME: %[[X:[^:]+]]: tensor<4x2xf32>) -> tensor<4x2x!quant.uniform<i8:f32:1, {1.000000e+00:1,2.000000e+00:2}>> {
// CHECK-NEXT: %[[C:.+]] = arith.constant dense<[1.000000e+00, 2.000000e+00]> : tensor<2xf32>
// CHECK-NEXT: %[[C2:.+]] = arith.constant dense<[1, 2]> : tensor<2xi8>
// CHECK-NEXT: %[[EMPTY:.+]] = tensor.empty() : tensor<4x2xi8>
// CHECK-NEXT: %[[GENERIC:.+]] = linalg.generic {indexing_maps = [#[[MAP]], #[[MAP1]], #[[MAP1]], #[[MAP]]], iterator_types = ["parallel", "parallel"]} ins(%[[X]], %[[C]], %[[C2]] : tensor<4x2xf32>, tensor<2xf32>, tensor<2xi8>) outs(%[[EMPTY]] : tensor<4x2xi8>) {
// CHECK-NEXT: ^bb0(%[[IN:[^:]+]]: f32, %[[IN2:[^:]+]]: f32, %[[IN3:[^:]+]]: i8, %[[OUT:[^:]+]]: i8):
// CHECK-NEXT: %[[DIVF:.+]] = arith.divf %[[IN]], %[[IN2]] : f32
// CHECK-NEXT: %[[EXTSI:.+]] = arith.extsi %[[IN3]] : i8 to i32
// CHECK-NEXT: %[[SITOFP:.+]] = arith.sitofp %[[EXTSI]] : i32 to f32
// CHECK-NEXT: %[[ADDF:.+]] = arith.addf %[[DIVF]], %[[SITOFP]] : f32
// CHECK-NEXT: %[[C3:.+]] = arith.constant -1.280000e+02 : f32
// CHECK-NEXT: %[[CMPF:.+]] = arith.cmpf olt, %[[ADDF]], %[[C3]] : f32
// CHECK-NEXT: %[[C4:.+]] = arith.constant 1.270000e+02 : f32
// CHECK-NEXT: %[[CMPF2:.+]] = arith.cmpf ogt, %[[ADDF]], %[[C4]] : f32
// CHECK-NEXT: %[[SELECT:.+]] = arith.select %[[CMPF]], %[[C3]], %[[ADDF]] : f32
// CHECK-NEXT: %[[SELECT2:.+]] = arith.select %[[CMPF2]], %[[C4]], %[[SELECT]] : f32
// CHECK-NEXT: %[[CMPF3:.+]] = arith.cmpf uno, %[[ADDF]], %[[ADDF]] : f32
// CHECK-NEXT: %[[ROUNDEVEN:.+]] = math.roundeven %[[SELECT2]] : f32
// CHECK-NEXT: %[[C5:.+]] = arith.constant 0.000000e+00 : f32
// CHECK-NEXT: %[[SELECT3:.+]] = arith.select %[[CMPF3]], %[[C5]], %[[ROUNDEVEN]] : f32
// CHECK-NEXT: %[[FPTOSI:.+]] = arith.fptosi %[[SELECT3]] : f32 to i32
// CHECK-NEXT: %[[TRUNCI:.+]] = arith.trunci %[[FPTOSI]] : i32 to i8
// CHECK-NEXT: linalg.yield %[[TRUNCI]] : i8
// CHECK-NEXT: } -> tensor<4x2xi8>
// CHECK-NEXT: %[[SCAST:.+]] = quant.scast %[[GENERIC]] : tensor<4x2xi8> to tensor<4x2x!quant.uniform<i8:f32:1, {1.000000e+00:1,2.000000e+00:2}>>
// CHECK-NEXT: return %[[SCAST]] : tensor<4x2x!quant.uniform<i8:f32:1, {1.000000e+00:1,2.000000e+00:2}>>
!q = !quant.uniform<i8:f32:1, {1.0:1, 2.0:2}>
func.func @per_axis(%x: tensor<4x2xf32>) -> tensor<4x2x!q> {
  %q = quant.qcast %x : tensor<4x2xf32> to tensor<4x2x!q>
  return %q : tensor<4x2x!q>
}

// -----

// A block size that divides the extent: the axis becomes (block, position in block).
// CHECK: #[[MAP:.+]] = affine_map<(d0, d1, d2) -> (d0, d1, d2)>
// CHECK: #[[MAP1:.+]] = affine_map<(d0, d1, d2) -> (d1)>
// CHECK-LABEL: func.func @split(
// CHECK-SAME: %[[Q:[^:]+]]: tensor<4x8x!quant.uniform<i4:f32:{1:4}, {{.*}}>>) -> tensor<4x8xf32> {
// CHECK-NEXT: %[[SCAST:.+]] = quant.scast %[[Q]] : tensor<4x8x!quant.uniform<i4:f32:{1:4}, {{.*}}>> to tensor<4x8xi4>
// CHECK-NEXT: %[[C:.+]] = arith.constant dense<[1.000000e+00, 2.000000e+00]> : tensor<2xf32>
// CHECK-NEXT: %[[EXPANDED:.+]] = tensor.expand_shape %[[SCAST]] {{\[\[}}0], [1, 2]] output_shape [4, 2, 4] : tensor<4x8xi4> into tensor<4x2x4xi4>
// CHECK-NEXT: %[[EMPTY:.+]] = tensor.empty() : tensor<4x2x4xf32>
// CHECK-NEXT: %[[GENERIC:.+]] = linalg.generic {indexing_maps = [#[[MAP]], #[[MAP1]], #[[MAP]]], iterator_types = ["parallel", "parallel", "parallel"]} ins(%[[EXPANDED]], %[[C]] : tensor<4x2x4xi4>, tensor<2xf32>) outs(%[[EMPTY]] : tensor<4x2x4xf32>) {
// CHECK-NEXT: ^bb0(%[[IN:[^:]+]]: i4, %[[IN2:[^:]+]]: f32, %[[OUT:[^:]+]]: f32):
// CHECK-NEXT: %[[EXTSI:.+]] = arith.extsi %[[IN]] : i4 to i32
// CHECK-NEXT: %[[SITOFP:.+]] = arith.sitofp %[[EXTSI]] : i32 to f32
// CHECK-NEXT: %[[MULF:.+]] = arith.mulf %[[SITOFP]], %[[IN2]] : f32
// CHECK-NEXT: linalg.yield %[[MULF]] : f32
// CHECK-NEXT: } -> tensor<4x2x4xf32>
// CHECK-NEXT: %[[COLLAPSED:.+]] = tensor.collapse_shape %[[GENERIC]] {{\[\[}}0], [1, 2]] : tensor<4x2x4xf32> into tensor<4x8xf32>
// CHECK-NEXT: return %[[COLLAPSED]] : tensor<4x8xf32>
!q = !quant.uniform<i4:f32:{1:4}, {{1.0, 2.0}}>
func.func @split(%q: tensor<4x8x!q>) -> tensor<4x8xf32> {
  %x = quant.dcast %q : tensor<4x8x!q> to tensor<4x8xf32>
  return %x : tensor<4x8xf32>
}

// -----

// CHECK: #[[MAP:.+]] = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)>
// CHECK: #[[MAP1:.+]] = affine_map<(d0, d1, d2, d3) -> (d0, d2)>
// CHECK-LABEL: func.func @two_axes(
// CHECK-SAME: %[[Q:[^:]+]]: tensor<4x8x!quant.uniform<i8:f32:{0:2, 1:4}, {{.*}}>>) -> tensor<4x8xf32> {
// CHECK-NEXT: %[[SCAST:.+]] = quant.scast %[[Q]] : tensor<4x8x!quant.uniform<i8:f32:{0:2, 1:4}, {{.*}}>> to tensor<4x8xi8>
// CHECK-NEXT: %[[C:.+]] = arith.constant dense<{{\[\[}}1.000000e+00, 2.000000e+00], [3.000000e+00, 4.000000e+00]]> : tensor<2x2xf32>
// CHECK-NEXT: %[[EXPANDED:.+]] = tensor.expand_shape %[[SCAST]] {{\[\[}}0, 1], [2, 3]] output_shape [2, 2, 2, 4] : tensor<4x8xi8> into tensor<2x2x2x4xi8>
// CHECK-NEXT: %[[EMPTY:.+]] = tensor.empty() : tensor<2x2x2x4xf32>
// CHECK-NEXT: %[[GENERIC:.+]] = linalg.generic {indexing_maps = [#[[MAP]], #[[MAP1]], #[[MAP]]], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%[[EXPANDED]], %[[C]] : tensor<2x2x2x4xi8>, tensor<2x2xf32>) outs(%[[EMPTY]] : tensor<2x2x2x4xf32>) {
// CHECK-NEXT: ^bb0(%[[IN:[^:]+]]: i8, %[[IN2:[^:]+]]: f32, %[[OUT:[^:]+]]: f32):
// CHECK-NEXT: %[[EXTSI:.+]] = arith.extsi %[[IN]] : i8 to i32
// CHECK-NEXT: %[[SITOFP:.+]] = arith.sitofp %[[EXTSI]] : i32 to f32
// CHECK-NEXT: %[[MULF:.+]] = arith.mulf %[[SITOFP]], %[[IN2]] : f32
// CHECK-NEXT: linalg.yield %[[MULF]] : f32
// CHECK-NEXT: } -> tensor<2x2x2x4xf32>
// CHECK-NEXT: %[[COLLAPSED:.+]] = tensor.collapse_shape %[[GENERIC]] {{\[\[}}0, 1], [2, 3]] : tensor<2x2x2x4xf32> into tensor<4x8xf32>
// CHECK-NEXT: return %[[COLLAPSED]] : tensor<4x8xf32>
!q = !quant.uniform<i8:f32:{0:2, 1:4}, {{1.0, 2.0}, {3.0, 4.0}}>
func.func @two_axes(%q: tensor<4x8x!q>) -> tensor<4x8xf32> {
  %x = quant.dcast %q : tensor<4x8x!q> to tensor<4x8xf32>
  return %x : tensor<4x8xf32>
}

// -----

// A ragged last block: the body extracts the scale at index floordiv block.
// CHECK: #[[MAP:.+]] = affine_map<(d0, d1) -> (d0, d1)>
// CHECK-LABEL: func.func @unit_and_ragged(
// CHECK-SAME: %[[Q:[^:]+]]: tensor<2x7x!quant.uniform<i8:f32:{0:1, 1:4}, {{.*}}>>) -> tensor<2x7xf32> {
// CHECK-NEXT: %[[SCAST:.+]] = "subquant.scast"(%[[Q]]) : (tensor<2x7x!quant.uniform<i8:f32:{0:1, 1:4}, {{.*}}>>) -> tensor<2x7xi8>
// CHECK-NEXT: %[[C:.+]] = arith.constant dense<{{\[\[}}1.000000e+00, 2.000000e+00], [3.000000e+00, 4.000000e+00]]> : tensor<2x2xf32>
// CHECK-NEXT: %[[EMPTY:.+]] = tensor.empty() : tensor<2x7xf32>
// CHECK-NEXT: %[[GENERIC:.+]] = linalg.generic {indexing_maps = [#[[MAP]], #[[MAP]]], iterator_types = ["parallel", "parallel"]} ins(%[[SCAST]] : tensor<2x7xi8>) outs(%[[EMPTY]] : tensor<2x7xf32>) {
// CHECK-NEXT: ^bb0(%[[IN:[^:]+]]: i8, %[[OUT:[^:]+]]: f32):
// CHECK-NEXT: %[[INDEX:.+]] = linalg.index 0 : index
// CHECK-NEXT: %[[INDEX2:.+]] = linalg.index 1 : index
// CHECK-NEXT: %[[C2:.+]] = arith.constant 4 : index
// CHECK-NEXT: %[[DIVUI:.+]] = arith.divui %[[INDEX2]], %[[C2]] : index
// CHECK-NEXT: %[[EXTRACT:.+]] = tensor.extract %[[C]][%[[INDEX]], %[[DIVUI]]] : tensor<2x2xf32>
// CHECK-NEXT: %[[EXTSI:.+]] = arith.extsi %[[IN]] : i8 to i32
// CHECK-NEXT: %[[SITOFP:.+]] = arith.sitofp %[[EXTSI]] : i32 to f32
// CHECK-NEXT: %[[MULF:.+]] = arith.mulf %[[SITOFP]], %[[EXTRACT]] : f32
// CHECK-NEXT: linalg.yield %[[MULF]] : f32
// CHECK-NEXT: } -> tensor<2x7xf32>
// CHECK-NEXT: return %[[GENERIC]] : tensor<2x7xf32>
!q = !quant.uniform<i8:f32:{0:1, 1:4}, {{1.0, 2.0}, {3.0, 4.0}}>
func.func @unit_and_ragged(%q: tensor<2x7x!q>) -> tensor<2x7xf32> {
  %x = "subquant.dcast"(%q) : (tensor<2x7x!q>) -> tensor<2x7xf32>
  return %x : tensor<2x7xf32>
}

// -----

// The second cast of the same types is a copy of the first, for its own operand.
// CHECK: #[[MAP:.+]] = affine_map<(d0) -> (d0)>
// CHECK-LABEL: func.func @twice(
// CHECK-SAME: %[[X:[^:]+]]: tensor<4xf32>, %[[Y:[^:]+]]: tensor<4xf32>) -> (tensor<4x!quant.uniform<i8:f32, 2.000000e+00>>, tensor<4x!quant.uniform<i8:f32, 2.000000e+00>>) {
// CHECK: %[[GENERIC:.+]] = linalg.generic {indexing_maps = [#[[MAP]], #[[MAP]]], iterator_types = ["parallel"]} ins(%[[X]] : tensor<4xf32>) outs(%{{.+}} : tensor<4xi8>) {
// CHECK: %[[DIVF:.+]] = arith.divf %{{.+}}, %{{.+}} : f32
// CHECK: linalg.yield %{{.+}} : i8
// CHECK: %[[SCAST:.+]] = quant.scast %[[GENERIC]] : tensor<4xi8> to tensor<4x!quant.uniform<i8:f32, 2.000000e+00>>
// CHECK: %[[GENERIC2:.+]] = linalg.generic {indexing_maps = [#[[MAP]], #[[MAP]]], iterator_types = ["parallel"]} ins(%[[Y]] : tensor<4xf32>) outs(%{{.+}} : tensor<4xi8>) {
// CHECK: %[[DIVF2:.+]] = arith.divf %{{.+}}, %{{.+}} : f32
// CHECK: linalg.yield %{{.+}} : i8
// CHECK: %[[SCAST2:.+]] = quant.scast %[[GENERIC2]] : tensor<4xi8> to tensor<4x!quant.uniform<i8:f32, 2.000000e+00>>
// CHECK-NEXT: return %[[SCAST]], %[[SCAST2]] : tensor<4x!quant.uniform<i8:f32, 2.000000e+00>>, tensor<4x!quant.uniform<i8:f32, 2.000000e+00>>
!q = !quant.uniform<i8:f32, 2.0>
func.func @twice(%x: tensor<4xf32>, %y: tensor<4xf32>) -> (tensor<4x!q>, tensor<4x!q>) {
  %q = quant.qcast %x : tensor<4xf32> to tensor<4x!q>
  %p = quant.qcast %y : tensor<4xf32> to tensor<4x!q>
  return %q, %p : tensor<4x!q>, tensor<4x!q>
}

// -----

// Equal scales are one constant, and no axis is split.
// CHECK: #[[MAP:.+]] = affine_map<(d0) -> (d0)>
// CHECK-LABEL: func.func @one_scale_for_all(
// CHECK-SAME: %[[Q:[^:]+]]: tensor<4x!quant.uniform<i8:f32:{0:2}, {2.000000e+00, 2.000000e+00}>>) -> tensor<4xf32> {
// CHECK-NEXT: %[[SCAST:.+]] = quant.scast %[[Q]] : tensor<4x!quant.uniform<i8:f32:{0:2}, {2.000000e+00, 2.000000e+00}>> to tensor<4xi8>
// CHECK-NEXT: %[[EMPTY:.+]] = tensor.empty() : tensor<4xf32>
// CHECK-NEXT: %[[GENERIC:.+]] = linalg.generic {indexing_maps = [#[[MAP]], #[[MAP]]], iterator_types = ["parallel"]} ins(%[[SCAST]] : tensor<4xi8>) outs(%[[EMPTY]] : tensor<4xf32>) {
// CHECK-NEXT: ^bb0(%[[IN:[^:]+]]: i8, %[[OUT:[^:]+]]: f32):
// CHECK-NEXT: %[[EXTSI:.+]] = arith.extsi %[[IN]] : i8 to i32
// CHECK-NEXT: %[[SITOFP:.+]] = arith.sitofp %[[EXTSI]] : i32 to f32
// CHECK-NEXT: %[[C:.+]] = arith.constant 2.000000e+00 : f32
// CHECK-NEXT: %[[MULF:.+]] = arith.mulf %[[SITOFP]], %[[C]] : f32
// CHECK-NEXT: linalg.yield %[[MULF]] : f32
// CHECK-NEXT: } -> tensor<4xf32>
// CHECK-NEXT: return %[[GENERIC]] : tensor<4xf32>
!q = !quant.uniform<i8:f32:{0:2}, {2.0, 2.0}>
func.func @one_scale_for_all(%q: tensor<4x!q>) -> tensor<4xf32> {
  %x = quant.dcast %q : tensor<4x!q> to tensor<4xf32>
  return %x : tensor<4xf32>
}

// -----

// CHECK: #[[MAP:.+]] = affine_map<(d0, d1) -> (d0, d1)>
// CHECK: #[[MAP1:.+]] = affine_map<(d0, d1) -> (d0)>
// CHECK-LABEL: func.func @one_scale_and_two_zero_points(
// CHECK-SAME: %[[Q:[^:]+]]: tensor<4x!quant.uniform<i8:f32:{0:2}, {2.000000e+00:1, 2.000000e+00:2}>>) -> tensor<4xf32> {
// CHECK-NEXT: %[[SCAST:.+]] = quant.scast %[[Q]] : tensor<4x!quant.uniform<i8:f32:{0:2}, {2.000000e+00:1, 2.000000e+00:2}>> to tensor<4xi8>
// CHECK-NEXT: %[[C:.+]] = arith.constant dense<[1, 2]> : tensor<2xi8>
// CHECK-NEXT: %[[EXPANDED:.+]] = tensor.expand_shape %[[SCAST]] {{\[\[}}0, 1]] output_shape [2, 2] : tensor<4xi8> into tensor<2x2xi8>
// CHECK-NEXT: %[[EMPTY:.+]] = tensor.empty() : tensor<2x2xf32>
// CHECK-NEXT: %[[GENERIC:.+]] = linalg.generic {indexing_maps = [#[[MAP]], #[[MAP1]], #[[MAP]]], iterator_types = ["parallel", "parallel"]} ins(%[[EXPANDED]], %[[C]] : tensor<2x2xi8>, tensor<2xi8>) outs(%[[EMPTY]] : tensor<2x2xf32>) {
// CHECK-NEXT: ^bb0(%[[IN:[^:]+]]: i8, %[[IN2:[^:]+]]: i8, %[[OUT:[^:]+]]: f32):
// CHECK-NEXT: %[[EXTSI:.+]] = arith.extsi %[[IN]] : i8 to i32
// CHECK-NEXT: %[[EXTSI2:.+]] = arith.extsi %[[IN2]] : i8 to i32
// CHECK-NEXT: %[[SUBI:.+]] = arith.subi %[[EXTSI]], %[[EXTSI2]] : i32
// CHECK-NEXT: %[[SITOFP:.+]] = arith.sitofp %[[SUBI]] : i32 to f32
// CHECK-NEXT: %[[C2:.+]] = arith.constant 2.000000e+00 : f32
// CHECK-NEXT: %[[MULF:.+]] = arith.mulf %[[SITOFP]], %[[C2]] : f32
// CHECK-NEXT: linalg.yield %[[MULF]] : f32
// CHECK-NEXT: } -> tensor<2x2xf32>
// CHECK-NEXT: %[[COLLAPSED:.+]] = tensor.collapse_shape %[[GENERIC]] {{\[\[}}0, 1]] : tensor<2x2xf32> into tensor<4xf32>
// CHECK-NEXT: return %[[COLLAPSED]] : tensor<4xf32>
!q = !quant.uniform<i8:f32:{0:2}, {2.0:1, 2.0:2}>
func.func @one_scale_and_two_zero_points(%q: tensor<4x!q>) -> tensor<4xf32> {
  %x = quant.dcast %q : tensor<4x!q> to tensor<4xf32>
  return %x : tensor<4xf32>
}

// -----

// A copy of a ragged cast takes its own constants.
// CHECK: #[[MAP:.+]] = affine_map<(d0) -> (d0)>
// CHECK-LABEL: func.func @ragged_twice(
// CHECK-SAME: %[[P:[^:]+]]: tensor<7x!quant.uniform<i8:f32:{0:4}, {1.000000e+00, 2.000000e+00}>>, %[[Q:[^:]+]]: tensor<7x!quant.uniform<i8:f32:{0:4}, {1.000000e+00, 2.000000e+00}>>) -> (tensor<7xf32>, tensor<7xf32>) {
// CHECK-NEXT: %[[SCAST:.+]] = "subquant.scast"(%[[P]]) : (tensor<7x!quant.uniform<i8:f32:{0:4}, {1.000000e+00, 2.000000e+00}>>) -> tensor<7xi8>
// CHECK-NEXT: %[[C:.+]] = arith.constant dense<[1.000000e+00, 2.000000e+00]> : tensor<2xf32>
// CHECK: %[[GENERIC:.+]] = linalg.generic {indexing_maps = [#[[MAP]], #[[MAP]]], iterator_types = ["parallel"]} ins(%[[SCAST]] : tensor<7xi8>) outs(%{{.+}} : tensor<7xf32>) {
// CHECK: %[[EXTRACT:.+]] = tensor.extract %[[C]][%{{.+}}] : tensor<2xf32>
// CHECK: %[[SCAST2:.+]] = "subquant.scast"(%[[Q]]) : (tensor<7x!quant.uniform<i8:f32:{0:4}, {1.000000e+00, 2.000000e+00}>>) -> tensor<7xi8>
// CHECK-NEXT: %[[C2:.+]] = arith.constant dense<[1.000000e+00, 2.000000e+00]> : tensor<2xf32>
// CHECK: %[[GENERIC2:.+]] = linalg.generic {indexing_maps = [#[[MAP]], #[[MAP]]], iterator_types = ["parallel"]} ins(%[[SCAST2]] : tensor<7xi8>) outs(%{{.+}} : tensor<7xf32>) {
// CHECK: %[[EXTRACT2:.+]] = tensor.extract %[[C2]][%{{.+}}] : tensor<2xf32>
// CHECK: return %[[GENERIC]], %[[GENERIC2]] : tensor<7xf32>, tensor<7xf32>
!q = !quant.uniform<i8:f32:{0:4}, {1.0, 2.0}>
func.func @ragged_twice(%p: tensor<7x!q>, %q: tensor<7x!q>) -> (tensor<7xf32>, tensor<7xf32>) {
  %x = "subquant.dcast"(%p) : (tensor<7x!q>) -> tensor<7xf32>
  %y = "subquant.dcast"(%q) : (tensor<7x!q>) -> tensor<7xf32>
  return %x, %y : tensor<7xf32>, tensor<7xf32>
}
