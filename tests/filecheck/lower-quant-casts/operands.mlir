// RUN: subquant opt %s --passes "lower-quant-casts" --split-input-file | filecheck %s

// f16 scales and i4 zero points are widened in the body.
// CHECK: #[[MAP:.+]] = affine_map<(d0, d1, d2) -> (d0, d1, d2)>
// CHECK: #[[MAP1:.+]] = affine_map<(d0, d1, d2) -> (d0, d1)>
// CHECK-LABEL: func.func @narrow(
// CHECK-SAME: %[[Q:[^:]+]]: tensor<4x8xi8>, %[[S:[^:]+]]: tensor<4x2xf16>, %[[Z:[^:]+]]: tensor<4x2xi4>) -> tensor<4x8xf32> {
// CHECK-NEXT: %[[EXPANDED:.+]] = tensor.expand_shape %[[Q]] {{\[\[}}0], [1, 2]] output_shape [4, 2, 4] : tensor<4x8xi8> into tensor<4x2x4xi8>
// CHECK-NEXT: %[[EMPTY:.+]] = tensor.empty() : tensor<4x2x4xf32>
// CHECK-NEXT: %[[GENERIC:.+]] = linalg.generic {indexing_maps = [#[[MAP]], #[[MAP1]], #[[MAP1]], #[[MAP]]], iterator_types = ["parallel", "parallel", "parallel"]} ins(%[[EXPANDED]], %[[S]], %[[Z]] : tensor<4x2x4xi8>, tensor<4x2xf16>, tensor<4x2xi4>) outs(%[[EMPTY]] : tensor<4x2x4xf32>) {
// CHECK-NEXT: ^bb0(%[[IN:[^:]+]]: i8, %[[IN2:[^:]+]]: f16, %[[IN3:[^:]+]]: i4, %[[OUT:[^:]+]]: f32):
// CHECK-NEXT: %[[EXTSI:.+]] = arith.extsi %[[IN]] : i8 to i32
// CHECK-NEXT: %[[EXTSI2:.+]] = arith.extsi %[[IN3]] : i4 to i32
// CHECK-NEXT: %[[SUBI:.+]] = arith.subi %[[EXTSI]], %[[EXTSI2]] : i32
// CHECK-NEXT: %[[SITOFP:.+]] = arith.sitofp %[[SUBI]] : i32 to f32
// CHECK-NEXT: %[[EXTF:.+]] = arith.extf %[[IN2]] : f16 to f32
// CHECK-NEXT: %[[MULF:.+]] = arith.mulf %[[SITOFP]], %[[EXTF]] : f32
// CHECK-NEXT: linalg.yield %[[MULF]] : f32
// CHECK-NEXT: } -> tensor<4x2x4xf32>
// CHECK-NEXT: %[[COLLAPSED:.+]] = tensor.collapse_shape %[[GENERIC]] {{\[\[}}0], [1, 2]] : tensor<4x2x4xf32> into tensor<4x8xf32>
// CHECK-NEXT: return %[[COLLAPSED]] : tensor<4x8xf32>
func.func @narrow(%q: tensor<4x8xi8>, %s: tensor<4x2xf16>, %z: tensor<4x2xi4>) -> tensor<4x8xf32> {
  %y = "subquant.dequantize"(%q, %s, %z) {block_sizes = array<i64: 1, 4>, operandSegmentSizes = array<i32: 1, 1, 1, 0>, quantized_type = !quant.any<i8:f32>} : (tensor<4x8xi8>, tensor<4x2xf16>, tensor<4x2xi4>) -> tensor<4x8xf32>
  return %y : tensor<4x8xf32>
}

// -----

