// RUN: subquant opt %s --passes "lower-quant-casts" --split-input-file | filecheck %s

// One scale: the tensor is flattened.
// CHECK: #[[MAP:.+]] = affine_map<(d0) -> (d0)>
// CHECK-LABEL: func.func @unranked_per_tensor(
// CHECK-SAME: %[[Q:[^:]+]]: tensor<*x!quant.uniform<i8:f32, 2.000000e+00:3>>) -> tensor<*xf32> {
// CHECK-NEXT: %[[SCAST:.+]] = quant.scast %[[Q]] : tensor<*x!quant.uniform<i8:f32, 2.000000e+00:3>> to tensor<*xi8>
// CHECK-NEXT: %[[SHAPE_OF:.+]] = shape.shape_of %[[SCAST]] : tensor<*xi8> -> tensor<?xindex>
// CHECK-NEXT: %[[NUM_ELEMENTS:.+]] = shape.num_elements %[[SHAPE_OF]] : tensor<?xindex> -> index
// CHECK-NEXT: %[[ELEMENTS:.+]] = tensor.from_elements %[[NUM_ELEMENTS]] : tensor<1xindex>
// CHECK-NEXT: %[[RESHAPE:.+]] = tensor.reshape %[[SCAST]](%[[ELEMENTS]]) : (tensor<*xi8>, tensor<1xindex>) -> tensor<?xi8>
// CHECK-NEXT: %[[C:.+]] = arith.constant 0 : index
// CHECK-NEXT: %[[DIM:.+]] = tensor.dim %[[RESHAPE]], %[[C]] : tensor<?xi8>
// CHECK-NEXT: %[[EMPTY:.+]] = tensor.empty(%[[DIM]]) : tensor<?xf32>
// CHECK-NEXT: %[[GENERIC:.+]] = linalg.generic {indexing_maps = [#[[MAP]], #[[MAP]]], iterator_types = ["parallel"]} ins(%[[RESHAPE]] : tensor<?xi8>) outs(%[[EMPTY]] : tensor<?xf32>) {
// CHECK-NEXT: ^bb0(%[[IN:[^:]+]]: i8, %[[OUT:[^:]+]]: f32):
// CHECK-NEXT: %[[EXTSI:.+]] = arith.extsi %[[IN]] : i8 to i32
// CHECK-NEXT: %[[C2:.+]] = arith.constant 3 : i32
// CHECK-NEXT: %[[SUBI:.+]] = arith.subi %[[EXTSI]], %[[C2]] : i32
// CHECK-NEXT: %[[SITOFP:.+]] = arith.sitofp %[[SUBI]] : i32 to f32
// CHECK-NEXT: %[[C3:.+]] = arith.constant 2.000000e+00 : f32
// CHECK-NEXT: %[[MULF:.+]] = arith.mulf %[[SITOFP]], %[[C3]] : f32
// CHECK-NEXT: linalg.yield %[[MULF]] : f32
// CHECK-NEXT: } -> tensor<?xf32>
// CHECK-NEXT: %[[RESHAPE2:.+]] = tensor.reshape %[[GENERIC]](%[[SHAPE_OF]]) : (tensor<?xf32>, tensor<?xindex>) -> tensor<*xf32>
// CHECK-NEXT: return %[[RESHAPE2]] : tensor<*xf32>
!q = !quant.uniform<i8:f32, 2.0:3>
func.func @unranked_per_tensor(%q: tensor<*x!q>) -> tensor<*xf32> {
  %x = quant.dcast %q : tensor<*x!q> to tensor<*xf32>
  return %x : tensor<*xf32>
}

// -----

