// RUN: subquant opt %s --passes "lower-unranked-tensors" --split-input-file | filecheck %s

// The elements and the extents, whose product is checked on entry.
// CHECK-LABEL: func.func @identity(
// CHECK-SAME: %[[ARG0:[^:]+]]: tensor<?xf32>, %[[ARG1:[^:]+]]: tensor<?xi64>) -> (tensor<?xf32>, tensor<?xi64>) attributes {subquant.function_type = (tensor<*xf32>) -> tensor<*xf32>} {
// CHECK-NEXT: %[[C:.+]] = arith.constant 0 : index
// CHECK-NEXT: %[[DIM:.+]] = tensor.dim %[[ARG1]], %[[C]] : tensor<?xi64>
// CHECK-NEXT: %[[C2:.+]] = arith.constant 1 : index
// CHECK-NEXT: %[[STEP:.+]] = arith.constant 1 : index
// CHECK-NEXT: %[[FOR:.+]] = scf.for %[[ARG:.+]] = %[[C]] to %[[DIM]] step %[[STEP]] iter_args(%[[ARG2:.+]] = %[[C2]]) -> (index) {
// CHECK-NEXT: %[[EXTRACT:.+]] = tensor.extract %[[ARG1]][%[[ARG]]] : tensor<?xi64>
// CHECK-NEXT: %[[INDEX_CAST:.+]] = arith.index_cast %[[EXTRACT]] : i64 to index
// CHECK-NEXT: %[[MULI:.+]] = arith.muli %[[ARG2]], %[[INDEX_CAST]] : index
// CHECK-NEXT: scf.yield %[[MULI]] : index
// CHECK-NEXT: }
// CHECK-NEXT: %[[DIM2:.+]] = tensor.dim %[[ARG0]], %[[C]] : tensor<?xf32>
// CHECK-NEXT: %[[CMPI:.+]] = arith.cmpi eq, %[[FOR]], %[[DIM2]] : index
// CHECK-NEXT: cf.assert %[[CMPI]], "an unranked argument's extents must multiply to the number of elements"
// CHECK-NEXT: return %[[ARG0]], %[[ARG1]] : tensor<?xf32>, tensor<?xi64>
func.func @identity(%x: tensor<*xf32>) -> tensor<*xf32> {
  return %x : tensor<*xf32>
}

// -----

// A cast to a ranked tensor checks rank and static extents.
// CHECK-LABEL: func.func @to_ranked(
// CHECK-SAME: %[[ARG0:[^:]+]]: tensor<?xf32>, %[[ARG1:[^:]+]]: tensor<?xi64>) -> tensor<?x3xf32> attributes {subquant.function_type = (tensor<*xf32>) -> tensor<?x3xf32>} {
// CHECK: %[[DIM:.+]] = tensor.dim %[[ARG1]], %{{.+}} : tensor<?xi64>
// CHECK: %[[FOR:.+]] = scf.for %[[ARG:.+]] = %{{.+}} to %[[DIM]] step %{{.+}} iter_args(%[[ARG2:.+]] = %{{.+}}) -> (index) {
// CHECK-NEXT: %[[EXTRACT:.+]] = tensor.extract %[[ARG1]][%[[ARG]]] : tensor<?xi64>
// CHECK: %[[DIM2:.+]] = tensor.dim %[[ARG0]], %{{.+}} : tensor<?xf32>
// CHECK-NEXT: %[[CMPI:.+]] = arith.cmpi eq, %[[FOR]], %[[DIM2]] : index
// CHECK: %[[DIM3:.+]] = tensor.dim %[[ARG1]], %{{.+}} : tensor<?xi64>
// CHECK-NEXT: %[[C:.+]] = arith.constant 2 : index
// CHECK-NEXT: %[[CMPI2:.+]] = arith.cmpi eq, %[[DIM3]], %[[C]] : index
// CHECK-NEXT: cf.assert %[[CMPI2]], "tensor.cast: rank must be 2 at run time"
// CHECK: %[[EXTRACT2:.+]] = tensor.extract %[[ARG1]][%{{.+}}] : tensor<?xi64>
// CHECK: %[[EXTRACT3:.+]] = tensor.extract %[[ARG1]][%{{.+}}] : tensor<?xi64>
// CHECK: %[[C2:.+]] = arith.constant 3 : index
// CHECK: cf.assert %{{.+}}, "tensor.cast: dimension 1 must be 3 at run time"
// CHECK-NEXT: %[[EXPANDED:.+]] = tensor.expand_shape %[[ARG0]] {{\[\[}}0, 1]] output_shape [%{{.+}}, %{{.+}}] : tensor<?xf32> into tensor<?x?xf32>
// CHECK-NEXT: %[[CAST:.+]] = tensor.cast %[[EXPANDED]] : tensor<?x?xf32> to tensor<?x3xf32>
// CHECK-NEXT: return %[[CAST]] : tensor<?x3xf32>
func.func @to_ranked(%x: tensor<*xf32>) -> tensor<?x3xf32> {
  %r = tensor.cast %x : tensor<*xf32> to tensor<?x3xf32>
  return %r : tensor<?x3xf32>
}

