// RUN: subquant opt %s --passes expand-stablehlo | filecheck %s

// CHECK-LABEL: func.func @reverse
// CHECK: %[[AT:.*]] = stablehlo.constant dense<[3, 2, 1, 0]> : tensor<4xi32>
// CHECK: "stablehlo.gather"(%arg0, %[[AT]])
// CHECK-SAME: offset_dims = [0], collapsed_slice_dims = [1], start_index_map = [1], index_vector_dim = 1
func.func @reverse(%x: tensor<3x4xi4>) -> tensor<3x4xi4> {
  %r = stablehlo.reverse %x, dims = [1] : tensor<3x4xi4>
  return %r : tensor<3x4xi4>
}

// CHECK-LABEL: func.func @gather
// CHECK-DAG: %[[LOW:.*]] = stablehlo.constant dense<0> : tensor<i32>
// CHECK-DAG: %[[HIGH:.*]] = stablehlo.constant dense<9> : tensor<i32>
// CHECK: %[[AT:.*]] = stablehlo.clamp %[[LOW]], %arg1, %[[HIGH]]
// CHECK: "stablehlo.gather"(%arg0, %[[AT]])
func.func @gather(%x: tensor<10x4xi8>, %i: tensor<3xi32>) -> tensor<3x4xi8> {
  %r = "stablehlo.gather"(%x, %i) {dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1, 4>} : (tensor<10x4xi8>, tensor<3xi32>) -> tensor<3x4xi8>
  return %r : tensor<3x4xi8>
}

// One row more before and after, for updates that are out of bounds.
// CHECK-LABEL: func.func @scatter
// CHECK: %[[IN:.*]] = stablehlo.clamp %{{.*}}, %arg1, %{{.*}} : tensor<3x1xi32>
// CHECK: %[[AT:.*]] = stablehlo.add %[[IN]], %{{.*}} : tensor<3x1xi32>
// CHECK: %[[PADDED:.*]] = stablehlo.pad %arg0, %{{.*}}, low = [1, 0], high = [1, 0], interior = [0, 0] : (tensor<5x4xi8>, tensor<i8>) -> tensor<7x4xi8>
// CHECK: %[[OUT:.*]] = "stablehlo.scatter"(%[[PADDED]], %[[AT]], %arg2)
// CHECK: stablehlo.slice %[[OUT]] [1:6, 0:4] : (tensor<7x4xi8>) -> tensor<5x4xi8>
func.func @scatter(%x: tensor<5x4xi8>, %i: tensor<3x1xi32>, %u: tensor<3x4xi8>) -> tensor<5x4xi8> {
  %r = "stablehlo.scatter"(%x, %i, %u) ({
  ^bb0(%a: tensor<i8>, %b: tensor<i8>):
    stablehlo.return %b : tensor<i8>
  }) {scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>} : (tensor<5x4xi8>, tensor<3x1xi32>, tensor<3x4xi8>) -> tensor<5x4xi8>
  return %r : tensor<5x4xi8>
}

// CHECK-LABEL: func.func @dynamic_broadcast
// CHECK: %[[N:.*]] = tensor.dim %arg0, %{{.*}} : tensor<?x8xf32>
// CHECK: %[[E:.*]] = tensor.empty(%[[N]]) : tensor<?x8xf32>
// CHECK: linalg.generic {{.*}} outs(%[[E]] : tensor<?x8xf32>)
func.func @dynamic_broadcast(%x: tensor<?x8xf32>) -> tensor<?x8xf32> {
  %c = stablehlo.constant dense<1.0> : tensor<f32>
  %0 = stablehlo.get_dimension_size %x, dim = 0 : (tensor<?x8xf32>) -> tensor<i32>
  %1 = stablehlo.reshape %0 : (tensor<i32>) -> tensor<1xi32>
  %2 = stablehlo.constant dense<8> : tensor<1xi32>
  %3 = stablehlo.concatenate %1, %2, dim = 0 : (tensor<1xi32>, tensor<1xi32>) -> tensor<2xi32>
  %4 = stablehlo.dynamic_broadcast_in_dim %c, %3, dims = [] : (tensor<f32>, tensor<2xi32>) -> tensor<?x8xf32>
  return %4 : tensor<?x8xf32>
}

