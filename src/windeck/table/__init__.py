"""Tables: columns of one length, cut into series in order of time."""

from windeck.table.table import Table

__all__ = ["Table"]
