// RUN: subquant opt %s --passes "select-kernels{instructions=amx explain=true}" 2>&1 | filecheck %s

// CHECK: remark: 'stablehlo.dot_general' op is computed by a kernel (amx)
// CHECK: remark: 'stablehlo.dot_general' op is computed by a kernel (avx512vnni)
// CHECK: func.func @amx_gemm(
// CHECK: llvm.inline_asm has_side_effects "syscall"
// CHECK: tdpbssd %tmm
func.func @many_rows(%x: tensor<64x128xi8>, %w: tensor<128x64xi8>) -> tensor<64x64xi32> {
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      : (tensor<64x128xi8>, tensor<128x64xi8>) -> tensor<64x64xi32>
  return %y : tensor<64x64xi32>
}

func.func @few_rows(%x: tensor<7x128xi8>) -> tensor<7x64xi32> {
  %w = stablehlo.constant dense<1> : tensor<128x64xi8>
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      : (tensor<7x128xi8>, tensor<128x64xi8>) -> tensor<7x64xi32>
  return %y : tensor<7x64xi32>
}
