"""Writing operations: the only package that creates any.

`TracedValue` are values for formulas, with Python's operators and NumPy's functions; `tensor` and
`scalar` make one of a value of a program. `stablehlo` and `linalg` have the operations that take
more than values of one shape, each once; `operation.create` is under all of them.
"""

from .casts import as_quantized, stored
from .operation import create, like, value, with_element
from .tensors import Tensors, tensor, tensor_or_scalar
from .values import ArrayLike, Form, Scalars, TracedValue, scalar

__all__ = [
    "ArrayLike",
    "Form",
    "Scalars",
    "Tensors",
    "TracedValue",
    "as_quantized",
    "create",
    "like",
    "scalar",
    "stored",
    "tensor",
    "tensor_or_scalar",
    "value",
    "with_element",
]
