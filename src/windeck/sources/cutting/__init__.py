"""From a table to windows: where they lie, which are kept, the keys of a batch."""
