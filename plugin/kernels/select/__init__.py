"""Matchers of contractions, and calls of their kernels."""
