"""Calibrated quantization of language models: GPTQ, and rounding weighted by inputs."""
