// RUN: subquant opt %s --passes legalize-constants --split-input-file --verify-diagnostics

func.func @missing() -> tensor<2xf32> {
  // expected-error @+1 {{'arith.constant' op has the resource 'absent', which the module does not contain; print it with its resources (without --mlir-elide-resource-strings-if-larger)}}
  %0 = arith.constant dense_resource<absent> : tensor<2xf32>
  return %0 : tensor<2xf32>
}

// -----

func.func @short() -> tensor<2xf32> {
  // expected-error @+1 {{'stablehlo.constant' op has the resource 'one' of 4 bytes; 'tensor<2xf32>' has 8 bytes}}
  %0 = stablehlo.constant dense_resource<one> : tensor<2xf32>
  return %0 : tensor<2xf32>
}

{-#
  dialect_resources: {
    builtin: {
      one: "0x040000000000803F"
    }
  }
#-}

// -----

func.func @packed() -> tensor<4xi4> {
  // expected-error @+1 {{'arith.constant' op has a resource of type 'tensor<4xi4>', and MLIR does not define how fewer than 8 bits are packed in it; write the elements (dense<...>)}}
  %0 = arith.constant dense_resource<one> : tensor<4xi4>
  return %0 : tensor<4xi4>
}

{-#
  dialect_resources: {
    builtin: {
      one: "0x040000000000803F"
    }
  }
#-}

// -----

func.func @booleans() -> tensor<4xi1> {
  // expected-error @+1 {{'arith.constant' op has the resource 'two' of booleans, whose byte 2 is 2; expected 0 or 1}}
  %0 = arith.constant dense_resource<two> : tensor<4xi1>
  return %0 : tensor<4xi1>
}

{-#
  dialect_resources: {
    builtin: {
      two: "0x0100000000010201"
    }
  }
#-}

// -----

func.func @complex_resource() -> tensor<1xcomplex<f32>> {
  // expected-error @+1 {{'stablehlo.constant' op has elements of type 'tensor<1xcomplex<f32>>' in a form that is not read; write the elements (dense<...>), in f32 or f64}}
  %0 = stablehlo.constant dense_resource<pair> : tensor<1xcomplex<f32>>
  return %0 : tensor<1xcomplex<f32>>
}

{-#
  dialect_resources: {
    builtin: {
      pair: "0x040000000000803F00000000"
    }
  }
#-}
