"""Language models from checkpoints of Hugging Face: configuration, tensor names, tokenizer."""
