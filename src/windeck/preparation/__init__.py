"""Preparation of files for training: columns in use, final dtypes, sorted by series and time."""
