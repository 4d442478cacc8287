"""Packing of documents into sequences of one length."""

from windeck.packing.packing import PackedSequences, Piece

__all__ = ["PackedSequences", "Piece"]
