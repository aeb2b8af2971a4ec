// RUN: subquant opt %s --passes "select-kernels{instructions=avx2 joined-products=0 explain=true}" 2>&1 | filecheck %s

// Rows of a table that a kernel multiplies with are read in its tiles, four integers at a time.
// CHECK: remark: 'subquant.dequantize' op is gathered from the packed weight of a contraction by a kernel
// CHECK-NOT: remark: 'subquant.dequantize'
// CHECK: func.func @gather_rows(
// CHECK: vector.load {{.*}} vector<4xi8>
// CHECK-LABEL: func.func @rows(
// CHECK-SAME: %[[I:.*]]: tensor<3xi32>
// CHECK-NOT: stablehlo.gather
// CHECK: %[[X:.*]] = "flow.dispatch"(%{{.*}}, %{{.*}}, %[[I]]) {entry_points = [@gather_rows::@gather_rows]
// CHECK-SAME: (tensor<{{.*}}xi8>, tensor<{{.*}}x4x{{.*}}xf16>, tensor<3xi32>) -> tensor<3x128xf32>
// CHECK: return %[[X]]
"util.global"() {sym_name = "q", sym_visibility = "private", type = tensor<512x128xi8>,
    initial_value = #flow.parameter.named<"model"::"q"> : tensor<512x128xi8>} : () -> ()
"util.global"() {sym_name = "s", sym_visibility = "private", type = tensor<512x4x1xf16>,
    initial_value = #flow.parameter.named<"model"::"s"> : tensor<512x4x1xf16>} : () -> ()
"util.global"() {sym_name = "t", sym_visibility = "private", type = tensor<512x4x1xf16>,
    initial_value = #flow.parameter.named<"model"::"t"> : tensor<512x4x1xf16>} : () -> ()

func.func @rows(%ids: tensor<3xi32>) -> tensor<3x128xf32> {
  %q = "util.global.load"() {global = @q} : () -> tensor<512x128xi8>
  %s = "util.global.load"() {global = @s} : () -> tensor<512x4x1xf16>
  %1 = "stablehlo.gather"(%q, %ids) {dimension_numbers = #stablehlo.gather<offset_dims = [1],
      collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>,
      slice_sizes = array<i64: 1, 128>} : (tensor<512x128xi8>, tensor<3xi32>) -> tensor<3x128xi8>
  %2 = "stablehlo.gather"(%s, %ids) {dimension_numbers = #stablehlo.gather<offset_dims = [1, 2],
      collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>,
      slice_sizes = array<i64: 1, 4, 1>}
      : (tensor<512x4x1xf16>, tensor<3xi32>) -> tensor<3x4x1xf16>
  %3 = stablehlo.reshape %2 : (tensor<3x4x1xf16>) -> tensor<3x4xf16>
  %x = "subquant.dequantize"(%1, %3) {block_sizes = array<i64: 1, 32>,
      operandSegmentSizes = array<i32: 1, 1, 0, 0>, quantized_type = !quant.any<i8:f32>}
      : (tensor<3x128xi8>, tensor<3x4xf16>) -> tensor<3x128xf32>
  return %x : tensor<3x128xf32>
}

// Other scales are another table.
// CHECK-LABEL: func.func @other_scales(
// CHECK-COUNT-2: stablehlo.gather
// CHECK: subquant.dequantize
func.func @other_scales(%ids: tensor<3xi32>) -> tensor<3x128xf32> {
  %q = "util.global.load"() {global = @q} : () -> tensor<512x128xi8>
  %s = "util.global.load"() {global = @t} : () -> tensor<512x4x1xf16>
  %1 = "stablehlo.gather"(%q, %ids) {dimension_numbers = #stablehlo.gather<offset_dims = [1],
      collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>,
      slice_sizes = array<i64: 1, 128>} : (tensor<512x128xi8>, tensor<3xi32>) -> tensor<3x128xi8>
  %2 = "stablehlo.gather"(%s, %ids) {dimension_numbers = #stablehlo.gather<offset_dims = [1, 2],
      collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>,
      slice_sizes = array<i64: 1, 4, 1>}
      : (tensor<512x4x1xf16>, tensor<3xi32>) -> tensor<3x4x1xf16>
  %3 = stablehlo.reshape %2 : (tensor<3x4x1xf16>) -> tensor<3x4xf16>
  %x = "subquant.dequantize"(%1, %3) {block_sizes = array<i64: 1, 32>,
      operandSegmentSizes = array<i32: 1, 1, 0, 0>, quantized_type = !quant.any<i8:f32>}
      : (tensor<3x128xi8>, tensor<3x4xf16>) -> tensor<3x128xf32>
  return %x : tensor<3x128xf32>
}

// So are integers and scales of different rows.
// CHECK-LABEL: func.func @other_rows(
// CHECK-COUNT-2: stablehlo.gather
// CHECK: subquant.dequantize
func.func @other_rows(%ids: tensor<3xi32>, %others: tensor<3xi32>) -> tensor<3x128xf32> {
  %q = "util.global.load"() {global = @q} : () -> tensor<512x128xi8>
  %s = "util.global.load"() {global = @s} : () -> tensor<512x4x1xf16>
  %1 = "stablehlo.gather"(%q, %ids) {dimension_numbers = #stablehlo.gather<offset_dims = [1],
      collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>,
      slice_sizes = array<i64: 1, 128>} : (tensor<512x128xi8>, tensor<3xi32>) -> tensor<3x128xi8>
  %2 = "stablehlo.gather"(%s, %others) {dimension_numbers = #stablehlo.gather<offset_dims = [1, 2],
      collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>,
      slice_sizes = array<i64: 1, 4, 1>}
      : (tensor<512x4x1xf16>, tensor<3xi32>) -> tensor<3x4x1xf16>
  %3 = stablehlo.reshape %2 : (tensor<3x4x1xf16>) -> tensor<3x4xf16>
  %x = "subquant.dequantize"(%1, %3) {block_sizes = array<i64: 1, 32>,
      operandSegmentSizes = array<i32: 1, 1, 0, 0>, quantized_type = !quant.any<i8:f32>}
      : (tensor<3x128xi8>, tensor<3x4xf16>) -> tensor<3x128xf32>
  return %x : tensor<3x128xf32>
}

func.func @product(%x: tensor<1x128xf32>) -> tensor<1x512xf32> {
  %q = "util.global.load"() {global = @q} : () -> tensor<512x128xi8>
  %s = "util.global.load"() {global = @s} : () -> tensor<512x4x1xf16>
  %r = stablehlo.reshape %s : (tensor<512x4x1xf16>) -> tensor<512x4xf16>
  %y = "subquant.block_contraction"(%x, %q, %r) {
      activation_type = "int8", block_sizes = array<i64: 1, 32>,
      indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>,
                       affine_map<(m, n, k) -> (m, n)>],
      operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0>, quantized_type = !quant.any<i8:f32>}
      : (tensor<1x128xf32>, tensor<512x128xi8>, tensor<512x4xf16>) -> tensor<1x512xf32>
  return %y : tensor<1x512xf32>
}
