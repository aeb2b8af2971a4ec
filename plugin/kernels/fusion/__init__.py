"""Fusion of elementwise operations and of dispatches around small kernels."""
