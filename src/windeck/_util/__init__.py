"""Shared internals: validation, fingerprints, caches, files, threads, text for messages."""
