"""Embedding tables in checkpoints: blocks of rows, an index of them, chains of what changed."""