// Unsigned storage; no zero points.
// CHECK: #[[MAP:.+]] = affine_map<(d0, d1, d2) -> (d0, d1, d2)>
// CHECK: #[[MAP1:.+]] = affine_map<(d0, d1, d2) -> (d0, d1)>
// CHECK-LABEL: func.func @quantize(
// CHECK-SAME: %[[X:[^:]+]]: tensor<4x8xf32>, %[[S:[^:]+]]: tensor<4x2xf16>) -> tensor<4x8xi4> {
// CHECK-NEXT: %[[EXPANDED:.+]] = tensor.expand_shape %[[X]] {{\[\[}}0], [1, 2]] output_shape [4, 2, 4] : tensor<4x8xf32> into tensor<4x2x4xf32>
// CHECK-NEXT: %[[EMPTY:.+]] = tensor.empty() : tensor<4x2x4xi4>
// CHECK-NEXT: %[[GENERIC:.+]] = linalg.generic {indexing_maps = [#[[MAP]], #[[MAP1]], #[[MAP]]], iterator_types = ["parallel", "parallel", "parallel"]} ins(%[[EXPANDED]], %[[S]] : tensor<4x2x4xf32>, tensor<4x2xf16>) outs(%[[EMPTY]] : tensor<4x2x4xi4>) {
// CHECK-NEXT: ^bb0(%[[IN:[^:]+]]: f32, %[[IN2:[^:]+]]: f16, %[[OUT:[^:]+]]: i4):
// CHECK-NEXT: %[[EXTF:.+]] = arith.extf %[[IN2]] : f16 to f32
// CHECK-NEXT: %[[DIVF:.+]] = arith.divf %[[IN]], %[[EXTF]] : f32
// CHECK-NEXT: %[[C:.+]] = arith.constant 0.000000e+00 : f32
// CHECK-NEXT: %[[CMPF:.+]] = arith.cmpf olt, %[[DIVF]], %[[C]] : f32
// CHECK-NEXT: %[[C2:.+]] = arith.constant 1.500000e+01 : f32
// CHECK-NEXT: %[[CMPF2:.+]] = arith.cmpf ogt, %[[DIVF]], %[[C2]] : f32
// CHECK-NEXT: %[[SELECT:.+]] = arith.select %[[CMPF]], %[[C]], %[[DIVF]] : f32
// CHECK-NEXT: %[[SELECT2:.+]] = arith.select %[[CMPF2]], %[[C2]], %[[SELECT]] : f32
// CHECK-NEXT: %[[CMPF3:.+]] = arith.cmpf uno, %[[DIVF]], %[[DIVF]] : f32
// CHECK-NEXT: %[[ROUNDEVEN:.+]] = math.roundeven %[[SELECT2]] : f32
// CHECK-NEXT: %[[SELECT3:.+]] = arith.select %[[CMPF3]], %[[C]], %[[ROUNDEVEN]] : f32
// CHECK-NEXT: %[[FPTOSI:.+]] = arith.fptosi %[[SELECT3]] : f32 to i32
// CHECK-NEXT: %[[TRUNCI:.+]] = arith.trunci %[[FPTOSI]] : i32 to i4
// CHECK-NEXT: linalg.yield %[[TRUNCI]] : i4
// CHECK-NEXT: } -> tensor<4x2x4xi4>
// CHECK-NEXT: %[[COLLAPSED:.+]] = tensor.collapse_shape %[[GENERIC]] {{\[\[}}0], [1, 2]] : tensor<4x2x4xi4> into tensor<4x8xi4>
// CHECK-NEXT: return %[[COLLAPSED]] : tensor<4x8xi4>
func.func @quantize(%x: tensor<4x8xf32>, %s: tensor<4x2xf16>) -> tensor<4x8xi4> {
  %q = "subquant.quantize"(%x, %s) {block_sizes = array<i64: 1, 4>, quantized_type = !quant.any<u4:f32>} : (tensor<4x8xf32>, tensor<4x2xf16>) -> tensor<4x8xi4>
  return %q : tensor<4x8xi4>
}

// -----

