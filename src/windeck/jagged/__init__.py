"""Rows with lists of ids, as jagged batches."""

from windeck.jagged.jagged_table import JaggedTable

__all__ = ["JaggedTable"]
