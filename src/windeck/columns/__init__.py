"""Columns in memory: values, dtypes and validity bitmaps."""
