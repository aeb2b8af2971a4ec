"""Tensors with a data-dependent dimension size, and operators that make and take them."""
