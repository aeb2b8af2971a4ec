"""LiteRT's integer arithmetic, bit for bit."""
