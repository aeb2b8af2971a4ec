"""How long many compilations take on many machines, and what they cost."""
