"""Embeddings of any 64-bit ids, in tables that grow as ids come, on one rank or over many."""

from windeck.embeddings.optimizers import TableOptimizer
from windeck.embeddings.sharded import ShardedEmbeddingTable
from windeck.embeddings.table import EmbeddingTable

__all__ = ["EmbeddingTable", "ShardedEmbeddingTable", "TableOptimizer"]
