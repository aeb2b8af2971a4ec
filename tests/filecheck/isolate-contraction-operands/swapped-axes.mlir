// RUN: subquant opt %s --passes isolate-contraction-operands | filecheck %s

// An operand that ends in the innermost axis of the result, and then its outermost one.
// CHECK-DAG: #[[SWAP:.+]] = affine_map<(d0, d1, d2, d3) -> (d0, d1, d3, d2)>
// CHECK-DAG: #[[READ:.+]] = affine_map<(d0, d1, d2, d3) -> (d1, d3, d0, d2)>
// CHECK-LABEL: func.func @swapped
// CHECK: %[[T:.+]] = linalg.generic {indexing_maps = [#[[SWAP]], #{{.+}}]{{.*}} ins(%arg1 : tensor<2x8x4x4xi8>)
// CHECK: %[[APART:.+]] = "iree_tensor_ext.compute_barrier.start"(%[[T]]) : (tensor<2x8x4x4xi8>)
// CHECK: linalg.generic {indexing_maps = [#{{.+}}, #[[READ]], #{{.+}}]{{.*}} ins(%arg0, %[[APART]] :
func.func @swapped(%a: tensor<4x8xi8>, %b: tensor<2x8x4x4xi8>, %c: tensor<4x2x4xi32>) -> tensor<4x2x4xi32> {
  %r = linalg.generic {indexing_maps = [affine_map<(a, n, p, k) -> (a, k)>, affine_map<(a, n, p, k) -> (n, k, p, a)>, affine_map<(a, n, p, k) -> (a, n, p)>], iterator_types = ["parallel", "parallel", "parallel", "reduction"]} ins(%a, %b : tensor<4x8xi8>, tensor<2x8x4x4xi8>) outs(%c : tensor<4x2x4xi32>) {
  ^bb0(%x: i8, %y: i8, %sum: i32):
    %v = arith.extsi %x : i8 to i32
    %w = arith.extsi %y : i8 to i32
    %p = arith.muli %v, %w : i32
    %s = arith.addi %sum, %p : i32
    linalg.yield %s : i32
  } -> tensor<4x2x4xi32>
  return %r : tensor<4x2x4xi32>
}
