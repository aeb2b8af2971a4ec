// RUN: subquant opt %s --passes isolate-contraction-operands | filecheck %s

#id = affine_map<(d0) -> (d0)>

// What a loop reads at its own position is an input of it; what it reads elsewhere is isolated.
// CHECK-LABEL: func.func @table(
// CHECK: %[[INDEX:.+]] = linalg.generic
// CHECK: %[[TABLE:.+]] = arith.extsi %arg1
// CHECK: %[[ALONE:.+]] = "util.optimization_barrier"(%[[TABLE]])
// CHECK: linalg.generic {{.+}} ins(%[[INDEX]] : tensor<?xi32>) outs(%{{.+}} : tensor<?xi16>) {
// CHECK: ^bb0(%[[AT:[^:]+]]: i32, %{{.+}}: i16):
// CHECK: %[[PLACE:.+]] = arith.index_cast %[[AT]]
// CHECK: tensor.extract %[[ALONE]][%[[PLACE]]]
func.func @table(%x: tensor<?xi8>, %t: tensor<256xi8>, %n: index) -> tensor<?xi16> {
  %e = tensor.empty(%n) : tensor<?xi32>
  %i = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel"]} ins(%x : tensor<?xi8>) outs(%e : tensor<?xi32>) {
  ^bb0(%a: i8, %out: i32):
    %0 = arith.extui %a : i8 to i32
    linalg.yield %0 : i32
  } -> tensor<?xi32>
  %wide = arith.extsi %t : tensor<256xi8> to tensor<256xi16>
  %o = tensor.empty(%n) : tensor<?xi16>
  %r = linalg.generic {indexing_maps = [#id], iterator_types = ["parallel"]} outs(%o : tensor<?xi16>) {
  ^bb0(%out: i16):
    %p = linalg.index 0 : index
    %v = tensor.extract %i[%p] : tensor<?xi32>
    %at = arith.index_cast %v : i32 to index
    %y = tensor.extract %wide[%at] : tensor<256xi16>
    linalg.yield %y : i16
  } -> tensor<?xi16>
  return %r : tensor<?xi16>
}

// A tensor that may be longer than the loop stays where it is.
// CHECK-LABEL: func.func @longer(
// CHECK: util.optimization_barrier
// CHECK: linalg.generic {{.+}} outs(
// CHECK: tensor.extract
func.func @longer(%x: tensor<?xi8>, %n: index, %m: index) -> tensor<?xi32> {
  %e = tensor.empty(%n) : tensor<?xi32>
  %i = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel"]} ins(%x : tensor<?xi8>) outs(%e : tensor<?xi32>) {
  ^bb0(%a: i8, %out: i32):
    %0 = arith.extui %a : i8 to i32
    linalg.yield %0 : i32
  } -> tensor<?xi32>
  %o = tensor.empty(%m) : tensor<?xi32>
  %r = linalg.generic {indexing_maps = [#id], iterator_types = ["parallel"]} outs(%o : tensor<?xi32>) {
  ^bb0(%out: i32):
    %p = linalg.index 0 : index
    %v = tensor.extract %i[%p] : tensor<?xi32>
    linalg.yield %v : i32
  } -> tensor<?xi32>
  return %r : tensor<?xi32>
}
