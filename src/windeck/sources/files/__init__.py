"""From files to columns: which files, which rows, each format's reader, one copy."""