// Open extents are checked against the number of scales; the last block is shorter.
// CHECK: #[[MAP:.+]] = affine_map<(d0, d1) -> (d0, d1)>
// CHECK-LABEL: func.func @ragged(
// CHECK-SAME: %[[X:[^:]+]]: tensor<?x7xf32>, %[[S:[^:]+]]: tensor<?x2xf32>) -> tensor<?x7xi4> {
// CHECK-NEXT: %[[C:.+]] = arith.constant 0 : index
// CHECK-NEXT: %[[DIM:.+]] = tensor.dim %[[X]], %[[C]] : tensor<?x7xf32>
// CHECK-NEXT: %[[C2:.+]] = arith.constant 1 : index
// CHECK-NEXT: %[[CEILDIVSI:.+]] = arith.ceildivsi %[[DIM]], %[[C2]] : index
// CHECK-NEXT: %[[C3:.+]] = arith.constant 0 : index
// CHECK-NEXT: %[[DIM2:.+]] = tensor.dim %[[S]], %[[C3]] : tensor<?x2xf32>
// CHECK-NEXT: %[[CMPI:.+]] = arith.cmpi eq, %[[DIM2]], %[[CEILDIVSI]] : index
// CHECK-NEXT: cf.assert %[[CMPI]], "'subquant.quantize' op at {{[^ ]+}}: scales must have one entry for each block of 1 along dimension 0 at run time"
// CHECK-NEXT: %[[C4:.+]] = arith.constant 0 : index
// CHECK-NEXT: %[[DIM3:.+]] = tensor.dim %[[X]], %[[C4]] : tensor<?x7xf32>
// CHECK-NEXT: %[[EMPTY:.+]] = tensor.empty(%[[DIM3]]) : tensor<?x7xi4>
// CHECK-NEXT: %[[GENERIC:.+]] = linalg.generic {indexing_maps = [#[[MAP]], #[[MAP]]], iterator_types = ["parallel", "parallel"]} ins(%[[X]] : tensor<?x7xf32>) outs(%[[EMPTY]] : tensor<?x7xi4>) {
// CHECK-NEXT: ^bb0(%[[IN:[^:]+]]: f32, %[[OUT:[^:]+]]: i4):
// CHECK-NEXT: %[[INDEX:.+]] = linalg.index 0 : index
// CHECK-NEXT: %[[INDEX2:.+]] = linalg.index 1 : index
// CHECK-NEXT: %[[C5:.+]] = arith.constant 4 : index
// CHECK-NEXT: %[[DIVUI:.+]] = arith.divui %[[INDEX2]], %[[C5]] : index
// CHECK-NEXT: %[[EXTRACT:.+]] = tensor.extract %[[S]][%[[INDEX]], %[[DIVUI]]] : tensor<?x2xf32>
// CHECK-NEXT: %[[DIVF:.+]] = arith.divf %[[IN]], %[[EXTRACT]] : f32
// CHECK-NEXT: %[[C6:.+]] = arith.constant -7.000000e+00 : f32
// CHECK-NEXT: %[[CMPF:.+]] = arith.cmpf olt, %[[DIVF]], %[[C6]] : f32
// CHECK-NEXT: %[[C7:.+]] = arith.constant 7.000000e+00 : f32
// CHECK-NEXT: %[[CMPF2:.+]] = arith.cmpf ogt, %[[DIVF]], %[[C7]] : f32
// CHECK-NEXT: %[[SELECT:.+]] = arith.select %[[CMPF]], %[[C6]], %[[DIVF]] : f32
// CHECK-NEXT: %[[SELECT2:.+]] = arith.select %[[CMPF2]], %[[C7]], %[[SELECT]] : f32
// CHECK-NEXT: %[[CMPF3:.+]] = arith.cmpf uno, %[[DIVF]], %[[DIVF]] : f32
// CHECK-NEXT: %[[ROUNDEVEN:.+]] = math.roundeven %[[SELECT2]] : f32
// CHECK-NEXT: %[[C8:.+]] = arith.constant 0.000000e+00 : f32
// CHECK-NEXT: %[[SELECT3:.+]] = arith.select %[[CMPF3]], %[[C8]], %[[ROUNDEVEN]] : f32
// CHECK-NEXT: %[[FPTOSI:.+]] = arith.fptosi %[[SELECT3]] : f32 to i32
// CHECK-NEXT: %[[TRUNCI:.+]] = arith.trunci %[[FPTOSI]] : i32 to i4
// CHECK-NEXT: linalg.yield %[[TRUNCI]] : i4
// CHECK-NEXT: } -> tensor<?x7xi4>
// CHECK-NEXT: return %[[GENERIC]] : tensor<?x7xi4>
func.func @ragged(%x: tensor<?x7xf32>, %s: tensor<?x2xf32>) -> tensor<?x7xi4> {
  %q = "subquant.quantize"(%x, %s) {block_sizes = array<i64: 1, 4>, quantized_type = !quant.any<i4<-7:7>:f32>} : (tensor<?x7xf32>, tensor<?x2xf32>) -> tensor<?x7xi4>
  return %q : tensor<?x7xi4>
}

