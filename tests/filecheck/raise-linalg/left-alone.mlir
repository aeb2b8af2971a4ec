// RUN: subquant opt %s --passes "raise-linalg{explain=true}" --verify-diagnostics --split-input-file

func.func @window(%x: tensor<1x8x8x4xi8>, %w: tensor<3x3x4x8xi8>, %z: i32) -> tensor<1x6x6x8xi32> {
  %init = arith.constant dense<0> : tensor<1x6x6x8xi32>
  // expected-remark @+1 {{'linalg.conv_2d_nhwc_hwcf_q' op is left to IREE: the zero points of a convolution are computed}}
  %y = linalg.conv_2d_nhwc_hwcf_q ins(%x, %w, %z, %z : tensor<1x8x8x4xi8>, tensor<3x3x4x8xi8>, i32, i32) outs(%init : tensor<1x6x6x8xi32>) -> tensor<1x6x6x8xi32>
  return %y : tensor<1x6x6x8xi32>
}

// -----

func.func @float_image(%x: tensor<1x8x8x4xf32>, %w: tensor<3x3x4x8xi8>) -> tensor<1x6x6x8xf32> {
  %init = arith.constant dense<0.0> : tensor<1x6x6x8xf32>
  // expected-remark @+1 {{'linalg.conv_2d_nhwc_hwcf' op is left to IREE: a convolution with one quantized operand has no kernel}}
  %y = linalg.conv_2d_nhwc_hwcf ins(%x, %w : tensor<1x8x8x4xf32>, tensor<3x3x4x8xi8>) outs(%init : tensor<1x6x6x8xf32>) -> tensor<1x6x6x8xf32>
  return %y : tensor<1x6x6x8xf32>
}

// -----

func.func @function(%x: tensor<4x64xf32>, %q: tensor<8x64xi8>) -> tensor<4x8xf32> {
  %init = arith.constant dense<0.0> : tensor<4x8xf32>
  // expected-remark @+1 {{'linalg.generic' op is left to IREE: its body has 'math.exp'}}
  %y = linalg.generic {indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>], iterator_types = ["parallel", "parallel", "reduction"]} ins(%x, %q : tensor<4x64xf32>, tensor<8x64xi8>) outs(%init : tensor<4x8xf32>) {
  ^bb0(%x0: f32, %q0: i8, %acc: f32):
    %0 = arith.sitofp %q0 : i8 to f32
    %1 = math.exp %0 : f32
    %2 = arith.mulf %x0, %1 : f32
    %3 = arith.addf %acc, %2 : f32
    linalg.yield %3 : f32
  } -> tensor<4x8xf32>
  return %y : tensor<4x8xf32>
}

// -----

func.func @rounds_twice(%x: tensor<4x64xf32>, %q: tensor<8x64xi8>, %s: tensor<8xf32>, %t: tensor<8xf32>) -> tensor<4x8xf32> {
  %init = arith.constant dense<0.0> : tensor<4x8xf32>
  // expected-remark @+1 {{'linalg.generic' op is left to IREE: the dequantization of an operand multiplies for the second time, and each product is rounded}}
  %y = linalg.generic {indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (n)>, affine_map<(m, n, k) -> (n)>, affine_map<(m, n, k) -> (m, n)>], iterator_types = ["parallel", "parallel", "reduction"]} ins(%x, %q, %s, %t : tensor<4x64xf32>, tensor<8x64xi8>, tensor<8xf32>, tensor<8xf32>) outs(%init : tensor<4x8xf32>) {
  ^bb0(%x0: f32, %q0: i8, %s0: f32, %t0: f32, %acc: f32):
    %0 = arith.sitofp %q0 : i8 to f32
    %1 = arith.mulf %0, %s0 : f32
    %2 = arith.mulf %1, %t0 : f32
    %3 = arith.mulf %x0, %2 : f32
    %4 = arith.addf %acc, %3 : f32
    linalg.yield %4 : f32
  } -> tensor<4x8xf32>
  return %y : tensor<4x8xf32>
}

// -----

func.func @no_contraction(%q: tensor<8x64xi8>, %s: tensor<8xf32>) -> tensor<8x64xf32> {
  %e = tensor.empty() : tensor<8x64xf32>
  // expected-remark @+1 {{'linalg.generic' op is left to IREE: no contraction reads what it dequantizes}}
  %d = linalg.generic {indexing_maps = [affine_map<(n, k) -> (n, k)>, affine_map<(n, k) -> (n)>, affine_map<(n, k) -> (n, k)>], iterator_types = ["parallel", "parallel"]} ins(%q, %s : tensor<8x64xi8>, tensor<8xf32>) outs(%e : tensor<8x64xf32>) {
  ^bb0(%q0: i8, %s0: f32, %out: f32):
    %0 = arith.sitofp %q0 : i8 to f32
    %1 = arith.mulf %0, %s0 : f32
    linalg.yield %1 : f32
  } -> tensor<8x64xf32>
  return %d : tensor<8x64xf32>
}

// -----

func.func @wide(%x: tensor<4x64xi16>, %w: tensor<64x8xi16>) -> tensor<4x8xi64> {
  %init = arith.constant dense<0> : tensor<4x8xi64>
  // expected-remark @+1 {{'linalg.matmul' op is left to IREE: its integers are not summed in i32}}
  %y = linalg.matmul ins(%x, %w : tensor<4x64xi16>, tensor<64x8xi16>) outs(%init : tensor<4x8xi64>) -> tensor<4x8xi64>
  return %y : tensor<4x8xi64>
}

// -----

// StableHLO has no integers of 24 bits, nor of 5.
func.func @widths(%x: tensor<4x64xf32>, %q: tensor<8x64xi8>, %r: tensor<8x64xi5>) -> (tensor<4x8xf32>, tensor<4x8xf32>) {
  %init = arith.constant dense<0.0> : tensor<4x8xf32>
  // expected-remark @+1 {{'linalg.generic' op is left to IREE: it computes with 'i24'}}
  %y = linalg.generic {indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>], iterator_types = ["parallel", "parallel", "reduction"]} ins(%x, %q : tensor<4x64xf32>, tensor<8x64xi8>) outs(%init : tensor<4x8xf32>) {
  ^bb0(%x0: f32, %q0: i8, %acc: f32):
    %0 = arith.extsi %q0 : i8 to i24
    %1 = arith.sitofp %0 : i24 to f32
    %2 = arith.mulf %x0, %1 : f32
    %3 = arith.addf %acc, %2 : f32
    linalg.yield %3 : f32
  } -> tensor<4x8xf32>
  %z = linalg.generic {indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>], iterator_types = ["parallel", "parallel", "reduction"]} ins(%x, %r : tensor<4x64xf32>, tensor<8x64xi5>) outs(%init : tensor<4x8xf32>) {
  ^bb0(%x0: f32, %q0: i5, %acc: f32):
    %1 = arith.sitofp %q0 : i5 to f32
    %2 = arith.mulf %x0, %1 : f32
    %3 = arith.addf %acc, %2 : f32
    linalg.yield %3 : f32
  } -> tensor<4x8xf32>
  return %y, %z : tensor<4x8xf32>, tensor<4x8xf32>
}
