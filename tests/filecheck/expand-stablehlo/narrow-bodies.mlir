// RUN: subquant opt %s --passes "expand-stablehlo{widen-bodies=true}" | filecheck %s

// CHECK-LABEL: func.func @sorted
// CHECK: %[[W:.*]] = stablehlo.convert %arg0 : (tensor<6xui8>) -> tensor<6xi32>
// CHECK: %[[S:.*]]:2 = "stablehlo.sort"(%[[W]], %arg1)
// CHECK: stablehlo.compare LT, %{{.*}}, %{{.*}}, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
// CHECK: %[[N:.*]] = stablehlo.convert %[[S]]#0 : (tensor<6xi32>) -> tensor<6xui8>
// CHECK: %[[K:.*]]:2 = stablehlo.optimization_barrier %[[N]], %[[S]]#1
// CHECK: return %[[K]]#1
func.func @sorted(%x: tensor<6xui8>, %y: tensor<6xf32>) -> tensor<6xf32> {
  %r:2 = "stablehlo.sort"(%x, %y) ({
  ^bb0(%a: tensor<ui8>, %b: tensor<ui8>, %c: tensor<f32>, %d: tensor<f32>):
    %p = stablehlo.compare LT, %a, %b, UNSIGNED : (tensor<ui8>, tensor<ui8>) -> tensor<i1>
    stablehlo.return %p : tensor<i1>
  }) {dimension = 0 : i64} : (tensor<6xui8>, tensor<6xf32>) -> (tensor<6xui8>, tensor<6xf32>)
  return %r#1 : tensor<6xf32>
}

// The sum is wrapped to eight bits.
// CHECK-LABEL: func.func @added
// CHECK: "stablehlo.scatter"(%{{.*}}, %{{.*}}, %{{.*}})
// CHECK: %[[SUM:.*]] = stablehlo.add %{{.*}}, %{{.*}} : tensor<i32>
// CHECK: stablehlo.and %[[SUM]], %{{.*}} : tensor<i32>
// CHECK: stablehlo.xor
// CHECK: stablehlo.subtract
// CHECK: stablehlo.convert %{{.*}} : (tensor<{{.*}}xi32>) -> tensor<{{.*}}xi8>
func.func @added(%x: tensor<6xi8>, %i: tensor<3x1xi32>, %u: tensor<3xi8>) -> tensor<6xi8> {
  %r = "stablehlo.scatter"(%x, %i, %u) ({
  ^bb0(%a: tensor<i8>, %b: tensor<i8>):
    %s = stablehlo.add %a, %b : tensor<i8>
    stablehlo.return %s : tensor<i8>
  }) {scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>} : (tensor<6xi8>, tensor<3x1xi32>, tensor<3xi8>) -> tensor<6xi8>
  return %r : tensor<6xi8>
}
