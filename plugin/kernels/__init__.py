"""Kernels of contractions, where instructions that IREE does not use make them faster."""