// -----

// CHECK-LABEL: func.func @from_ranked(
// CHECK-SAME: %[[X:[^:]+]]: tensor<2x?xf32>) -> (tensor<?xf32>, tensor<?xi64>) attributes {subquant.function_type = (tensor<2x?xf32>) -> tensor<*xf32>} {
// CHECK-NEXT: %[[COLLAPSED:.+]] = tensor.collapse_shape %[[X]] {{\[\[}}0, 1]] : tensor<2x?xf32> into tensor<?xf32>
// CHECK-NEXT: %[[C:.+]] = arith.constant 0 : index
// CHECK-NEXT: %[[DIM:.+]] = tensor.dim %[[X]], %[[C]] : tensor<2x?xf32>
// CHECK-NEXT: %[[INDEX_CAST:.+]] = arith.index_cast %[[DIM]] : index to i64
// CHECK-NEXT: %[[C2:.+]] = arith.constant 1 : index
// CHECK-NEXT: %[[DIM2:.+]] = tensor.dim %[[X]], %[[C2]] : tensor<2x?xf32>
// CHECK-NEXT: %[[INDEX_CAST2:.+]] = arith.index_cast %[[DIM2]] : index to i64
// CHECK-NEXT: %[[ELEMENTS:.+]] = tensor.from_elements %[[INDEX_CAST]], %[[INDEX_CAST2]] : tensor<2xi64>
// CHECK-NEXT: %[[CAST:.+]] = tensor.cast %[[ELEMENTS]] : tensor<2xi64> to tensor<?xi64>
// CHECK-NEXT: return %[[COLLAPSED]], %[[CAST]] : tensor<?xf32>, tensor<?xi64>
func.func @from_ranked(%x: tensor<2x?xf32>) -> tensor<*xf32> {
  %r = tensor.cast %x : tensor<2x?xf32> to tensor<*xf32>
  return %r : tensor<*xf32>
}

// -----

// No extents for a tensor without axes; a cast between unranked tensors is nothing.
// CHECK-LABEL: func.func @scalar_shapes(
// CHECK-SAME: %[[X:[^:]+]]: tensor<f32>) -> tensor<f32> {
// CHECK-NEXT: %[[EXPANDED:.+]] = tensor.expand_shape %[[X]] [] output_shape [1] : tensor<f32> into tensor<1xf32>
// CHECK-NEXT: %[[CAST:.+]] = tensor.cast %[[EXPANDED]] : tensor<1xf32> to tensor<?xf32>
// CHECK-NEXT: %[[ELEMENTS:.+]] = tensor.from_elements  : tensor<0xi64>
// CHECK-NEXT: %[[CAST2:.+]] = tensor.cast %[[ELEMENTS]] : tensor<0xi64> to tensor<?xi64>
// CHECK-NEXT: %[[C:.+]] = arith.constant 0 : index
// CHECK-NEXT: %[[DIM:.+]] = tensor.dim %[[CAST2]], %[[C]] : tensor<?xi64>
// CHECK-NEXT: %[[C2:.+]] = arith.constant 0 : index
// CHECK-NEXT: %[[CMPI:.+]] = arith.cmpi eq, %[[DIM]], %[[C2]] : index
// CHECK-NEXT: cf.assert %[[CMPI]], "tensor.cast: rank must be 0 at run time"
// CHECK-NEXT: %[[CAST3:.+]] = tensor.cast %[[CAST]] : tensor<?xf32> to tensor<1xf32>
// CHECK-NEXT: %[[COLLAPSED:.+]] = tensor.collapse_shape %[[CAST3]] [] : tensor<1xf32> into tensor<f32>
// CHECK-NEXT: return %[[COLLAPSED]] : tensor<f32>
func.func @scalar_shapes(%x: tensor<f32>) -> tensor<f32> {
  %u = tensor.cast %x : tensor<f32> to tensor<*xf32>
  %v = tensor.cast %u : tensor<*xf32> to tensor<*xf32>
  %r = tensor.cast %v : tensor<*xf32> to tensor<f32>
  return %r : tensor<f32>
}

