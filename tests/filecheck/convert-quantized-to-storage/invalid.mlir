// RUN: subquant opt %s --passes convert-quantized-to-storage --split-input-file --verify-diagnostics

// An operation that would compute with the storage values is refused: its meaning is for reals.

!q = !quant.uniform<i8:f32, 2.0>
func.func @computes(%x: tensor<4x!q>, %y: tensor<4x!q>) -> tensor<4x!q> {
  // expected-error @+1 {{'stablehlo.add' op computes with quantized values, which this pipeline does not lower; dequantize its operands (quant.dcast) and quantize its results (quant.qcast)}}
  %r = stablehlo.add %x, %y : tensor<4x!q>
  return %r : tensor<4x!q>
}

// -----

// Only the operand is quantized.
!q = !quant.uniform<i8:f32, 2.0>
func.func @consumes(%x: tensor<4x!q>) {
  // expected-error @+1 {{'test.use' op computes with quantized values}}
  "test.use"(%x) : (tensor<4x!q>) -> ()
  return
}

// -----

!q = !quant.uniform<i8:f32, 2.0>
#id = affine_map<(i) -> (i)>
func.func @loop_body(%x: tensor<4x!q>, %o: tensor<4x!q>) -> tensor<4x!q> {
  // expected-error @+1 {{'linalg.generic' op computes with quantized values}}
  %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel"]}
      ins(%x : tensor<4x!q>) outs(%o : tensor<4x!q>) {
  ^bb0(%a: !q, %b: !q):
    linalg.yield %a : !q
  } -> tensor<4x!q>
  return %r : tensor<4x!q>
}

// -----

// A cast that was not lowered.
!q = !quant.uniform<i8:f32, 2.0>
func.func @cast(%x: tensor<4x!q>) -> tensor<4xf32> {
  // expected-error @+1 {{'quant.dcast' op computes with quantized values}}
  %r = quant.dcast %x : tensor<4x!q> to tensor<4xf32>
  return %r : tensor<4xf32>
}

// -----

// Elements would come to another block, and the scales stay.
!q = !quant.uniform<i8:f32:1, {1.0, 2.0}>
func.func @part_of_an_axis(%q: tensor<4x?x!q>, %n: index) -> tensor<4x?x!q> {
  // expected-error @+1 {{'tensor.extract_slice' op may move elements to other blocks of a per-axis type, whose scales stay where they are; dequantize first (quant.dcast), or keep every quantized dimension whole}}
  %s = tensor.extract_slice %q[0, 1] [4, %n] [1, 1] : tensor<4x?x!q> to tensor<4x?x!q>
  return %s : tensor<4x?x!q>
}

// -----

!q = !quant.uniform<i8:f32:{1:2}, {{1.0, 2.0}}>
func.func @joined_along_a_quantized_axis(%q: tensor<1x4x!q>) -> tensor<1x4x!q> {
  // expected-error @+1 {{'tensor.concat' op may move elements to other blocks of a sub-channel type}}
  %c = tensor.concat dim(1) %q : (tensor<1x4x!q>) -> tensor<1x4x!q>
  return %c : tensor<1x4x!q>
}