// -----

// The scales are dequantized themselves: one scale for each row of them.
// CHECK: #[[MAP:.+]] = affine_map<(d0, d1) -> (d0, d1)>
// CHECK: #[[MAP1:.+]] = affine_map<(d0, d1) -> (d0)>
// CHECK: #[[MAP2:.+]] = affine_map<(d0, d1, d2) -> (d0, d1, d2)>
// CHECK: #[[MAP3:.+]] = affine_map<(d0, d1, d2) -> (d0, d1)>
// CHECK-LABEL: func.func @super_blocks(
// CHECK-SAME: %[[Q:[^:]+]]: tensor<2x256xi4>, %[[S:[^:]+]]: tensor<2x8xi8>, %[[D:[^:]+]]: tensor<2x1xf16>) -> tensor<2x256xf32> {
// CHECK-NEXT: %[[COLLAPSED:.+]] = tensor.collapse_shape %[[D]] {{\[\[}}0, 1]] : tensor<2x1xf16> into tensor<2xf16>
// CHECK-NEXT: %[[EMPTY:.+]] = tensor.empty() : tensor<2x8xf32>
// CHECK-NEXT: %[[GENERIC:.+]] = linalg.generic {indexing_maps = [#[[MAP]], #[[MAP1]], #[[MAP]]], iterator_types = ["parallel", "parallel"]} ins(%[[S]], %[[COLLAPSED]] : tensor<2x8xi8>, tensor<2xf16>) outs(%[[EMPTY]] : tensor<2x8xf32>) {
// CHECK-NEXT: ^bb0(%[[IN:[^:]+]]: i8, %[[IN2:[^:]+]]: f16, %[[OUT:[^:]+]]: f32):
// CHECK-NEXT: %[[EXTUI:.+]] = arith.extui %[[IN]] : i8 to i32
// CHECK-NEXT: %[[SITOFP:.+]] = arith.sitofp %[[EXTUI]] : i32 to f32
// CHECK-NEXT: %[[EXTF:.+]] = arith.extf %[[IN2]] : f16 to f32
// CHECK-NEXT: %[[MULF:.+]] = arith.mulf %[[SITOFP]], %[[EXTF]] : f32
// CHECK-NEXT: linalg.yield %[[MULF]] : f32
// CHECK-NEXT: } -> tensor<2x8xf32>
// CHECK-NEXT: %[[EXPANDED:.+]] = tensor.expand_shape %[[Q]] {{\[\[}}0], [1, 2]] output_shape [2, 8, 32] : tensor<2x256xi4> into tensor<2x8x32xi4>
// CHECK-NEXT: %[[EMPTY2:.+]] = tensor.empty() : tensor<2x8x32xf32>
// CHECK-NEXT: %[[GENERIC2:.+]] = linalg.generic {indexing_maps = [#[[MAP2]], #[[MAP3]], #[[MAP2]]], iterator_types = ["parallel", "parallel", "parallel"]} ins(%[[EXPANDED]], %[[GENERIC]] : tensor<2x8x32xi4>, tensor<2x8xf32>) outs(%[[EMPTY2]] : tensor<2x8x32xf32>) {
// CHECK-NEXT: ^bb0(%[[IN3:[^:]+]]: i4, %[[IN4:[^:]+]]: f32, %[[OUT2:[^:]+]]: f32):
// CHECK-NEXT: %[[EXTSI:.+]] = arith.extsi %[[IN3]] : i4 to i32
// CHECK-NEXT: %[[SITOFP2:.+]] = arith.sitofp %[[EXTSI]] : i32 to f32
// CHECK-NEXT: %[[MULF2:.+]] = arith.mulf %[[SITOFP2]], %[[IN4]] : f32
// CHECK-NEXT: linalg.yield %[[MULF2]] : f32
// CHECK-NEXT: } -> tensor<2x8x32xf32>
// CHECK-NEXT: %[[COLLAPSED2:.+]] = tensor.collapse_shape %[[GENERIC2]] {{\[\[}}0], [1, 2]] : tensor<2x8x32xf32> into tensor<2x256xf32>
// CHECK-NEXT: return %[[COLLAPSED2]] : tensor<2x256xf32>
func.func @super_blocks(%q: tensor<2x256xi4>, %s: tensor<2x8xi8>, %d: tensor<2x1xf16>) -> tensor<2x256xf32> {
  %t = "subquant.dequantize"(%s, %d) {block_sizes = array<i64: 1, 8>, operandSegmentSizes = array<i32: 1, 1, 0, 0>, quantized_type = !quant.any<u8:f32>} : (tensor<2x8xi8>, tensor<2x1xf16>) -> tensor<2x8xf32>
  %y = "subquant.dequantize"(%q, %t) {block_sizes = array<i64: 1, 32>, operandSegmentSizes = array<i32: 1, 1, 0, 0>, quantized_type = !quant.any<i4:f32>} : (tensor<2x256xi4>, tensor<2x8xf32>) -> tensor<2x256xf32>
  return %y : tensor<2x256xf32>
}

