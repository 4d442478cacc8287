"""Embedding tables for any 64-bit ids, which grow as new ids are looked up; sharded over ranks."""

from windeck.embeddings.optimizers import TableOptimizer
from windeck.embeddings.sharded import ShardedEmbeddingTable
from windeck.embeddings.table import EmbeddingTable

__all__ = ["EmbeddingTable", "ShardedEmbeddingTable", "TableOptimizer"]
