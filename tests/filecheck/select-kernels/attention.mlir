// RUN: subquant opt %s --passes "select-kernels{instructions=avx2 explain=true}" 2>&1 | filecheck %s

// CHECK: remark: 'subquant.attention' op is computed by a kernel (avx2)
// CHECK: remark: 'subquant.attention' op is computed by a kernel (avx2)
// CHECK: remark: 'subquant.attention' op has no kernel: its head dimension 6 is no multiple of 4

// Eight workgroups, or one for each head of the caches: the number of queries is an operand then.
// CHECK: "stream.return"(%c8, %c1, %c1)
// CHECK: sym_name = "attention_1"
// CHECK: "stream.return"(%c2, %c1, %c1)
// CHECK: func.func {{.+}}: !stream.binding, %{{.+}}: index)
// CHECK: sym_name = "attention"

// CHECK-LABEL: func.func @static(
// CHECK: "flow.dispatch"(%arg0, %arg1, %arg2, %arg3) {entry_points = [@attention_1::@attention_1]
// CHECK-NOT: subquant.attention
func.func @static(%q: tensor<8x4x32xf32>, %k: tensor<64x1x32xf16>, %v: tensor<64x1x32xf16>, %p: tensor<i32>) -> tensor<8x4x32xf32> {
  %0 = "subquant.attention"(%q, %k, %v, %p) {scale = 0.5 : f32, window = 5 : i64, softcap = 0.0 : f32}
    : (tensor<8x4x32xf32>, tensor<64x1x32xf16>, tensor<64x1x32xf16>, tensor<i32>) -> tensor<8x4x32xf32>
  return %0 : tensor<8x4x32xf32>
}

// CHECK-LABEL: func.func @dynamic(
// CHECK: %[[COUNT:.+]] = tensor.dim %arg0
// CHECK: "flow.dispatch"(%arg0, %arg1, %arg2, %arg3, %[[COUNT]], %[[COUNT]], %[[COUNT]]) {entry_points = [@attention::@attention]
func.func @dynamic(%q: tensor<?x4x32xf32>, %k: tensor<64x2x32xf32>, %v: tensor<64x2x32xf32>, %p: tensor<i32>) -> tensor<?x4x32xf32> {
  %0 = "subquant.attention"(%q, %k, %v, %p) {scale = 0.5 : f32, window = 0 : i64, softcap = 30.0 : f32}
    : (tensor<?x4x32xf32>, tensor<64x2x32xf32>, tensor<64x2x32xf32>, tensor<i32>) -> tensor<?x4x32xf32>
  return %0 : tensor<?x4x32xf32>
}

// CHECK-LABEL: func.func @short(
// CHECK: subquant.attention
func.func @short(%q: tensor<1x2x6xf32>, %k: tensor<64x2x6xf16>, %v: tensor<64x2x6xf16>, %p: tensor<i32>) -> tensor<1x2x6xf32> {
  %0 = "subquant.attention"(%q, %k, %v, %p) {scale = 0.5 : f32, window = 0 : i64, softcap = 0.0 : f32}
    : (tensor<1x2x6xf32>, tensor<64x2x6xf16>, tensor<64x2x6xf16>, tensor<i32>) -> tensor<1x2x6xf32>
  return %0 : tensor<1x2x6xf32>
}
