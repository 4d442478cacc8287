"""Sources: finite, random-access data. sample i -> (series, row) -> bytes.

The doors are `table`, `windows` and `scaler`; behind each is a room: `files` (from files to
columns) and `tables`, `cutting`, `scaling`.
"""
