// RUN: subquant opt %s --passes lower-unranked-tensors --split-input-file --verify-diagnostics

func.func @unknown(%x: tensor<*xf32>) {
  // expected-error @+1 {{'test.use' op has an unranked operand or result, which nothing lowers; cast to a ranked tensor with tensor.cast first}}
  "test.use"(%x) : (tensor<*xf32>) -> ()
  return
}

// -----

func.func @carried(%x: tensor<*xf32>, %c: i1) -> tensor<*xf32> {
  // expected-error @+1 {{'scf.if' op has an unranked operand or result}}
  %r = scf.if %c -> tensor<*xf32> {
    scf.yield %x : tensor<*xf32>
  } else {
    scf.yield %x : tensor<*xf32>
  }
  return %r : tensor<*xf32>
}

// -----

func.func @branched(%x: tensor<*xf32>) -> tensor<*xf32> {
  // expected-error @+1 {{'cf.br' op has an unranked operand or result}}
  cf.br ^bb1(%x : tensor<*xf32>)
^bb1(%r: tensor<*xf32>):
  return %r : tensor<*xf32>
}

// -----

func.func @computed(%x: tensor<*xf32>) -> tensor<*xf32> {
  // expected-error @+1 {{'arith.negf' op has an unranked operand or result}}
  %r = arith.negf %x : tensor<*xf32>
  return %r : tensor<*xf32>
}

// -----

// The shape becomes a tensor of another type: what takes it must be known.
func.func @returned_shape(%x: tensor<*xf32>) -> tensor<?xindex> {
  %s = shape.shape_of %x : tensor<*xf32> -> tensor<?xindex>
  // expected-error @+1 {{'func.return' op uses the shape of an unranked tensor as a tensor, which nothing lowers; extract its extents with tensor.extract}}
  return %s : tensor<?xindex>
}

// -----

func.func @cast_shape(%x: tensor<*xf32>) -> tensor<2xindex> {
  %s = shape.shape_of %x : tensor<*xf32> -> tensor<?xindex>
  // expected-error @+1 {{'tensor.cast' op uses the shape of an unranked tensor as a tensor}}
  %r = tensor.cast %s : tensor<?xindex> to tensor<2xindex>
  return %r : tensor<2xindex>
}

// -----

func.func @reshaped_shape(%x: tensor<*xf32>, %d: tensor<2xindex>) -> tensor<?x?xindex> {
  %s = shape.shape_of %x : tensor<*xf32> -> tensor<?xindex>
  // expected-error @+1 {{'tensor.reshape' op uses the shape of an unranked tensor as a tensor}}
  %r = tensor.reshape %s(%d) : (tensor<?xindex>, tensor<2xindex>) -> tensor<?x?xindex>
  return %r : tensor<?x?xindex>
}

// -----

func.func @part_of_a_shape(%x: tensor<*xf32>, %i: index) -> tensor<*xf32> {
  %s = shape.shape_of %x : tensor<*xf32> -> tensor<?xindex>
  %head, %tail = "shape.split_at"(%s, %i) : (tensor<?xindex>, index) -> (tensor<?xindex>, tensor<?xindex>)
  // expected-error @+1 {{'tensor.reshape' op reshapes to a part of an unranked tensor's shape, which nothing lowers}}
  %r = tensor.reshape %x(%tail) : (tensor<*xf32>, tensor<?xindex>) -> tensor<*xf32>
  return %r : tensor<*xf32>
}
