"""Comparison of a model with a reference runtime or its dequantized self, tensor by tensor."""
