"""Importers of models of other tools: ONNX, TensorFlow Lite and JAX."""