// The operand's axis has one element that is repeated, or the result's extent.
// CHECK-LABEL: func.func @dynamic_broadcast_of_dynamic
// CHECK: %[[N:.*]] = tensor.dim %arg0, %{{.*}} : tensor<?xf32>
// CHECK: %[[END:.*]] = arith.subi %[[N]], %{{.*}} : index
// CHECK: linalg.generic {{.*}} outs(%{{.*}} : tensor<?x8xf32>)
// CHECK: %[[I:.*]] = linalg.index 0 : index
// CHECK: %[[AT:.*]] = arith.minsi %[[I]], %[[END]] : index
// CHECK: tensor.extract %arg0[%[[AT]]] : tensor<?xf32>
func.func @dynamic_broadcast_of_dynamic(%x: tensor<?xf32>, %s: tensor<2xi32>) -> tensor<?x8xf32> {
  %0 = stablehlo.dynamic_broadcast_in_dim %x, %s, dims = [0] : (tensor<?xf32>, tensor<2xi32>) -> tensor<?x8xf32>
  return %0 : tensor<?x8xf32>
}

// CHECK-LABEL: func.func @dynamic_broadcast_of_known
// CHECK: linalg.generic {{.*}} ins(%arg0 : tensor<?x?xf32>) outs(%{{.*}} : tensor<?x?x8xf32>)
// CHECK-NOT: tensor.extract %arg0
func.func @dynamic_broadcast_of_known(%x: tensor<?x?xf32>, %s: tensor<3xi32>) -> tensor<?x?x8xf32> {
  %0 = "stablehlo.dynamic_broadcast_in_dim"(%x, %s) {broadcast_dimensions = array<i64: 0, 1>, known_expanding_dimensions = array<i64: 0>, known_nonexpanding_dimensions = array<i64: 1>} : (tensor<?x?xf32>, tensor<3xi32>) -> tensor<?x?x8xf32>
  return %0 : tensor<?x?x8xf32>
}

// CHECK-LABEL: func.func @logical_or
// CHECK: stablehlo.or %arg0, %arg1 : tensor<4xi1>
func.func @logical_or(%x: tensor<4xi1>, %y: tensor<4xi1>) -> tensor<4xi1> {
  %r = stablehlo.add %x, %y : tensor<4xi1>
  return %r : tensor<4xi1>
}

// What is computed from no buffer gets its own flag where it is updated; a constant does not.
// CHECK-LABEL: func.func @updates
// CHECK: %[[IOTA:.*]] = stablehlo.iota dim = 0 : tensor<9xi32>
// CHECK: %[[HIDDEN:.*]] = "util.optimization_barrier"(%{{.*}}) : (i1) -> i1
// CHECK: %[[FLAG:.*]] = linalg.fill ins(%[[HIDDEN]] : i1) outs(%{{.*}} : tensor<i1>) -> tensor<i1>
// CHECK: %[[OWN:.*]] = stablehlo.select %[[FLAG]], %[[IOTA]], %{{.*}} : tensor<i1>, tensor<9xi32>
// CHECK: stablehlo.dynamic_update_slice %[[OWN]], %arg0, %arg1
// CHECK: %[[FILLED:.*]] = stablehlo.constant dense<7>
// CHECK-NEXT: stablehlo.dynamic_update_slice %[[FILLED]], %arg0, %arg1
// CHECK-NEXT: stablehlo.dynamic_update_slice %arg2, %arg0, %arg1
func.func @updates(%x: tensor<2xi32>, %at: tensor<i32>, %whole: tensor<9xi32>) -> (tensor<9xi32>, tensor<9xi32>, tensor<9xi32>) {
  %i = stablehlo.iota dim = 0 : tensor<9xi32>
  %0 = stablehlo.dynamic_update_slice %i, %x, %at : (tensor<9xi32>, tensor<2xi32>, tensor<i32>) -> tensor<9xi32>
  %c = stablehlo.constant dense<7> : tensor<9xi32>
  %1 = stablehlo.dynamic_update_slice %c, %x, %at : (tensor<9xi32>, tensor<2xi32>, tensor<i32>) -> tensor<9xi32>
  %2 = stablehlo.dynamic_update_slice %whole, %x, %at : (tensor<9xi32>, tensor<2xi32>, tensor<i32>) -> tensor<9xi32>
  return %0, %1, %2 : tensor<9xi32>, tensor<9xi32>, tensor<9xi32>
}

