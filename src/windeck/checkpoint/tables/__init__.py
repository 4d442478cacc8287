"""Embedding tables in checkpoints: blocks of rows, their index, chains of deltas, serving."""
