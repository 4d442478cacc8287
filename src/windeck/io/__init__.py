"""Files: access to the file system, and readers of Arrow IPC, Parquet and CSV."""
