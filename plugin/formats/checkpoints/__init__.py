"""Formats of packed weights in checkpoints of Hugging Face, one module a `quant_method`."""