// One device has the whole tensor.
// CHECK-LABEL: func.func @sharding(
// CHECK-SAME: %[[X:[^:]+]]: tensor<2xf32>
// CHECK-NEXT: %[[Y:.+]] = stablehlo.custom_call @other(%[[X]])
// CHECK-NEXT: return %[[Y]]
func.func @sharding(%x: tensor<2xf32>) -> tensor<2xf32> {
  %0 = stablehlo.custom_call @Sharding(%x) {mhlo.sharding = "{replicated}"} : (tensor<2xf32>) -> tensor<2xf32>
  %1 = stablehlo.custom_call @other(%0) : (tensor<2xf32>) -> tensor<2xf32>
  return %1 : tensor<2xf32>
}

// Of one device, the operand is the sum; nobody sends to it without a pair, and its index is 0.
// CHECK-LABEL: func.func @collectives(
// CHECK-SAME: %[[X:[^:]+]]: tensor<2xf32>
// CHECK-NEXT: %[[ZEROS:.+]] = stablehlo.constant dense<0.000000e+00> : tensor<2xf32>
// CHECK-NEXT: %[[ID:.+]] = stablehlo.constant dense<0> : tensor<ui32>
// CHECK-NEXT: return %[[X]], %[[X]], %[[X]], %[[ZEROS]], %[[ID]]
func.func @collectives(%x: tensor<2xf32>) -> (tensor<2xf32>, tensor<2xf32>, tensor<2xf32>, tensor<2xf32>, tensor<ui32>) {
  %0 = "stablehlo.all_reduce"(%x) <{replica_groups = dense<0> : tensor<1x1xi64>}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %s = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %s : tensor<f32>
  }) : (tensor<2xf32>) -> tensor<2xf32>
  %1 = "stablehlo.all_gather"(%x) <{all_gather_dim = 0 : i64, replica_groups = dense<> : tensor<0x0xi64>}> : (tensor<2xf32>) -> tensor<2xf32>
  %2 = "stablehlo.collective_permute"(%x) <{source_target_pairs = dense<0> : tensor<1x2xi64>}> : (tensor<2xf32>) -> tensor<2xf32>
  %3 = "stablehlo.collective_permute"(%x) <{source_target_pairs = dense<> : tensor<0x2xi64>}> : (tensor<2xf32>) -> tensor<2xf32>
  %4 = stablehlo.partition_id : tensor<ui32>
  return %0, %1, %2, %3, %4 : tensor<2xf32>, tensor<2xf32>, tensor<2xf32>, tensor<2xf32>, tensor<ui32>
}

// CHECK-LABEL: func.func @special
// CHECK: stablehlo.bitcast_convert %arg0
// CHECK: stablehlo.ceil %arg0 {ordinary_operands}
// CHECK: stablehlo.select
func.func @special(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.ceil %x : tensor<4xf32>
  return %0 : tensor<4xf32>
}

