"""One self-contained HTML page that shows a checkpoint.

`limits` says how much, `collecting`, `sampling` and `tables` find what it holds, `writing` puts it
into the template beside them. The page has all it needs in itself, and asks nobody for anything.
"""
