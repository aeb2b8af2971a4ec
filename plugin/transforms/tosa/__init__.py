"""Passes that lower TOSA, and passes from and to ``tosa.rescale``."""