// RFC, Case 2: two quantized axes, reshaped to 2 * 2 + 1 dimensions and back.
// CHECK: #[[MAP:.+]] = affine_map<(d0, d1, d2, d3, d4) -> (d0, d1, d2, d3, d4)>
// CHECK-LABEL: func.func @unranked_sub_channel(
// CHECK-SAME: %[[Q:[^:]+]]: tensor<*x!quant.uniform<i8:f32:{1:2, 3:4}, {{.*}}>>) -> tensor<*xf32> {
// CHECK: %[[SHAPE_OF:.+]] = shape.shape_of %{{.+}} : tensor<*xi8> -> tensor<?xindex>
// CHECK: cf.assert %{{.+}}, "'subquant.dcast' op at {{[^ ]+}}: rank must be at least 4 at run time, for the quantized dimension 3"
// CHECK: %[[SPLIT_AT:.+]], %[[SPLIT_AT2:.+]] = "shape.split_at"(%[[SHAPE_OF]], %{{.+}}) : (tensor<?xindex>, index) -> (tensor<?xindex>, tensor<?xindex>)
// CHECK-NEXT: %[[NUM_ELEMENTS:.+]] = shape.num_elements %[[SPLIT_AT]] : tensor<?xindex> -> index
// CHECK: %[[EXTRACT:.+]] = tensor.extract %[[SHAPE_OF]][%{{.+}}] : tensor<?xindex>
// CHECK: %[[CEILDIVSI:.+]] = arith.ceildivsi %[[EXTRACT]], %{{.+}} : index
// CHECK: cf.assert %{{.+}}, "'subquant.dcast' op at {{[^ ]+}}: dimension 1 must be 5 to 6 at run time (3 blocks of 2, the last may be shorter)"
// CHECK: %[[SPLIT_AT3:.+]], %[[SPLIT_AT4:.+]] = "shape.split_at"(%[[SHAPE_OF]], %{{.+}}) : (tensor<?xindex>, index) -> (tensor<?xindex>, tensor<?xindex>)
// CHECK: %[[SPLIT_AT5:.+]], %[[SPLIT_AT6:.+]] = "shape.split_at"(%[[SPLIT_AT3]], %{{.+}}) : (tensor<?xindex>, index) -> (tensor<?xindex>, tensor<?xindex>)
// CHECK-NEXT: %[[NUM_ELEMENTS2:.+]] = shape.num_elements %[[SPLIT_AT6]] : tensor<?xindex> -> index
// CHECK: %[[EXTRACT2:.+]] = tensor.extract %[[SHAPE_OF]][%{{.+}}] : tensor<?xindex>
// CHECK: %[[CEILDIVSI2:.+]] = arith.ceildivsi %[[EXTRACT2]], %{{.+}} : index
// CHECK: cf.assert %{{.+}}, "'subquant.dcast' op at {{[^ ]+}}: dimension 3 must be 5 to 8 at run time (2 blocks of 4, the last may be shorter)"
// CHECK: %[[SPLIT_AT7:.+]], %[[SPLIT_AT8:.+]] = "shape.split_at"(%[[SHAPE_OF]], %{{.+}}) : (tensor<?xindex>, index) -> (tensor<?xindex>, tensor<?xindex>)
// CHECK-NEXT: %[[NUM_ELEMENTS3:.+]] = shape.num_elements %[[SPLIT_AT8]] : tensor<?xindex> -> index
// CHECK-NEXT: %[[ELEMENTS:.+]] = tensor.from_elements %[[NUM_ELEMENTS]], %[[EXTRACT]], %[[NUM_ELEMENTS2]], %[[EXTRACT2]], %[[NUM_ELEMENTS3]] : tensor<5xindex>
// CHECK-NEXT: %[[RESHAPE:.+]] = tensor.reshape %{{.+}}(%[[ELEMENTS]]) : (tensor<*xi8>, tensor<5xindex>) -> tensor<?x?x?x?x?xi8>
// CHECK-NEXT: %[[C:.+]] = arith.constant dense<{{\[\[}}1.000000e+00, 2.000000e+00], [3.000000e+00, 4.000000e+00], [5.000000e+00, 6.000000e+00]]> : tensor<3x2xf32>
// CHECK: %[[DIM:.+]] = tensor.dim %[[RESHAPE]], %{{.+}} : tensor<?x?x?x?x?xi8>
// CHECK: %[[DIM2:.+]] = tensor.dim %[[RESHAPE]], %{{.+}} : tensor<?x?x?x?x?xi8>
// CHECK: %[[DIM3:.+]] = tensor.dim %[[RESHAPE]], %{{.+}} : tensor<?x?x?x?x?xi8>
// CHECK: %[[DIM4:.+]] = tensor.dim %[[RESHAPE]], %{{.+}} : tensor<?x?x?x?x?xi8>
// CHECK: %[[DIM5:.+]] = tensor.dim %[[RESHAPE]], %{{.+}} : tensor<?x?x?x?x?xi8>
// CHECK: %[[GENERIC:.+]] = linalg.generic {indexing_maps = [#[[MAP]], #[[MAP]]], iterator_types = ["parallel", "parallel", "parallel", "parallel", "parallel"]} ins(%[[RESHAPE]] : tensor<?x?x?x?x?xi8>) outs(%{{.+}} : tensor<?x?x?x?x?xf32>) {
// CHECK: %[[INDEX:.+]] = linalg.index 1 : index
// CHECK: %[[DIVUI:.+]] = arith.divui %[[INDEX]], %{{.+}} : index
// CHECK-NEXT: %[[INDEX2:.+]] = linalg.index 3 : index
// CHECK: %[[DIVUI2:.+]] = arith.divui %[[INDEX2]], %{{.+}} : index
// CHECK-NEXT: %[[EXTRACT3:.+]] = tensor.extract %[[C]][%[[DIVUI]], %[[DIVUI2]]] : tensor<3x2xf32>
// CHECK: %[[MULF:.+]] = arith.mulf %{{.+}}, %[[EXTRACT3]] : f32
// CHECK-NEXT: linalg.yield %[[MULF]] : f32
// CHECK: %[[RESHAPE2:.+]] = tensor.reshape %[[GENERIC]](%[[SHAPE_OF]]) : (tensor<?x?x?x?x?xf32>, tensor<?xindex>) -> tensor<*xf32>
// CHECK-NEXT: return %[[RESHAPE2]] : tensor<*xf32>
!q = !quant.uniform<i8:f32:{1:2, 3:4}, {{1.0, 2.0}, {3.0, 4.0}, {5.0, 6.0}}>
func.func @unranked_sub_channel(%q: tensor<*x!q>) -> tensor<*xf32> {
  %x = "subquant.dcast"(%q) : (tensor<*x!q>) -> tensor<*xf32>
  return %x : tensor<*xf32>
}

