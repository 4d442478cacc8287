"""Write the files of this folder, all of them: what the library served, reported and stored.

They were made by the commit before the first release, and are never made anew to let a test pass:
what they hold is promised to those who have such files. ``tests/frozen`` reads them.

``python tests/golden/frozen/make.py`` writes all of them, ``make.py PART ...`` some, where PART is
one of the functions here, which depend on those before them: ``corpus``, ``scalers``, ``states``,
``caches``, ``fingerprints``, ``names``, ``checkpoints``. With WINDECK_TEST_FROZEN=FOLDER they are
written into another folder, and ``pytest tests/frozen`` reads those. Two runs write the same bytes,
except files of RocksDB, which hold random identities and times.

Only ``names`` changes with a commit: that of a public name.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TESTS))

import pyarrow as pa  # noqa: E402
from pyarrow import feather  # noqa: E402

import windeck as wd  # noqa: E402
from support import frozen_checkpoints  # noqa: E402
from support import frozen_data as data  # noqa: E402
from support import frozen_states as states_of  # noqa: E402
from support.frozen_names import described  # noqa: E402


def write(name: str, value: Any) -> None:
    text = json.dumps(value, indent=1, ensure_ascii=False)
    (data.FROZEN / name).write_text(text + "\n", encoding="utf-8")


def corpus() -> None:
    """The shards: Arrow files as pyarrow writes them, kept because their bytes are hashed."""
    shutil.rmtree(data.CORPUS, ignore_errors=True)
    for shard, count in data.SHARDS.items():
        path = data.CORPUS / f"dataset={shard}.arrow"
        path.parent.mkdir(parents=True, exist_ok=True)
        lists = [data.document(shard, number) for number in range(count)]
        table = pa.table({"tokens": pa.array(lists, pa.list_(pa.uint16()))})
        feather.write_feather(table, path, compression="uncompressed")


def scalers() -> None:
    fitted = {
        name: wd.Scaler.fit(data.series(), **options) for name, options in data.SCALERS.items()
    }
    write("scalers.json", {name: json.loads(one.to_json()) for name, one in fitted.items()})


def states() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found = {case: data.state_of(case, folder) for case in data.CASES}
        found = {
            case: {"state": state, **data.continued(case, state, folder)}
            for case, state in found.items()
        }
    write("loaders.json", found)
    others = {
        "samplers": {name: states_of.sampled(name) for name in states_of.SAMPLERS},
        "datasets": {name: states_of.iterated(name) for name in states_of.datasets()},
        "mapped": states_of.mapped(),
        "orders": states_of.orders(),
    }
    write("others.json", others)


def caches() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        states_of.make_caches(folder)
        write("caches.json", states_of.cached(folder / "caches"))


def fingerprints() -> None:
    with tempfile.TemporaryDirectory() as name:
        write("fingerprints.json", states_of.fingerprints(Path(name)))


def names() -> None:
    (data.FROZEN / "public_names.txt").write_text(described(), encoding="utf-8")


def checkpoints() -> None:
    frozen_checkpoints.make()


PARTS = [corpus, scalers, states, caches, fingerprints, names, checkpoints]

if __name__ == "__main__":
    data.FROZEN.mkdir(parents=True, exist_ok=True)
    for part in PARTS:
        if part.__name__ in sys.argv[1:] or not sys.argv[1:]:
            part()
