// RUN: subquant opt %s --passes "convert-quantized-to-storage,legalize-integer-widths,pack-narrow-storage" --split-input-file | filecheck %s

// Two elements of the last axis are a byte of the argument; results are not packed.
// CHECK: #[[MAP:.+]] = affine_map<(d0, d1) -> (d0, d1)>
// CHECK-LABEL: func.func @weight(
// CHECK-SAME: %[[ARG0:[^: ]+]]: tensor<2x32xi8>) -> tensor<2x64xi8> attributes {subquant.function_type = (tensor<2x64xi4>) -> tensor<2x64xi4>} {
// CHECK-NEXT: %[[V0:[^: ]+]] = "flow.tensor.bitcast"(%[[ARG0]]) {operandSegmentSizes = array<i32: 1, 0, 0>} : (tensor<2x32xi8>) -> tensor<2x64xi4>
// CHECK-NEXT: %[[V1:[^: ]+]] = tensor.empty() : tensor<2x64xi8>
// CHECK-NEXT: %[[V2:[^: ]+]] = linalg.generic {indexing_maps = [#[[MAP]], #[[MAP]]], iterator_types = ["parallel", "parallel"]} ins(%[[V0]] : tensor<2x64xi4>) outs(%[[V1]] : tensor<2x64xi8>) {
// CHECK-NEXT: ^bb0(%[[IN:[^: ]+]]: i4, %[[OUT:[^: ]+]]: i8):
// CHECK-NEXT: %[[V3:[^: ]+]] = arith.extsi %[[IN]] : i4 to i8
// CHECK-NEXT: linalg.yield %[[V3]] : i8
// CHECK-NEXT: } -> tensor<2x64xi8>
// CHECK-NEXT: return %[[V2]] : tensor<2x64xi8>
func.func @weight(%q: tensor<2x64xi4>) -> tensor<2x64xi4> {
  return %q : tensor<2x64xi4>
}

// -----

// CHECK: #[[MAP:.+]] = affine_map<(d0) -> (d0)>
// CHECK-LABEL: func.func @quantized(
// CHECK-SAME: %[[ARG0:[^: ]+]]: tensor<64xi8>) -> tensor<128xi8> attributes {subquant.function_type = (tensor<128x!quant.uniform<u4:f32, 5.000000e-01>>) -> tensor<128xi4>} {
// CHECK-NEXT: %[[V0:[^: ]+]] = "flow.tensor.bitcast"(%[[ARG0]]) {operandSegmentSizes = array<i32: 1, 0, 0>} : (tensor<64xi8>) -> tensor<128xi4>
// CHECK-NEXT: %[[V1:[^: ]+]] = tensor.empty() : tensor<128xi8>
// CHECK-NEXT: %[[V2:[^: ]+]] = linalg.generic {indexing_maps = [#[[MAP]], #[[MAP]]], iterator_types = ["parallel"]} ins(%[[V0]] : tensor<128xi4>) outs(%[[V1]] : tensor<128xi8>) {
// CHECK-NEXT: ^bb0(%[[IN:[^: ]+]]: i4, %[[OUT:[^: ]+]]: i8):
// CHECK-NEXT: %[[V3:[^: ]+]] = arith.extsi %[[IN]] : i4 to i8
// CHECK-NEXT: linalg.yield %[[V3]] : i8
// CHECK-NEXT: } -> tensor<128xi8>
// CHECK-NEXT: return %[[V2]] : tensor<128xi8>
func.func @quantized(%q: tensor<128x!quant.uniform<u4:f32, 0.5>>) -> tensor<128xi4> {
  %s = quant.scast %q : tensor<128x!quant.uniform<u4:f32, 0.5>> to tensor<128xi4>
  return %s : tensor<128xi4>
}
