"""Documents: token corpora in files."""

from windeck.documents.documents import Documents
from windeck.documents.protocol import Corpus

__all__ = ["Corpus", "Documents"]