// -----

// The shape operations of the RFC's Case 2 become loops over the extents.
// CHECK-LABEL: func.func @case_2(
// CHECK-SAME: %[[ARG0:[^:]+]]: tensor<?xi8>, %[[ARG1:[^:]+]]: tensor<?xi64>) -> (tensor<?xi8>, tensor<?xi64>) attributes {subquant.function_type = (tensor<*xi8>) -> tensor<*xi8>} {
// CHECK: %[[FOR:.+]] = scf.for %[[ARG:.+]] = %{{.+}} to %{{.+}} step %{{.+}} iter_args(%[[ARG2:.+]] = %{{.+}}) -> (index) {
// CHECK: %[[INDEX_CAST:.+]] = arith.index_cast %{{.+}} : i64 to index
// CHECK-NEXT: %[[MULI:.+]] = arith.muli %[[ARG2]], %[[INDEX_CAST]] : index
// CHECK-NEXT: scf.yield %[[MULI]] : index
// CHECK: %[[ADDI:.+]] = arith.addi %{{.+}}, %{{.+}} : index
// CHECK-NEXT: %[[ADDI2:.+]] = arith.addi %{{.+}}, %{{.+}} : index
// CHECK: %[[FOR2:.+]] = scf.for %[[ARG3:.+]] = %{{.+}} to %{{.+}} step %{{.+}} iter_args(%[[ARG4:.+]] = %{{.+}}) -> (index) {
// CHECK: %[[INDEX_CAST2:.+]] = arith.index_cast %{{.+}} : i64 to index
// CHECK-NEXT: %[[MULI2:.+]] = arith.muli %[[ARG4]], %[[INDEX_CAST2]] : index
// CHECK-NEXT: scf.yield %[[MULI2]] : index
// CHECK: %[[ADDI3:.+]] = arith.addi %{{.+}}, %{{.+}} : index
// CHECK: %[[INDEX_CAST3:.+]] = arith.index_cast %{{.+}} : i64 to index
// CHECK-NEXT: %[[ELEMENTS:.+]] = tensor.from_elements %[[FOR2]], %[[INDEX_CAST3]] : tensor<2xindex>
// CHECK: %[[EXTRACT:.+]] = tensor.extract %[[ELEMENTS]][%{{.+}}] : tensor<2xindex>
// CHECK: %[[EXTRACT2:.+]] = tensor.extract %[[ELEMENTS]][%{{.+}}] : tensor<2xindex>
// CHECK-NEXT: %[[EXPANDED:.+]] = tensor.expand_shape %[[ARG0]] {{\[\[}}0, 1]] output_shape [%[[EXTRACT]], %[[EXTRACT2]]] : tensor<?xi8> into tensor<?x?xi8>
// CHECK-NEXT: %[[COLLAPSED:.+]] = tensor.collapse_shape %[[EXPANDED]] {{\[\[}}0, 1]] : tensor<?x?xi8> into tensor<?xi8>
// CHECK: %[[FOR3:.+]] = scf.for %[[ARG5:.+]] = %{{.+}} to %{{.+}} step %{{.+}} iter_args(%[[ARG6:.+]] = %{{.+}}) -> (index) {
// CHECK: %[[INDEX_CAST4:.+]] = arith.index_cast %{{.+}} : i64 to index
// CHECK-NEXT: %[[MULI3:.+]] = arith.muli %[[ARG6]], %[[INDEX_CAST4]] : index
// CHECK-NEXT: scf.yield %[[MULI3]] : index
// CHECK: return %[[COLLAPSED]], %[[ARG1]] : tensor<?xi8>, tensor<?xi64>
func.func @case_2(%x: tensor<*xi8>) -> tensor<*xi8> {
  %s = shape.shape_of %x : tensor<*xi8> -> tensor<?xindex>
  %c1 = arith.constant 1 : index
  %c2 = arith.constant 2 : index
  %head, %tail = "shape.split_at"(%s, %c1) : (tensor<?xindex>, index) -> (tensor<?xindex>, tensor<?xindex>)
  %n = shape.num_elements %tail : tensor<?xindex> -> index
  %e = tensor.extract %s[%c1] : tensor<?xindex>
  %d = tensor.from_elements %n, %e : tensor<2xindex>
  %r = tensor.reshape %x(%d) : (tensor<*xi8>, tensor<2xindex>) -> tensor<?x?xi8>
  %b = tensor.reshape %r(%s) : (tensor<?x?xi8>, tensor<?xindex>) -> tensor<*xi8>
  return %b : tensor<*xi8>
}

