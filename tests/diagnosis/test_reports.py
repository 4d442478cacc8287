"""Reports as JSON, text and HTML: complete, the same after a round trip, and safe to open."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from support.diagnoses import MACHINE, loop, measured
from support.store_servers import unavailable
from windeck.diagnosis import Diagnosis, Machine, Measurements, Usage, comparison, comparison_html

HOSTILE = "</style><script>document.title='owned'</script><img src=x onerror=alert(1)>\"'&"

STARVED = Diagnosis(
    measured(
        0.01, 0.001, workers=2, cpu=0.2, stages={"samples": 0.002, "collate": 0.008},
        use={"major_faults": 700, "read_bytes": 7_000_000},
        mapped=(("rows.bin", 10**9),),
    )
)  # fmt: skip
FAST = Diagnosis(measured(0.001, 0.004, ahead=2, cpu=0.5))
ALONE = Diagnosis(replace(measured(0.01), machine=Machine(), notes=("nothing is known",)))
REPORTS = {"starved": STARVED, "fast": FAST, "alone": ALONE}


@pytest.mark.parametrize("name", REPORTS)
def test_json_is_complete(name: str) -> None:
    """A report read from JSON is equal, with its verdict."""
    report = REPORTS[name]
    text = report.to_json()
    assert Diagnosis.from_json(text) == report
    document = json.loads(text)
    assert (document["verdict"], document["format"]) == (report.verdict, 1)
    assert [one["kind"] for one in document["findings"]] == [one.kind for one in report.findings]


def damaged() -> dict[str, Any]:
    """Documents that are not reports, by the words of their errors."""
    good = STARVED.to_document()
    return {
        "has no format, expected 1": {},
        "has format 2, expected 1: a later windeck wrote it": {**good, "format": 2},
        "KeyError 'machine'": {key: value for key, value in good.items() if key != "machine"},
        "seconds is '1', expected float": {
            **good, "loader": {**good["loader"], "seconds": "1"}},
        "unexpected keyword argument 'colour'": {
            **good, "subject": {**good["subject"], "colour": 1}},
        "no loop of the loader": {**good, "loader": None},
        "no batches or no seconds": {**good, "step": {**good["step"], "batches": 0}},
        "has not three times": {**good, "step": {**good["step"], "timeline": [[1, 2]]}},
    }  # fmt: skip


@pytest.mark.parametrize("words", damaged())
def test_damaged_reports_are_refused(words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        Diagnosis.from_json(json.dumps(damaged()[words]))


@pytest.mark.parametrize("text", ["", "[]", "3", "{"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"format|Expecting"):
        Diagnosis.from_json(text)


def test_text_has_the_verdict_and_all_tables() -> None:
    """The verdict comes first; figures of every loop, stage, process and the machine follow."""
    text = str(STARVED)
    assert " ".join(text.split("\n\n")[0].split()) == STARVED.verdict
    for words in ("batches alone", "batches and step", "step, one batch again", "collate",
                  "child 2", "memcpy, one thread", "10 GB/s", "10,000 reads/s", "rows.bin (1 GB)",
                  "2 workers"):  # fmt: skip
        assert words in text, words
    assert "nothing is known" in str(ALONE)
    assert all(len(line) < 120 for line in text.splitlines())
    assert STARVED.verdict in STARVED._repr_html_()


def test_reports_side_by_side() -> None:
    """Rates, shares and the machines' own rates stand in columns, with ratios for two."""
    text = STARVED.compare(FAST, names=["cloud", "laptop"])
    lines = text.splitlines()
    assert " ".join(lines[:2]).startswith(
        "from cloud to laptop, the step is 4 times as slow, the loader is 10 times as fast, the "
        "training is"
    )
    row = next(line for line in lines if line.startswith("batches alone"))
    assert row.split()[-3:] == ["3,200", "32,000", "10x"]
    limit = next(line for line in lines if line.startswith("limit"))
    assert limit.split() == ["limit", STARVED.findings[0].kind, "step"]
    assert f"cloud: {STARVED.verdict}"[:60] in text
    lines = comparison(list(REPORTS.items())).splitlines()
    rows = [re.split(r" {2,}", line) for line in lines[lines.index("") + 1 :]]
    rows = rows[: rows.index([""])]
    assert rows[0] == ["figure", *REPORTS]
    assert "?" in next(row for row in rows if row[0].startswith("step alone"))
    assert all(len(row) == 4 for row in rows)
    with pytest.raises(ValueError, match="expected at least two reports to compare, got 1"):
        comparison([("one", STARVED)])


