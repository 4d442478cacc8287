"""Documents: token corpora in files."""

from windeck.documents.documents import Documents

__all__ = ["Documents"]
