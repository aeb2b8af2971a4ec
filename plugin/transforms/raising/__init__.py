"""Arithmetic in which a program has written what one of our operations does."""