// One row for each place of a window along a scattered axis: the index, and the position in it.
// CHECK-LABEL: func.func @scatter_of_windows
// CHECK: %[[AT:.*]] = stablehlo.iota dim = 1 : tensor<3x2xi32>
// CHECK: %[[SUM:.*]] = stablehlo.add %{{.*}}, %[[AT]] : tensor<3x2xi32>
// CHECK: %[[ROWS:.*]] = stablehlo.reshape %[[SUM]] : (tensor<3x2xi32>) -> tensor<6x1xi32>
// CHECK: %[[UPDATES:.*]] = stablehlo.reshape %arg2 : (tensor<3x2x5xf32>) -> tensor<6x5xf32>
// CHECK: "stablehlo.scatter"(%{{.*}}, %{{.*}}, %[[UPDATES]]) <{{.*}}update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1
func.func @scatter_of_windows(%x: tensor<4x5xf32>, %i: tensor<3x1xi32>, %u: tensor<3x2x5xf32>) -> tensor<4x5xf32> {
  %r = "stablehlo.scatter"(%x, %i, %u) ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %s = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %s : tensor<f32>
  }) {scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1, 2], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>} : (tensor<4x5xf32>, tensor<3x1xi32>, tensor<3x2x5xf32>) -> tensor<4x5xf32>
  return %r : tensor<4x5xf32>
}

// CHECK-LABEL: func.func @unread_end
// CHECK: "stablehlo.reduce_window"(%arg0, %arg1) <{padding = dense<{{\[\[}}0, -1], [0, 0]]> : tensor<2x2xi64>
func.func @unread_end(%x: tensor<4x6xf32>, %i: tensor<f32>) -> tensor<1x6xf32> {
  %r = "stablehlo.reduce_window"(%x, %i) ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %s = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %s : tensor<f32>
  }) {window_dimensions = array<i64: 3, 1>, window_strides = array<i64: 2, 1>} : (tensor<4x6xf32>, tensor<f32>) -> tensor<1x6xf32>
  return %r : tensor<1x6xf32>
}

// CHECK-LABEL: func.func @dynamic_window
// CHECK-NOT: stablehlo.dynamic_conv
// CHECK: stablehlo.convolution({{.*}}) {{.*}} : (tensor<1x?x?x2xf32>, tensor<2x2x2x3xf32>) -> tensor<1x4x4x3xf32>
func.func @dynamic_window(%x: tensor<1x4x4x2xf32>, %k: tensor<2x2x2x3xf32>, %p: tensor<2x2xi64>) -> tensor<1x4x4x3xf32> {
  %r = "stablehlo.dynamic_conv"(%x, %k, %p) {dimension_numbers = #stablehlo.conv<[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]>, batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<1x4x4x2xf32>, tensor<2x2x2x3xf32>, tensor<2x2xi64>) -> tensor<1x4x4x3xf32>
  return %r : tensor<1x4x4x3xf32>
}

// CHECK-LABEL: func.func @selected
// CHECK-NOT: stablehlo.select_and_scatter
// CHECK: "stablehlo.reduce_window"
// CHECK: "stablehlo.scatter"
func.func @selected(%x: tensor<4x2xf32>, %s: tensor<2x2xf32>, %i: tensor<f32>) -> tensor<4x2xf32> {
  %r = "stablehlo.select_and_scatter"(%x, %s, %i) ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %p = stablehlo.compare GE, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %p : tensor<i1>
  }, {
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %p = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %p : tensor<f32>
  }) {window_dimensions = array<i64: 2, 1>, window_strides = array<i64: 2, 1>} : (tensor<4x2xf32>, tensor<2x2xf32>, tensor<f32>) -> tensor<4x2xf32>
  return %r : tensor<4x2xf32>
}

// CHECK-LABEL: func.func @broadcast_in_another_order
// CHECK: %[[T:.*]] = stablehlo.transpose %arg0, dims = [2, 0, 1] : (tensor<2x3x4xf32>) -> tensor<4x2x3xf32>
// CHECK: return %[[T]]
func.func @broadcast_in_another_order(%x: tensor<2x3x4xf32>) -> tensor<4x2x3xf32> {
  %r = stablehlo.broadcast_in_dim %x, dims = [1, 2, 0] : (tensor<2x3x4xf32>) -> tensor<4x2x3xf32>
  return %r : tensor<4x2x3xf32>
}

