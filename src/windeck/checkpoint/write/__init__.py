"""Writing of saves: plans, shards of several writers, merging, incremental saves."""