// -----

// CHECK-LABEL: func.func @rank_and_dim(
// CHECK-SAME: %[[ARG0:[^:]+]]: tensor<?xf32>, %[[ARG1:[^:]+]]: tensor<?xi64>, %[[ARG2:[^:]+]]: index) -> (index, index) attributes {subquant.function_type = (tensor<*xf32>, index) -> (index, index)} {
// CHECK: %[[DIM:.+]] = tensor.dim %[[ARG1]], %{{.+}} : tensor<?xi64>
// CHECK: %[[EXTRACT:.+]] = tensor.extract %[[ARG1]][%{{.+}}] : tensor<?xi64>
// CHECK-NEXT: %[[INDEX_CAST:.+]] = arith.index_cast %[[EXTRACT]] : i64 to index
// CHECK: %[[DIM2:.+]] = tensor.dim %[[ARG1]], %{{.+}} : tensor<?xi64>
// CHECK-NEXT: %[[EXTRACT2:.+]] = tensor.extract %[[ARG1]][%[[ARG2]]] : tensor<?xi64>
// CHECK-NEXT: %[[INDEX_CAST2:.+]] = arith.index_cast %[[EXTRACT2]] : i64 to index
// CHECK-NEXT: return %[[DIM2]], %[[INDEX_CAST2]] : index, index
func.func @rank_and_dim(%x: tensor<*xf32>, %i: index) -> (index, index) {
  %r = tensor.rank %x : tensor<*xf32>
  %d = tensor.dim %x, %i : tensor<*xf32>
  return %r, %d : index, index
}

// -----

// CHECK-LABEL: func.func @carried_in_order(
// CHECK-SAME: %[[ARG0:[^:]+]]: tensor<?xf32>, %[[ARG1:[^:]+]]: tensor<?xi64>, %[[ARG2:[^:]+]]: tensor<4xf32>, %[[ARG3:[^:]+]]: tensor<?xi8>, %[[ARG4:[^:]+]]: tensor<?xi64>) -> (tensor<4xf32>, tensor<?xi8>, tensor<?xi64>, tensor<?xf32>, tensor<?xi64>) attributes {subquant.function_type = (tensor<*xf32>, tensor<4xf32>, tensor<*xi8>) -> (tensor<4xf32>, tensor<*xi8>, tensor<*xf32>)} {
// CHECK: cf.assert %{{.+}}, "an unranked argument's extents must multiply to the number of elements"
// CHECK: cf.assert %{{.+}}, "an unranked argument's extents must multiply to the number of elements"
// CHECK-NEXT: return %[[ARG2]], %[[ARG3]], %[[ARG4]], %[[ARG0]], %[[ARG1]] : tensor<4xf32>, tensor<?xi8>, tensor<?xi64>, tensor<?xf32>, tensor<?xi64>
func.func @carried_in_order(%x: tensor<*xf32>, %y: tensor<4xf32>, %z: tensor<*xi8>) -> (tensor<4xf32>, tensor<*xi8>, tensor<*xf32>) {
  return %y, %z, %x : tensor<4xf32>, tensor<*xi8>, tensor<*xf32>
}

// -----

