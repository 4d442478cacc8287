"""Fixtures for the whole suite: a small table, stores, and the servers behind some of them."""

import gc
import os
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import Phase, settings

from support.demo_folder import demo_folder
from support.forked import finalized, forked
from support.object_servers import quick_retries, s3, s3_port, web
from support.store_servers import (
    disk_path,
    fresh,
    kind,
    memory,
    redis_cluster,
    redis_server,
    redis_socket,
    small_disk,
    start_redis,
    store,
    url,
)
from support.window_tables import mixed

__all__ = [
    "demo_folder",
    "disk_path",
    "finalized",
    "forked",
    "fresh",
    "kind",
    "memory",
    "mixed",
    "quick_retries",
    "redis_cluster",
    "redis_server",
    "redis_socket",
    "s3",
    "s3_port",
    "small_disk",
    "start_redis",
    "store",
    "url",
    "web",
]

pytest_plugins = ["support.crashes", "support.missing_packages"]

# No test may fail because a machine is busy. Where torch is not installed, tests that need it fail
# before they are skipped: no smaller examples are looked for, which takes minutes for each.
SMALLER = [Phase.shrink, Phase.explain] if find_spec("torch") else []
PHASES = [Phase.explicit, Phase.reuse, Phase.generate, Phase.target, *SMALLER]
settings.register_profile("windeck", deadline=None, phases=PHASES)
settings.load_profile("windeck")


#: Files and folders with long tests.
LONG = (
    "examples",
    "frameworks",
    "test_demo.py",
    "test_docs_code.py",
    "test_device_balanced.py",
    "test_planted.py",
    "test_public_names.py",
    "test_ranks.py",
    "test_shared_position.py",
)

#: A file system in memory, and the bytes that have to be free there.
MEMORY, FREE = Path("/dev/shm"), 8 << 30

#: A folder with a module that each Python process imports as it starts: what it does as it ends.
AT_EXIT = str(Path(__file__).parent / "support" / "at_exit")


def pytest_configure() -> None:
    """Keep the folders of tests in memory, where the syncs of stores take no time.

    Programs that tests start, by `PYTHONPATH` as it is or made of `sys.path`, find `AT_EXIT`.
    """
    sys.path.append(AT_EXIT)
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, [AT_EXIT, os.environ.get("PYTHONPATH")])
    )
    if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free >= FREE:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run files with long tests first, so that workers end at about the same time."""
    items.sort(key=lambda item: set(LONG).isdisjoint(item.path.parts))


def pytest_collection_finish() -> None:
    """Take all that is imported and collected out of the collector's sight: nothing of it dies."""
    gc.collect()
    gc.freeze()
