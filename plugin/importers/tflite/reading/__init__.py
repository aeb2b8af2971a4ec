"""Reader of ``.tflite`` files: checked tensors, operators and signatures."""
