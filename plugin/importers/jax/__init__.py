"""Reader of functions that ``jax.export`` serialized."""
