"""Fixtures for the whole suite: a small table, and the servers behind some of the stores."""

from store_servers import fresh, redis_cluster, redis_server, small_disk
from window_tables import mixed

__all__ = ["fresh", "mixed", "redis_cluster", "redis_server", "small_disk"]
