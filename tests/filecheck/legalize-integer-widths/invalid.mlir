// RUN: subquant opt %s --passes legalize-integer-widths --split-input-file --verify-diagnostics

// RUN: not subquant opt %s --passes "legalize-integer-widths{containers=16}" 2>&1 | filecheck %s --check-prefix=OPTION
// OPTION: error: option 'containers' of legalize-integer-widths must be one of 8, 32, got '16'

func.func @operation(%x: i4) -> i4 {
  // expected-error @+1 {{'math.ctpop' op uses integers of 4 bits, which the target does not load and store; expected an arith, linalg, tensor, scf or func operation}}
  %r = math.ctpop %x : i4
  return %r : i4
}

// -----

func.func @two_results(%x: i4, %y: i4) -> i1 {
  // expected-error @+1 {{'arith.addui_extended' op uses integers of 4 bits}}
  %r, %o = arith.addui_extended %x, %y : i4, i1
  return %o : i1
}

// -----

func.func @other_dialect(%x: tensor<4xi4>) {
  // expected-error @+1 {{'test.use' op uses integers of 4 bits}}
  "test.use"(%x) : (tensor<4xi4>) -> ()
  return
}

// -----

// expected-error @+1 {{'func.func' op has a value of type 'vector<4xi4>', which the target does not load and store; expected a tensor or a scalar}}
func.func @vector(%x: vector<4xi4>) {
  return
}

// -----

func.func @memory() {
  // expected-error @+1 {{'memref.alloc' op has a value of type 'memref<4xi12>'}}
  %m = memref.alloc() : memref<4xi12>
  return
}

// -----

func.func @constant() -> tensor<4xi4> {
  // expected-error @+1 {{'arith.constant' op has elements in another form than dense<...>; write them in this form}}
  %r = arith.constant sparse<[[0]], [1]> : tensor<4xi4>
  return %r : tensor<4xi4>
}