// -----

// One block along the only axis: the scale is indexed by nothing.
// CHECK: #[[MAP:.+]] = affine_map<(d0) -> (d0)>
// CHECK: #[[MAP1:.+]] = affine_map<(d0) -> ()>
// CHECK-LABEL: func.func @one_block(
// CHECK-SAME: %[[Q:[^:]+]]: tensor<8xi8>, %[[S:[^:]+]]: tensor<1xf32>) -> tensor<8xf32> {
// CHECK-NEXT: %[[COLLAPSED:.+]] = tensor.collapse_shape %[[S]] [] : tensor<1xf32> into tensor<f32>
// CHECK-NEXT: %[[EMPTY:.+]] = tensor.empty() : tensor<8xf32>
// CHECK-NEXT: %[[GENERIC:.+]] = linalg.generic {indexing_maps = [#[[MAP]], #[[MAP1]], #[[MAP]]], iterator_types = ["parallel"]} ins(%[[Q]], %[[COLLAPSED]] : tensor<8xi8>, tensor<f32>) outs(%[[EMPTY]] : tensor<8xf32>) {
// CHECK-NEXT: ^bb0(%[[IN:[^:]+]]: i8, %[[IN2:[^:]+]]: f32, %[[OUT:[^:]+]]: f32):
// CHECK-NEXT: %[[EXTSI:.+]] = arith.extsi %[[IN]] : i8 to i32
// CHECK-NEXT: %[[SITOFP:.+]] = arith.sitofp %[[EXTSI]] : i32 to f32
// CHECK-NEXT: %[[MULF:.+]] = arith.mulf %[[SITOFP]], %[[IN2]] : f32
// CHECK-NEXT: linalg.yield %[[MULF]] : f32
// CHECK-NEXT: } -> tensor<8xf32>
// CHECK-NEXT: return %[[GENERIC]] : tensor<8xf32>
func.func @one_block(%q: tensor<8xi8>, %s: tensor<1xf32>) -> tensor<8xf32> {
  %y = "subquant.dequantize"(%q, %s) {block_sizes = array<i64: 8>, operandSegmentSizes = array<i32: 1, 1, 0, 0>, quantized_type = !quant.any<i8:f32>} : (tensor<8xi8>, tensor<1xf32>) -> tensor<8xf32>
  return %y : tensor<8xf32>
}

