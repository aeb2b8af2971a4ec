"""Passes of contractions with quantized weights."""
