"""Writing of a save: plans, shards, merging, incremental saves."""
