// RUN: subquant opt %s --passes "lower-quant-casts" --split-input-file | filecheck %s

// Outside a loop a scalar goes through a tensor without axes.
// CHECK: #[[MAP:.+]] = affine_map<() -> ()>
// CHECK-LABEL: func.func @scalar(
// CHECK-SAME: %[[X:[^:]+]]: f32) -> f32 {
// CHECK-NEXT: %[[ELEMENTS:.+]] = tensor.from_elements %[[X]] : tensor<f32>
// CHECK: %[[GENERIC:.+]] = linalg.generic {indexing_maps = [#[[MAP]], #[[MAP]]], iterator_types = []} ins(%[[ELEMENTS]] : tensor<f32>) outs(%{{.+}} : tensor<i8>) {
// CHECK: %[[DIVF:.+]] = arith.divf %{{.+}}, %{{.+}} : f32
// CHECK: linalg.yield %{{.+}} : i8
// CHECK: %[[EXTRACT:.+]] = tensor.extract %[[GENERIC]][] : tensor<i8>
// CHECK-NEXT: %[[SCAST:.+]] = quant.scast %[[EXTRACT]] : i8 to !quant.uniform<i8:f32, 2.000000e+00>
// CHECK-NEXT: %[[SCAST2:.+]] = quant.scast %[[SCAST]] : !quant.uniform<i8:f32, 2.000000e+00> to i8
// CHECK-NEXT: %[[ELEMENTS2:.+]] = tensor.from_elements %[[SCAST2]] : tensor<i8>
// CHECK: %[[GENERIC2:.+]] = linalg.generic {indexing_maps = [#[[MAP]], #[[MAP]]], iterator_types = []} ins(%[[ELEMENTS2]] : tensor<i8>) outs(%{{.+}} : tensor<f32>) {
// CHECK: %[[MULF:.+]] = arith.mulf %{{.+}}, %{{.+}} : f32
// CHECK-NEXT: linalg.yield %[[MULF]] : f32
// CHECK: %[[EXTRACT2:.+]] = tensor.extract %[[GENERIC2]][] : tensor<f32>
// CHECK-NEXT: return %[[EXTRACT2]] : f32
!q = !quant.uniform<i8:f32, 2.0>
func.func @scalar(%x: f32) -> f32 {
  %q = quant.qcast %x : f32 to !q
  %y = quant.dcast %q : !q to f32
  return %y : f32
}

// -----

// In a loop body it is lowered in place.
// CHECK: #[[MAP:.+]] = affine_map<(d0) -> (d0)>
// CHECK-LABEL: func.func @scalar_in_a_loop(
// CHECK-SAME: %[[X:[^:]+]]: tensor<4x!quant.uniform<i8:f32, 2.000000e+00>>, %[[O:[^:]+]]: tensor<4xf32>) -> tensor<4xf32> {
// CHECK-NEXT: %[[SCAST:.+]] = quant.scast %[[X]] : tensor<4x!quant.uniform<i8:f32, 2.000000e+00>> to tensor<4xi8>
// CHECK-NEXT: %[[GENERIC:.+]] = linalg.generic {indexing_maps = [#[[MAP]], #[[MAP]]], iterator_types = ["parallel"]} ins(%[[SCAST]] : tensor<4xi8>) outs(%[[O]] : tensor<4xf32>) {
// CHECK-NEXT: ^bb0(%[[IN:[^:]+]]: i8, %[[OUT:[^:]+]]: f32):
// CHECK-NEXT: %[[SCAST2:.+]] = quant.scast %[[IN]] : i8 to !quant.uniform<i8:f32, 2.000000e+00>
// CHECK-NEXT: %[[SCAST3:.+]] = quant.scast %[[SCAST2]] : !quant.uniform<i8:f32, 2.000000e+00> to i8
// CHECK-NEXT: %[[EXTSI:.+]] = arith.extsi %[[SCAST3]] : i8 to i32
// CHECK-NEXT: %[[SITOFP:.+]] = arith.sitofp %[[EXTSI]] : i32 to f32
// CHECK-NEXT: %[[C:.+]] = arith.constant 2.000000e+00 : f32
// CHECK-NEXT: %[[MULF:.+]] = arith.mulf %[[SITOFP]], %[[C]] : f32
// CHECK-NEXT: linalg.yield %[[MULF]] : f32
// CHECK-NEXT: } -> tensor<4xf32>
// CHECK-NEXT: return %[[GENERIC]] : tensor<4xf32>
!q = !quant.uniform<i8:f32, 2.0>
#map = affine_map<(i) -> (i)>
func.func @scalar_in_a_loop(%x: tensor<4x!q>, %o: tensor<4xf32>) -> tensor<4xf32> {
  %s = quant.scast %x : tensor<4x!q> to tensor<4xi8>
  %r = linalg.generic {indexing_maps = [#map, #map], iterator_types = ["parallel"]} ins(%s : tensor<4xi8>) outs(%o : tensor<4xf32>) {
  ^bb0(%a: i8, %b: f32):
    %q = quant.scast %a : i8 to !q
    %y = quant.dcast %q : !q to f32
    linalg.yield %y : f32
  } -> tensor<4xf32>
  return %r : tensor<4xf32>
}
