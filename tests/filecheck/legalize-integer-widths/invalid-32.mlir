// RUN: subquant opt %s --passes "legalize-integer-widths{containers=32}" --split-input-file --verify-diagnostics

func.func @half(%x: tensor<4xf16>) -> tensor<4xf16> {
  // expected-error @+1 {{'arith.negf' op uses 'f16', which a device with 32-bit storage only does not have; compile for a device that has it (--vulkan-target generic)}}
  %r = arith.negf %x : tensor<4xf16>
  return %r : tensor<4xf16>
}

// -----

func.func @double() -> f64 {
  // expected-error @+1 {{'arith.constant' op uses 'f64'}}
  %r = arith.constant 1.0 : f64
  return %r : f64
}

// -----

// In a loop body 64-bit integers are computed on the device.
#id = affine_map<(i) -> (i)>
func.func @wide_in_a_loop(%x: tensor<4xi32>, %o: tensor<4xi32>) -> tensor<4xi32> {
  %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel"]}
      ins(%x : tensor<4xi32>) outs(%o : tensor<4xi32>) {
  ^bb0(%a: i32, %b: i32):
    // expected-error @+1 {{'arith.extsi' op uses 'i64'}}
    %w = arith.extsi %a : i32 to i64
    %n = arith.trunci %w : i64 to i32
    linalg.yield %n : i32
  } -> tensor<4xi32>
  return %r : tensor<4xi32>
}
