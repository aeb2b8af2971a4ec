"""Writers of the tiny folders that ``scripts/make_huggingface_folders.py`` makes."""
