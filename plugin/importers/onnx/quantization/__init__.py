"""Quantized operands as integers with scales, and importers of operators on them."""
