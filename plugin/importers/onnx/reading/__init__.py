"""ONNX files as checked nodes, constants and arguments."""
