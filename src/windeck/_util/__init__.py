"""Shared internals: validation, fingerprints, caches, threads, text for messages."""