// -----

// The number of blocks is not known: the body divides.
// CHECK: #[[MAP:.+]] = affine_map<(d0) -> (d0)>
// CHECK-LABEL: func.func @one_block_open(
// CHECK-SAME: %[[Q:[^:]+]]: tensor<?xi8>, %[[S:[^:]+]]: tensor<?xf32>) -> tensor<?xf32> {
// CHECK-NEXT: %[[C:.+]] = arith.constant 0 : index
// CHECK-NEXT: %[[DIM:.+]] = tensor.dim %[[Q]], %[[C]] : tensor<?xi8>
// CHECK-NEXT: %[[C2:.+]] = arith.constant 8 : index
// CHECK-NEXT: %[[CEILDIVSI:.+]] = arith.ceildivsi %[[DIM]], %[[C2]] : index
// CHECK-NEXT: %[[C3:.+]] = arith.constant 0 : index
// CHECK-NEXT: %[[DIM2:.+]] = tensor.dim %[[S]], %[[C3]] : tensor<?xf32>
// CHECK-NEXT: %[[CMPI:.+]] = arith.cmpi eq, %[[DIM2]], %[[CEILDIVSI]] : index
// CHECK-NEXT: cf.assert %[[CMPI]], "'subquant.dequantize' op at {{[^ ]+}}: scales must have one entry for each block of 8 along dimension 0 at run time"
// CHECK-NEXT: %[[C4:.+]] = arith.constant 0 : index
// CHECK-NEXT: %[[DIM3:.+]] = tensor.dim %[[Q]], %[[C4]] : tensor<?xi8>
// CHECK-NEXT: %[[EMPTY:.+]] = tensor.empty(%[[DIM3]]) : tensor<?xf32>
// CHECK-NEXT: %[[GENERIC:.+]] = linalg.generic {indexing_maps = [#[[MAP]], #[[MAP]]], iterator_types = ["parallel"]} ins(%[[Q]] : tensor<?xi8>) outs(%[[EMPTY]] : tensor<?xf32>) {
// CHECK-NEXT: ^bb0(%[[IN:[^:]+]]: i8, %[[OUT:[^:]+]]: f32):
// CHECK-NEXT: %[[INDEX:.+]] = linalg.index 0 : index
// CHECK-NEXT: %[[C5:.+]] = arith.constant 8 : index
// CHECK-NEXT: %[[DIVUI:.+]] = arith.divui %[[INDEX]], %[[C5]] : index
// CHECK-NEXT: %[[EXTRACT:.+]] = tensor.extract %[[S]][%[[DIVUI]]] : tensor<?xf32>
// CHECK-NEXT: %[[EXTSI:.+]] = arith.extsi %[[IN]] : i8 to i32
// CHECK-NEXT: %[[SITOFP:.+]] = arith.sitofp %[[EXTSI]] : i32 to f32
// CHECK-NEXT: %[[MULF:.+]] = arith.mulf %[[SITOFP]], %[[EXTRACT]] : f32
// CHECK-NEXT: linalg.yield %[[MULF]] : f32
// CHECK-NEXT: } -> tensor<?xf32>
// CHECK-NEXT: return %[[GENERIC]] : tensor<?xf32>
func.func @one_block_open(%q: tensor<?xi8>, %s: tensor<?xf32>) -> tensor<?xf32> {
  %y = "subquant.dequantize"(%q, %s) {block_sizes = array<i64: 8>, operandSegmentSizes = array<i32: 1, 1, 0, 0>, quantized_type = !quant.any<i8:f32>} : (tensor<?xi8>, tensor<?xf32>) -> tensor<?xf32>
  return %y : tensor<?xf32>
}

// -----

