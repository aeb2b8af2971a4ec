// RUN: subquant opt %s --passes check-hand-off --split-input-file --verify-diagnostics

// expected-error @+1 {{'func.func' op has the quantized type 'tensor<4x!quant.uniform<i8:f32, 2.000000e+00>>' before IREE; run convert-quantized-to-storage}}
func.func @quantized(%x: tensor<4x!quant.uniform<i8:f32, 2.0>>) {
  return
}

// -----

// Declarations count too.
// expected-error @+1 {{'func.func' op has the quantized type '!quant.uniform<i8:f32, 2.000000e+00>' before IREE}}
func.func private @declared() -> !quant.uniform<i8:f32, 2.0>

// -----

// Inside another type.
// expected-error @+1 {{'func.func' op has the quantized type 'tuple<f32, tensor<4x!quant.uniform<i8:f32, 2.000000e+00>>>' before IREE}}
func.func @inside(%x: tuple<f32, tensor<4x!quant.uniform<i8:f32, 2.0>>>) {
  return
}

// -----

func.func @cast(%x: tensor<4xf32>) {
  // expected-error @+1 {{'quant.qcast' op is left before IREE, and no pass lowered it}}
  %q = quant.qcast %x : tensor<4xf32> to tensor<4x!quant.uniform<i8:f32, 2.0>>
  return
}

// -----

func.func @subquant(%x: tensor<4xf32>, %s: tensor<1xf32>) {
  // expected-error @+1 {{'subquant.quantize' op is left before IREE, and no pass lowered it}}
  %q = "subquant.quantize"(%x, %s) {block_sizes = array<i64: 4>, quantized_type = !quant.any<i8:f32>} : (tensor<4xf32>, tensor<1xf32>) -> tensor<4xi8>
  return
}

// -----

func.func @made() {
  // expected-error @+1 {{'util.make' op has the quantized type}}
  %q = "util.make"() : () -> tensor<4x!quant.uniform<i8:f32, 2.0>>
  return
}

// -----

func.func @in_a_region() {
  // expected-error @+1 {{'util.region' op has the unranked type 'tensor<*xf32>' before IREE; run lower-unranked-tensors}}
  "util.region"() ({
  ^bb0(%a: tensor<*xf32>):
    "util.end"() : () -> ()
  }) : () -> ()
  return
}

// -----

// expected-error @+1 {{'func.func' op has the unranked type 'tensor<*xi8>' before IREE; run lower-unranked-tensors}}
func.func @unranked(%x: tensor<*xi8>) {
  return
}

// -----

func.func @shape(%x: tensor<4xf32>) -> tensor<1xindex> {
  // expected-error @+1 {{'shape.shape_of' op is left before IREE, and IREE has no shape dialect}}
  %s = shape.shape_of %x : tensor<4xf32> -> tensor<1xindex>
  return %s : tensor<1xindex>
}

// -----

func.func @unknown(%x: tensor<4xf32>) {
  // expected-error @+1 {{'nobody.knows' op is of a dialect that neither MLIR nor IREE knows, and IREE's compiler would crash on it; lower it first}}
  "nobody.knows"(%x) : (tensor<4xf32>) -> ()
  return
}

// -----

// expected-error @+1 {{'func.func' op has the type 'memref<*xf32>', which IREE does not take; expected a tensor}}
func.func @unranked_memory(%x: memref<*xf32>) {
  return
}

// -----

// expected-error @+1 {{'func.func' op has result 1 of type 'tuple<tensor<2xf32>>'; expected a tensor or a number}}
func.func @tuple(%x: tensor<2xf32>) -> (tensor<2xf32>, tuple<tensor<2xf32>>) {
  %0 = stablehlo.tuple %x : tuple<tensor<2xf32>>
  return %x, %0 : tensor<2xf32>, tuple<tensor<2xf32>>
}

// -----

// expected-error @+1 {{'func.func' op has argument 0 of type 'memref<2xf32>'; expected a tensor or a number}}
func.func @memory(%x: memref<2xf32>) {
  return
}