// -----

// The extent of a per-axis dimension is known: the middle dimension is static.
// CHECK: #[[MAP:.+]] = affine_map<(d0, d1, d2) -> (d0, d1, d2)>
// CHECK: #[[MAP1:.+]] = affine_map<(d0, d1, d2) -> (d1)>
// CHECK-LABEL: func.func @unranked_per_axis(
// CHECK-SAME: %[[X:[^:]+]]: tensor<*xf32>) -> tensor<*x!quant.uniform<i8:f32:1, {1.000000e+00,2.000000e+00}>> {
// CHECK-NEXT: %[[SHAPE_OF:.+]] = shape.shape_of %[[X]] : tensor<*xf32> -> tensor<?xindex>
// CHECK-NEXT: %[[C:.+]] = arith.constant 0 : index
// CHECK-NEXT: %[[DIM:.+]] = tensor.dim %[[SHAPE_OF]], %[[C]] : tensor<?xindex>
// CHECK-NEXT: %[[C2:.+]] = arith.constant 2 : index
// CHECK-NEXT: %[[CMPI:.+]] = arith.cmpi sge, %[[DIM]], %[[C2]] : index
// CHECK-NEXT: cf.assert %[[CMPI]], "'quant.qcast' op at {{[^ ]+}}: rank must be at least 2 at run time, for the quantized dimension 1"
// CHECK-NEXT: %[[C3:.+]] = arith.constant 1 : index
// CHECK-NEXT: %[[SPLIT_AT:.+]], %[[SPLIT_AT2:.+]] = "shape.split_at"(%[[SHAPE_OF]], %[[C3]]) : (tensor<?xindex>, index) -> (tensor<?xindex>, tensor<?xindex>)
// CHECK-NEXT: %[[NUM_ELEMENTS:.+]] = shape.num_elements %[[SPLIT_AT]] : tensor<?xindex> -> index
// CHECK-NEXT: %[[C4:.+]] = arith.constant 1 : index
// CHECK-NEXT: %[[EXTRACT:.+]] = tensor.extract %[[SHAPE_OF]][%[[C4]]] : tensor<?xindex>
// CHECK-NEXT: %[[C5:.+]] = arith.constant 2 : index
// CHECK-NEXT: %[[CMPI2:.+]] = arith.cmpi eq, %[[EXTRACT]], %[[C5]] : index
// CHECK-NEXT: cf.assert %[[CMPI2]], "'quant.qcast' op at {{[^ ]+}}: dimension 1 must be 2 at run time (2 blocks of 1)"
// CHECK-NEXT: %[[C6:.+]] = arith.constant 2 : index
// CHECK-NEXT: %[[SPLIT_AT3:.+]], %[[SPLIT_AT4:.+]] = "shape.split_at"(%[[SHAPE_OF]], %[[C6]]) : (tensor<?xindex>, index) -> (tensor<?xindex>, tensor<?xindex>)
// CHECK-NEXT: %[[NUM_ELEMENTS2:.+]] = shape.num_elements %[[SPLIT_AT4]] : tensor<?xindex> -> index
// CHECK-NEXT: %[[C7:.+]] = arith.constant 2 : index
// CHECK-NEXT: %[[ELEMENTS:.+]] = tensor.from_elements %[[NUM_ELEMENTS]], %[[C7]], %[[NUM_ELEMENTS2]] : tensor<3xindex>
// CHECK-NEXT: %[[RESHAPE:.+]] = tensor.reshape %[[X]](%[[ELEMENTS]]) : (tensor<*xf32>, tensor<3xindex>) -> tensor<?x2x?xf32>
// CHECK-NEXT: %[[C8:.+]] = arith.constant dense<[1.000000e+00, 2.000000e+00]> : tensor<2xf32>
// CHECK-NEXT: %[[C9:.+]] = arith.constant 0 : index
// CHECK-NEXT: %[[DIM2:.+]] = tensor.dim %[[RESHAPE]], %[[C9]] : tensor<?x2x?xf32>
// CHECK-NEXT: %[[C10:.+]] = arith.constant 2 : index
// CHECK-NEXT: %[[DIM3:.+]] = tensor.dim %[[RESHAPE]], %[[C10]] : tensor<?x2x?xf32>
// CHECK-NEXT: %[[EMPTY:.+]] = tensor.empty(%[[DIM2]], %[[DIM3]]) : tensor<?x2x?xi8>
// CHECK-NEXT: %[[GENERIC:.+]] = linalg.generic {indexing_maps = [#[[MAP]], #[[MAP1]], #[[MAP]]], iterator_types = ["parallel", "parallel", "parallel"]} ins(%[[RESHAPE]], %[[C8]] : tensor<?x2x?xf32>, tensor<2xf32>) outs(%[[EMPTY]] : tensor<?x2x?xi8>) {
// CHECK-NEXT: ^bb0(%[[IN:[^:]+]]: f32, %[[IN2:[^:]+]]: f32, %[[OUT:[^:]+]]: i8):
// CHECK-NEXT: %[[DIVF:.+]] = arith.divf %[[IN]], %[[IN2]] : f32
// CHECK-NEXT: %[[C11:.+]] = arith.constant -1.280000e+02 : f32
// CHECK-NEXT: %[[CMPF:.+]] = arith.cmpf olt, %[[DIVF]], %[[C11]] : f32
// CHECK-NEXT: %[[C12:.+]] = arith.constant 1.270000e+02 : f32
// CHECK-NEXT: %[[CMPF2:.+]] = arith.cmpf ogt, %[[DIVF]], %[[C12]] : f32
// CHECK-NEXT: %[[SELECT:.+]] = arith.select %[[CMPF]], %[[C11]], %[[DIVF]] : f32
// CHECK-NEXT: %[[SELECT2:.+]] = arith.select %[[CMPF2]], %[[C12]], %[[SELECT]] : f32
// CHECK-NEXT: %[[CMPF3:.+]] = arith.cmpf uno, %[[DIVF]], %[[DIVF]] : f32
// CHECK-NEXT: %[[ROUNDEVEN:.+]] = math.roundeven %[[SELECT2]] : f32
// CHECK-NEXT: %[[C13:.+]] = arith.constant 0.000000e+00 : f32
// CHECK-NEXT: %[[SELECT3:.+]] = arith.select %[[CMPF3]], %[[C13]], %[[ROUNDEVEN]] : f32
// CHECK-NEXT: %[[FPTOSI:.+]] = arith.fptosi %[[SELECT3]] : f32 to i32
// CHECK-NEXT: %[[TRUNCI:.+]] = arith.trunci %[[FPTOSI]] : i32 to i8
// CHECK-NEXT: linalg.yield %[[TRUNCI]] : i8
// CHECK-NEXT: } -> tensor<?x2x?xi8>
// CHECK-NEXT: %[[RESHAPE2:.+]] = tensor.reshape %[[GENERIC]](%[[SHAPE_OF]]) : (tensor<?x2x?xi8>, tensor<?xindex>) -> tensor<*xi8>
// CHECK-NEXT: %[[SCAST:.+]] = quant.scast %[[RESHAPE2]] : tensor<*xi8> to tensor<*x!quant.uniform<i8:f32:1, {1.000000e+00,2.000000e+00}>>
// CHECK-NEXT: return %[[SCAST]] : tensor<*x!quant.uniform<i8:f32:1, {1.000000e+00,2.000000e+00}>>
!q = !quant.uniform<i8:f32:1, {1.0, 2.0}>
func.func @unranked_per_axis(%x: tensor<*xf32>) -> tensor<*x!q> {
  %q = quant.qcast %x : tensor<*xf32> to tensor<*x!q>
  return %q : tensor<*x!q>
}

// -----

// Blocks of 1 are never shorter: their axis has one extent, and the other may be less than 8.
// CHECK-LABEL: func.func @unranked_blocks_of_one(
// CHECK: cf.assert %{{.+}}, "'subquant.dcast' op at {{[^ ]+}}: dimension 0 must be 2 at run time (2 blocks of 1)"
// CHECK: cf.assert %{{.+}}, "'subquant.dcast' op at {{[^ ]+}}: dimension 1 must be 5 to 8 at run time (2 blocks of 4, the last may be shorter)"
// CHECK: tensor.reshape %{{.+}} : (tensor<*xi8>, tensor<5xindex>) -> tensor<?x2x?x?x?xi8>
!q = !quant.uniform<i8:f32:{0:1, 1:4}, {{1.0, 2.0}, {3.0, 4.0}}>
func.func @unranked_blocks_of_one(%q: tensor<*x!q>) -> tensor<*xf32> {
  %x = "subquant.dcast"(%q) : (tensor<*x!q>) -> tensor<*xf32>
  return %x : tensor<*xf32>
}
