"""Sources in an S3 bucket: faults are retried, an outage is no bad file, and secrets stay out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import windeck as wd
from support.object_servers import ACCESS, SECRET, Bucket, Fault
from support.prepare_cases import SMALL, contents, unsorted_rows, write_files

OPTIONS: dict[str, Any] = {
    "id_columns": "site",
    "timestamp_column": "time",
    "file_bytes": SMALL,
    "threads": 2,
    "on_error": "skip",
}


@pytest.fixture
def bucket(s3: Bucket, tmp_path: Path) -> Bucket:
    write_files(tmp_path / "in", unsorted_rows(), 4, (".parquet", ".arrow"))
    for path in (tmp_path / "in").iterdir():
        s3.put(f"raw/{path.name}", path.read_bytes())
    return s3


def test_a_bucket_with_faults_gives_the_same_files_and_no_secret(
    bucket: Bucket, tmp_path: Path
) -> None:
    wd.prepare(tmp_path / "in", tmp_path / "local", **OPTIONS)
    faults = [Fault("status", r"^GET .*1\.arrow", amount=503), Fault("cut", r"^GET .*2\.parquet")]
    bucket.proxy.faults[:] = faults
    result = wd.prepare(
        f"{bucket.url}/raw", tmp_path / "out", **OPTIONS, storage_options=bucket.options
    )
    assert all(fault.fired for fault in faults)
    assert not result.skipped
    assert [one.path for one in result.sources] == [
        f"{bucket.url}/raw/{name}" for name in ("0.parquet", "1.arrow", "2.parquet", "3.arrow")
    ]
    found, expected = contents(tmp_path / "out"), contents(tmp_path / "local")
    text = b"".join(found.values())
    assert SECRET.encode() not in text
    assert ACCESS.encode() not in text
    assert found.keys() == expected.keys()
    assert all(found[name] == expected[name] for name in found if name != "manifest.json")


def test_an_outage_stops_and_the_same_call_goes_on(bucket: Bucket, tmp_path: Path) -> None:
    bucket.proxy.faults[:] = [Fault("status", r"^GET .*3\.arrow", times=10**6, amount=503)]
    with pytest.raises(OSError, match=r"3\.arrow'.*attempts failed") as caught:
        wd.prepare(f"{bucket.url}/raw", tmp_path / "out", **OPTIONS, storage_options=bucket.options)
    assert SECRET not in str(caught.value)
    bucket.proxy.faults.clear()
    result = wd.prepare(
        f"{bucket.url}/raw", tmp_path / "out", **OPTIONS, storage_options=bucket.options
    )
    assert (result.rows, result.skipped) == (300, ())
