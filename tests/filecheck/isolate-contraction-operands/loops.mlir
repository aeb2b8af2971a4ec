// RUN: subquant opt %s --passes isolate-contraction-operands | filecheck %s

#id = affine_map<(d0) -> (d0)>

// What a loop reads at its own position is an input of it; what it reads elsewhere is isolated.
// CHECK-LABEL: func.func @table(
// CHECK: %[[INDEX:.+]] = linalg.generic
// CHECK: %[[TABLE:.+]] = arith.extsi %arg1
// CHECK: %[[ALONE:.+]] = "iree_tensor_ext.compute_barrier.start"(%[[TABLE]])
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

// Columns of what is used elsewhere are summed behind a barrier, and so is what all threads read.
// CHECK-LABEL: func.func @columns(
// CHECK: %[[SQUARE:.+]] = stablehlo.multiply %arg0, %arg0
// CHECK: %[[ALONE:.+]] = "iree_tensor_ext.compute_barrier.start"(%[[SQUARE]])
// CHECK: %[[SUM:.+]] = stablehlo.reduce(%[[ALONE]] init
// CHECK: %[[SUMS:.+]] = "iree_tensor_ext.compute_barrier.start"(%[[SUM]]) : (tensor<2xf32>)
// CHECK: stablehlo.broadcast_in_dim %[[SUMS]], dims = [1]
func.func @columns(%x: tensor<8x2xf32>) -> tensor<8x2xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %y = stablehlo.multiply %x, %x : tensor<8x2xf32>
  %s = stablehlo.reduce(%y init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<8x2xf32>, tensor<f32>) -> tensor<2xf32>
  %b = stablehlo.broadcast_in_dim %s, dims = [1] : (tensor<2xf32>) -> tensor<8x2xf32>
  %r = stablehlo.subtract %y, %b : tensor<8x2xf32>
  return %r : tensor<8x2xf32>
}

// A thread that adds up its own row reads nothing of another.
// CHECK-LABEL: func.func @rows(
// CHECK-NOT: _barrier
// CHECK: return
func.func @rows(%x: tensor<8x2xf32>) -> tensor<8x2xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %y = stablehlo.multiply %x, %x : tensor<8x2xf32>
  %s = stablehlo.reduce(%y init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<8x2xf32>, tensor<f32>) -> tensor<8xf32>
  %b = stablehlo.broadcast_in_dim %s, dims = [0] : (tensor<8xf32>) -> tensor<8x2xf32>
  %r = stablehlo.subtract %y, %b : tensor<8x2xf32>
  return %r : tensor<8x2xf32>
}

// IREE is told the extents of a dynamic tensor behind a barrier.
// CHECK-LABEL: func.func @dynamic(
// CHECK: %[[SQUARE:.+]] = stablehlo.multiply %arg0, %arg0
// CHECK: %[[BARRIER:.+]] = "util.optimization_barrier"(%[[SQUARE]])
// CHECK: %[[N:.+]] = tensor.dim %[[SQUARE]], %{{.+}} : tensor<?x2xf32>
// CHECK: %[[ALONE:.+]] = "flow.tensor.tie_shape"(%[[BARRIER]], %[[N]])
// CHECK: stablehlo.reduce(%[[ALONE]] init
func.func @dynamic(%x: tensor<?x2xf32>) -> (tensor<?x2xf32>, tensor<2xf32>) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %y = stablehlo.multiply %x, %x : tensor<?x2xf32>
  %s = stablehlo.reduce(%y init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<?x2xf32>, tensor<f32>) -> tensor<2xf32>
  return %y, %s : tensor<?x2xf32>, tensor<2xf32>
}