def test_columns_are_aligned() -> None:
    """Cells of all rows end at the same places, two spaces or more from those before."""
    lines = comparison([("a", FAST), ("b", FAST)]).splitlines()
    rows = [line for line in lines if line.startswith(("figure", "cores", "memcpy", "first batch"))]
    ends = {tuple(cell.end() for cell in re.finditer(r"(?<=  )\S+( \S+)*", row)) for row in rows}
    assert len(rows) == 4
    assert len(ends) == 1
    assert len(ends.pop()) == 3


def test_counters_are_added_and_subtracted() -> None:
    one, two = Usage(2.0, 1.0, None, 5, 6, 7, 8), Usage(0.5, 0.25, 1.0, 1, 2, 3, None)
    assert one.plus(two) == Usage(2.5, 1.25, None, 6, 8, 10, None)
    assert one.plus(two, -1) == Usage(1.5, 0.75, None, 4, 4, 4, None)
    assert two.plus(one, -1).cpu_seconds == 0


class _Elements(HTMLParser):
    """Tags of a page, with their attributes, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))

    def handle_data(self, data: str) -> None:
        self.words += data


def hostile() -> Measurements:
    subject = replace(STARVED.measured.subject, kind=HOSTILE, unit=HOSTILE,
                      mapped=((HOSTILE, 10**9),))  # fmt: skip
    stages = tuple(replace(stage, name=HOSTILE) for stage in STARVED.measured.stages)
    machine = replace(MACHINE, name=HOSTILE)
    return replace(STARVED.measured, subject=subject, machine=machine, stages=stages,
                   notes=(HOSTILE,))  # fmt: skip


def test_a_page_is_alone_and_names_are_text() -> None:
    """Nothing is loaded, nothing runs, and all names are escaped."""
    for text in (
        Diagnosis(hostile()).to_html(),
        comparison_html([(HOSTILE, Diagnosis(hostile())), ("b", FAST)]),
    ):
        page = _Elements(text)
        tags = {tag for tag, _ in page.tags}
        assert not tags & {"script", "img", "link", "iframe", "object", "a", "form"}
        for _, attributes in page.tags:
            names = set(attributes)
            assert not any(name.startswith("on") for name in names)
            assert not names & {"src", "href", "style"}
        assert "https://" not in text
        assert HOSTILE in page.words
        (policy,) = [
            attributes["content"] for _, attributes in page.tags
            if attributes.get("http-equiv") == "Content-Security-Policy"
        ]  # fmt: skip
        assert policy is not None
        assert policy.startswith("default-src 'none'; style-src 'sha256-")


def test_a_page_has_the_timeline() -> None:
    """Batches are drawn with their times of waiting and of the step, on the scale of the loop."""
    page = _Elements(STARVED.to_html())
    kinds = [attributes.get("class") for tag, attributes in page.tags if tag == "rect"]
    assert kinds.count("wait") > 40
    assert kinds.count("step") > 80
    assert "batch 39: step 1 ms" in page.words
    assert "batch 3: waiting 9 ms" in page.words
    for tag, attributes in page.tags:
        if tag == "rect":
            assert float(attributes["x"] or 0) + float(attributes["width"] or 0) <= 721
    assert "<svg" in ALONE.to_html()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], bytes]:
    """Give a function that returns the screenshot of a page, by its HTML."""
    program = next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
    )
    if not program:
        pytest.skip("there is no chromium: apt-get install chromium")
    folder = tmp_path_factory.mktemp("browser")

    def shot(page: str) -> bytes:
        file, picture = folder / "page.html", folder / "page.png"
        file.write_text(page, encoding="utf-8")
        command = [program, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        command += ["--disable-dev-shm-usage", f"--user-data-dir={folder / 'profile'}"]
        # On a busy machine the picture would be taken before the page is painted.
        command += ["--run-all-compositor-stages-before-draw", "--virtual-time-budget=1000"]
        command += ["--window-size=800,900", f"--screenshot={picture}", "--enable-logging=stderr"]
        done = subprocess.run([*command, file.as_uri()], capture_output=True, text=True,
                              timeout=120, check=False)  # fmt: skip
        if not picture.exists():
            unavailable(f"chromium does not run here: {done.returncode} {done.stderr[-3000:]}")
        complaints = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
        assert not complaints, complaints
        found = picture.read_bytes()
        picture.unlink()
        return found

    return shot


def colours(picture: bytes, folder: Path) -> dict[tuple[int, int, int], int]:
    """Return the pixels of each colour."""
    pyplot = pytest.importorskip("matplotlib.pyplot")
    import numpy as np

    file = folder / "shot.png"
    file.write_bytes(picture)
    pixels = (pyplot.imread(file)[:, :, :3] * 255).round().astype(np.int64).reshape(-1, 3)
    found, counts = np.unique(pixels, axis=0, return_counts=True)
    return {(int(r), int(g), int(b)): int(n) for (r, g, b), n in zip(found, counts, strict=True)}


WAIT, STEP, DISK = (217, 130, 43), (47, 125, 79), (122, 79, 163)


def test_a_browser_shows_the_pictures(browser: Callable[[str], bytes], tmp_path: Path) -> None:
    """Waiting, the step and the disk have their colours; the page has no complaints."""
    seen = colours(browser(STARVED.to_html()), tmp_path)
    assert seen[WAIT] > seen[STEP] > 500
    assert seen[DISK] > 1000
    seen = colours(browser(FAST.to_html()), tmp_path)
    assert seen[STEP] > seen.get(WAIT, 0)
    assert seen[DISK] < 400  # the legend alone
    both = colours(browser(comparison_html([("a", STARVED), ("b", FAST)])), tmp_path)
    assert {WAIT, STEP} <= set(both)


@pytest.mark.parametrize(
    ("rates", "widths"),
    [
        ((1_280_000.0, 2_000.0, 40_000.0), (1.0, 0.0969, 0.5157)),  # powers of ten from 1,000 on
        ((1_000.0, 0.001, 1.0), (1.0, 1 / 7, 4 / 7)),
        ((50.0, 10.0, 25.0), (1.0, 0.2, 0.5)),
        ((7.0, 7.0, 7.0), (1.0, 1.0, 1.0)),
    ],
)
def test_bars_of_rates_are_seen(rates: tuple[float, ...], widths: tuple[float, ...]) -> None:
    """In proportion, or on a logarithmic scale that says so."""
    fastest, *others = (loop(32 / rate, step=32 / rate, wait=0.0) for rate in rates)
    given = replace(FAST.measured, step=fastest, loader=others[0], both=others[1])
    (picture,) = re.findall(r'<svg [^>]*aria-label="rates">.*?</svg>', Diagnosis(given).to_html())
    found = [float(width) for width in re.findall(r'<rect [^>]*width="([\d.]+)"', picture)]
    assert [width / found[0] for width in found] == pytest.approx(widths, abs=1e-3)
    assert ("logarithmic scale from " in picture) == (max(rates) > 20 * min(rates))
    if rates[0] > 1e6:
        assert "logarithmic scale from 1,000 on" in picture
    nothing = replace(given, subject=replace(given.subject, samples=0.0))
    assert 'aria-label="rates"' in Diagnosis(nothing).to_html()
