"""The figures of `small_batches.py` for `make bench`, where they are run by name as well."""

from small_batches import rows

__all__ = ["rows"]
