"""Sources: finite, random-access data. sample i -> (series, row) -> bytes."""
