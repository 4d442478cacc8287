"""Packing of documents into sequences of one length."""

from windeck.packing.packing import PackedSequences

__all__ = ["PackedSequences"]