// Offsets are added to the products.
// CHECK: #[[MAP:.+]] = affine_map<(d0, d1, d2) -> (d0, d1, d2)>
// CHECK: #[[MAP1:.+]] = affine_map<(d0, d1, d2) -> (d0, d1)>
// CHECK-LABEL: func.func @offsets(
// CHECK-SAME: %[[ARG0:[^: ]+]]: tensor<4x8xi8>, %[[ARG1:[^: ]+]]: tensor<4x2xf16>, %[[ARG2:[^: ]+]]: tensor<4x2xf32>) -> tensor<4x8xf32> {
// CHECK-NEXT: %[[EXPANDED:[^: ]+]] = tensor.expand_shape %[[ARG0]] {{\[\[}}0], [1, 2]] output_shape [4, 2, 4] : tensor<4x8xi8> into tensor<4x2x4xi8>
// CHECK-NEXT: %[[V0:[^: ]+]] = tensor.empty() : tensor<4x2x4xf32>
// CHECK-NEXT: %[[V1:[^: ]+]] = linalg.generic {indexing_maps = [#[[MAP]], #[[MAP1]], #[[MAP1]], #[[MAP]]], iterator_types = ["parallel", "parallel", "parallel"]} ins(%[[EXPANDED]], %[[ARG1]], %[[ARG2]] : tensor<4x2x4xi8>, tensor<4x2xf16>, tensor<4x2xf32>) outs(%[[V0]] : tensor<4x2x4xf32>) {
// CHECK-NEXT: ^bb0(%[[IN:[^: ]+]]: i8, %[[IN_0:[^: ]+]]: f16, %[[IN_1:[^: ]+]]: f32, %[[OUT:[^: ]+]]: f32):
// CHECK-NEXT: %[[V2:[^: ]+]] = arith.extui %[[IN]] : i8 to i32
// CHECK-NEXT: %[[V3:[^: ]+]] = arith.sitofp %[[V2]] : i32 to f32
// CHECK-NEXT: %[[V4:[^: ]+]] = arith.extf %[[IN_0]] : f16 to f32
// CHECK-NEXT: %[[V5:[^: ]+]] = arith.mulf %[[V3]], %[[V4]] : f32
// CHECK-NEXT: %[[V6:[^: ]+]] = arith.addf %[[V5]], %[[IN_1]] : f32
// CHECK-NEXT: linalg.yield %[[V6]] : f32
// CHECK-NEXT: } -> tensor<4x2x4xf32>
// CHECK-NEXT: %[[COLLAPSED:[^: ]+]] = tensor.collapse_shape %[[V1]] {{\[\[}}0], [1, 2]] : tensor<4x2x4xf32> into tensor<4x8xf32>
// CHECK-NEXT: return %[[COLLAPSED]] : tensor<4x8xf32>
func.func @offsets(%q: tensor<4x8xi8>, %s: tensor<4x2xf16>, %o: tensor<4x2xf32>) -> tensor<4x8xf32> {
  %y = "subquant.dequantize"(%q, %s, %o) {block_sizes = array<i64: 1, 4>, operandSegmentSizes = array<i32: 1, 1, 0, 1>, quantized_type = !quant.any<u8<0:15>:f32>} : (tensor<4x8xi8>, tensor<4x2xf16>, tensor<4x2xf32>) -> tensor<4x8xf32>
  return %y : tensor<4x8xf32>
}

// -----

// An axis of one block between two axes in blocks.
// CHECK-LABEL: func.func @whole_between(
// CHECK: tensor.collapse_shape %{{.+}} {{\[\[}}0], [1, 2]] : tensor<2x1x3xf32> into tensor<2x3xf32>
func.func @whole_between(%q: tensor<2x4x6xi8>, %s: tensor<2x1x3xf32>) -> tensor<2x4x6xf32> {
  %y = "subquant.dequantize"(%q, %s) {block_sizes = array<i64: 1, 4, 2>, operandSegmentSizes = array<i32: 1, 1, 0, 0>, quantized_type = !quant.any<i8:f32>} : (tensor<2x4x6xi8>, tensor<2x1x3xf32>) -> tensor<2x4x6xf32>
  return %y : tensor<2x4x6xf32>
}
