"""Importers of attention, rotary embeddings, key-value caches and linear attention."""
