"""Post-training quantization of networks: ``.onnx``, ``.tflite``, ``.mlir`` and PyTorch modules."""
