"""Import of PyTorch programs that ``torch.export`` traced; it needs ``torch``."""
