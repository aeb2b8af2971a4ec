"""Models of other tools as modules: TensorFlow Lite."""
