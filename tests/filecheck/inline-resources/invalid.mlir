// RUN: subquant opt %s --passes inline-resources --split-input-file --verify-diagnostics

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
