"""The page on preparing files: its code runs, its links and options exist."""

from __future__ import annotations

import inspect
import re

import pytest

import windeck as wd
from support.object_servers import bucket_of, use_bucket
from support.pages import Page

PAGE = Page("docs/prepare.md")


@pytest.mark.usefixtures("demo_folder", "quick_retries")
def test_code_on_the_page_runs(s3_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with bucket_of(s3_port, "loads") as bucket:
        use_bucket(bucket, monkeypatch)
        names = PAGE.run()
    assert names["by_site"].series == ("site-01", "site-02", "site-03", "site-04")
    assert names["table"].num_rows == 4 * 90 * 24
    assert names["result"].scalers["standard"] == names["scaler"]
    assert (names["scaler"].counts > 5000).all()


def test_links_and_options_exist() -> None:
    PAGE.check_links()
    options = set(re.findall(r"`(\w+)=", PAGE.text))
    assert options - {"in_memory", "categories"} <= set(inspect.signature(wd.prepare).parameters)
