"""Embedding tables for any 64-bit ids, which grow as new ids are looked up; sharded over ranks."""

from windeck._util.imports import needs_torch

with needs_torch("windeck.embeddings"):
    from windeck.embeddings.sharded import ShardedEmbeddingTable
    from windeck.embeddings.table import EmbeddingTable
    from windeck.embeddings.table_optimizer import TableOptimizer

__all__ = ["EmbeddingTable", "ShardedEmbeddingTable", "TableOptimizer"]