// CHECK-LABEL: func.func @indices_before_batches
// CHECK: %[[T:.*]] = stablehlo.transpose %arg1, dims = [1, 0] : (tensor<1x4xi32>) -> tensor<4x1xi32>
// CHECK: start_indices_batching_dims = [0], start_index_map = [1], index_vector_dim = 1
func.func @indices_before_batches(%x: tensor<4x2xf32>, %i: tensor<1x4xi32>) -> tensor<4xf32> {
  %r = "stablehlo.gather"(%x, %i) {slice_sizes = array<i64: 1, 1>, dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [1], operand_batching_dims = [0], start_indices_batching_dims = [1], start_index_map = [1], index_vector_dim = 0>} : (tensor<4x2xf32>, tensor<1x4xi32>) -> tensor<4xf32>
  return %r : tensor<4xf32>
}

// CHECK-LABEL: func.func @padded_between
// CHECK: %[[P:.*]] = stablehlo.pad %arg0, %arg1, low = [0], high = [0], interior = [1]
// CHECK: %[[B:.*]] = stablehlo.optimization_barrier %[[P]]
// CHECK: stablehlo.pad %[[B]], %arg1, low = [2]
func.func @padded_between(%x: tensor<4xf32>, %z: tensor<f32>) -> tensor<9xf32> {
  %0 = stablehlo.pad %x, %z, low = [0], high = [0], interior = [1] : (tensor<4xf32>, tensor<f32>) -> tensor<7xf32>
  %1 = stablehlo.pad %0, %z, low = [2], high = [0], interior = [0] : (tensor<7xf32>, tensor<f32>) -> tensor<9xf32>
  return %1 : tensor<9xf32>
}

// CHECK-LABEL: func.func @without_axes
// CHECK-NEXT: return %arg0, %arg1
func.func @without_axes(%x: tensor<f32>, %u: tensor<f32>) -> (tensor<f32>, tensor<f32>) {
  %y = "stablehlo.dynamic_slice"(%x) {slice_sizes = array<i64>} : (tensor<f32>) -> tensor<f32>
  %z = "stablehlo.dynamic_update_slice"(%x, %u) : (tensor<f32>, tensor<f32>) -> tensor<f32>
  return %y, %z : tensor<f32>, tensor<f32>
}

// CHECK-LABEL: func.func @unsigned_factors
// CHECK: %[[BITS:.*]] = stablehlo.bitcast_convert %arg0 : (tensor<2x3xui8>) -> tensor<2x3xi8>
// CHECK: %[[WIDE:.*]] = stablehlo.convert %[[BITS]] : (tensor<2x3xi8>) -> tensor<2x3xi32>
// CHECK: %[[KEPT:.*]] = stablehlo.and %[[WIDE]]
// CHECK: %[[REAL:.*]] = stablehlo.convert %[[KEPT]] : (tensor<2x3xi32>) -> tensor<2x3xf32>
// CHECK: %[[TRUE:.*]] = stablehlo.select %arg1
// CHECK: stablehlo.dot %[[REAL]], %[[TRUE]]
func.func @unsigned_factors(%x: tensor<2x3xui8>, %w: tensor<3x4xi1>) -> tensor<2x4xf32> {
  %f = stablehlo.convert %x : (tensor<2x3xui8>) -> tensor<2x3xf32>
  %g = stablehlo.convert %w : (tensor<3x4xi1>) -> tensor<3x4xf32>
  %r = stablehlo.dot %f, %g : (tensor<2x3xf32>, tensor<3x4xf32>) -> tensor<2x4xf32>
  return %r : tensor<2x4xf32>
}