// A negative index splits from the end; the other half of a split is a loop over its extents.
// CHECK-LABEL: func.func @split_from_the_end(
// CHECK-SAME: %[[ARG0:[^:]+]]: tensor<?xf32>, %[[ARG1:[^:]+]]: tensor<?xi64>, %[[ARG2:[^:]+]]: index) -> (index, index) attributes {subquant.function_type = (tensor<*xf32>, index) -> (index, index)} {
// CHECK: %[[FOR:.+]] = scf.for %[[ARG:.+]] = %{{.+}} to %{{.+}} step %{{.+}} iter_args(%[[ARG3:.+]] = %{{.+}}) -> (index) {
// CHECK: scf.yield %{{.+}} : index
// CHECK: %[[ADDI:.+]] = arith.addi %{{.+}}, %[[ARG2]] : index
// CHECK-NEXT: %[[ADDI2:.+]] = arith.addi %{{.+}}, %[[ARG2]] : index
// CHECK: %[[CMPI:.+]] = arith.cmpi slt, %[[ARG2]], %{{.+}} : index
// CHECK-NEXT: %[[SELECT:.+]] = arith.select %[[CMPI]], %[[ADDI2]], %[[ADDI]] : index
// CHECK: %[[FOR2:.+]] = scf.for %[[ARG4:.+]] = %[[SELECT]] to %{{.+}} step %{{.+}} iter_args(%[[ARG5:.+]] = %{{.+}}) -> (index) {
// CHECK: scf.yield %{{.+}} : index
// CHECK: return %[[FOR2]], %{{.+}} : index, index
func.func @split_from_the_end(%x: tensor<*xf32>, %i: index) -> (index, index) {
  %s = shape.shape_of %x : tensor<*xf32> -> tensor<?xindex>
  %head, %tail = "shape.split_at"(%s, %i) : (tensor<?xindex>, index) -> (tensor<?xindex>, tensor<?xindex>)
  %n = shape.num_elements %tail : tensor<?xindex> -> index
  %zero = arith.constant 0 : index
  %r = tensor.dim %head, %zero : tensor<?xindex>
  return %n, %r : index, index
}

// -----

// Attributes of an argument or result stay with the elements.
// CHECK-LABEL: func.func @attributes(
// CHECK-SAME: %[[ARG0:[^:]+]]: tensor<?xf32> {a.b = 1 : i64}, %[[ARG1:[^:]+]]: tensor<?xi64>, %[[ARG2:[^:]+]]: i32 {c.d = 2 : i64}) -> (i32, tensor<?xf32> {e.f = 3 : i64}, tensor<?xi64>) attributes {subquant.function_type = (tensor<*xf32>, i32) -> (i32, tensor<*xf32>)} {
// CHECK: return %[[ARG2]], %[[ARG0]], %[[ARG1]] : i32, tensor<?xf32>, tensor<?xi64>
func.func @attributes(%x: tensor<*xf32> {a.b = 1 : i64}, %n: i32 {c.d = 2 : i64}) -> (i32, tensor<*xf32> {e.f = 3 : i64}) {
  return %n, %x : i32, tensor<*xf32>
}

// -----

// Extents that are computed are checked as those of an argument are.
// CHECK-LABEL: func.func @reshaped(
// CHECK-SAME: %[[X:[^:]+]]: tensor<4xf32>, %[[D:[^:]+]]: tensor<?xindex>) -> (tensor<?xf32>, tensor<?xi64>) attributes {subquant.function_type = (tensor<4xf32>, tensor<?xindex>) -> tensor<*xf32>} {
// CHECK: %[[INDEX_CAST:.+]] = arith.index_cast %[[D]] : tensor<?xindex> to tensor<?xi64>
// CHECK: %[[FOR:.+]] = scf.for %[[ARG:.+]] = %{{.+}} to %{{.+}} step %{{.+}} iter_args(%[[ARG2:.+]] = %{{.+}}) -> (index) {
// CHECK: %[[INDEX_CAST2:.+]] = arith.index_cast %{{.+}} : i64 to index
// CHECK: scf.yield %{{.+}} : index
// CHECK: %[[CMPI:.+]] = arith.cmpi eq, %[[FOR]], %{{.+}} : index
// CHECK-NEXT: cf.assert %[[CMPI]], "tensor.reshape: the extents must multiply to the number of elements"
// CHECK-NEXT: return %{{.+}}, %[[INDEX_CAST]] : tensor<?xf32>, tensor<?xi64>
func.func @reshaped(%x: tensor<4xf32>, %d: tensor<?xindex>) -> tensor<*xf32> {
  %r = tensor.reshape %x(%d) : (tensor<4xf32>, tensor<?xindex>) -> tensor<*xf32>
  return %r : tensor<*xf32>
}
