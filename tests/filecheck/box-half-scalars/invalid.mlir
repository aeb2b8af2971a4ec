// RUN: subquant opt %s --passes box-half-scalars --split-input-file --verify-diagnostics

func.func @inner(%x: f16) -> f16 {
  return %x : f16
}

func.func @outer(%x: f16) -> f16 {
  // expected-error @+1 {{'func.call' op calls a public function with an f16 or bf16 scalar in its signature; make the function private}}
  %r = call @inner(%x) : (f16) -> f16
  return %r : f16
}

// -----

// The caller need not be public.
func.func @inner() -> bf16 {
  %x = arith.constant 1.0 : bf16
  return %x : bf16
}

func.func private @outer() {
  // expected-error @+1 {{'func.call' op calls a public function}}
  %r = call @inner() : () -> bf16
  return
}
