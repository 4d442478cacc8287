"""The page of `windeck view URL html`: what is in it, and that a browser shows it."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
import torch

import windeck as wd
from models.table_model import ModelCore, ModelTable
from support.programs import command
from support.store_servers import unavailable
from windeck import checkpoint
from windeck.checkpoint.stores import open_store

Fresh = Callable[[str], str]
HOSTILE = ["</script><script>document.title='owned'</script>", "<!--<script>", "]]>"]
HOSTILE += [
    "<img src=x onerror=document.title='owned'>",
    '"><svg onload=1>',
    "@@data@@",
    "@@style@@",
]
HOSTILE += ["'; document.title='owned'; '", "\u202egnp.exe", "a\nb\x00\x1b[2J", "\u2028\u2029"]
HOSTILE += ["__proto__", "constructor", "\ud800", "&lt;b&gt;", "javascript:alert(1)", "", "/", ".."]


def saved(url: str) -> None:
    """Three generations with something of everything."""
    torch.manual_seed(1)
    rng, core = np.random.default_rng(1), ModelCore(5, 1)
    core.fill([2**63 - 1, -(2**63), -7, *range(300)], rng, counted=0.1)
    for entry in core.ids.values():
        if entry.values is not None:
            entry.values = rng.normal(size=10).astype(np.float32)
    model = {
        "layers.0.weight": torch.randn(40, 30), "layers.0.bias": torch.randn(30),
        "layers.1.weight": torch.randn(2, 3, 4), "half": torch.randn(700).to(torch.bfloat16),
        "ids": torch.tensor([2**62 + 1, -5]), "flags": torch.tensor([True, False]),
        "complex": torch.tensor([1 + 2j]), "scalar": torch.tensor(2.5), "empty": torch.empty(0, 4),
        "eighth": torch.randn(9).to(torch.float8_e4m3fn),
    }  # fmt: skip
    model["layers.0.weight"][10, 20] = float("nan")
    model["layers.0.weight"][11, 21] = float("-inf")
    model["layers.0.weight"][39, 29] = 98765.5
    model["tied"] = model["layers.0.bias"]
    hostile = {name: torch.ones(1) for name in HOSTILE}
    extra = {"lr": 3e-4, "note": "</script><b>", "odd": float("nan"), "names": hostile}
    for step in (10, 20, 30):
        checkpoint.save(url, step=step, model=model, extra=extra, chunk_bytes=256,
                        embeddings={"user</script>": ModelTable(core)})  # fmt: skip
    for tag in ("best", "a/b"):
        checkpoint.tag(url, tag, generation=2)


def page_of(url: str, folder: Path, *options: str, code: int = 0) -> str:
    """Return the page that the command writes."""
    file = folder / "page.html"
    found, _, errors = command("view", url, "html", str(file), "--force", *options)
    assert (found, errors) == (code, "")
    return file.read_text(encoding="utf-8")


def contents(page: str) -> dict[str, Any]:
    """Return the data in a page."""
    data = json.loads(_Elements(page).texts["script#data"])
    assert isinstance(data, dict)
    return data


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    saved("memory://page")
    return page_of("memory://page", tmp_path_factory.mktemp("page"))


@pytest.fixture(scope="module")
def data(page: str) -> dict[str, Any]:
    return contents(page)


def item(data: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = (one for one in data["items"] if one["name"] == name)
    assert isinstance(found, dict)
    return found


def test_what_a_page_holds(data: dict[str, Any]) -> None:
    with checkpoint.open("memory://page") as found:
        tensors = {name: found.tensor(name) for name in found.names()}
    assert [one["name"] for one in data["items"] if one["kind"] == "tensor"] == list(tensors)
    weight, told = tensors["model/layers.0.weight"], item(data, "model/layers.0.weight")
    finite = weight[weight.isfinite()].double()
    stats = told["stats"]
    assert (stats["nan"], stats["negative_infinite"], stats["positive_infinite"]) == (1, 1, 0)
    assert (stats["min"], stats["max"]) == (finite.min().item(), finite.max().item())
    assert stats["mean"] == pytest.approx(finite.mean().item())
    assert sum(told["histogram"]["counts"]) == len(finite)
    assert len(told["histogram"]["counts"]) == 64
    assert told["findings"]["nan"] == {"count": 1, "at": [[10, 20]]}
    assert told["findings"]["inf"] == {"count": 1, "at": [[11, 21]]}
    assert told["findings"]["largest"][0] == [[39, 29], 98765.5]
    assert not told["complete"]
    for name, tensor in tensors.items():
        one = item(data, name)
        assert (one["shape"], one["bytes"]) == (list(tensor.shape), tensor.nbytes)
        seen = 0
        for sample in one["samples"]:
            for at, row in zip(sample["at"], sample["rows"], strict=True):
                for c, value in enumerate(row):
                    index = (at[0] + c,) if sample["flat"] and at else (*at, c) if at else ()
                    same(tensor[index].item(), value)
                    seen += 1
        if one["own"]:
            assert seen == tensor.numel() if one["complete"] else 0 < seen < tensor.numel()
        else:
            assert seen == 0
    assert item(data, "model/tied")["data"] == "model/layers.0.bias"
    assert item(data, "extra/odd")["number"] == "nan"
    assert [(one["generation"], one["step"]) for one in data["log"]] == [(3, 30), (2, 20), (1, 10)]
    assert [one["tags"] for one in data["log"]] == [[], ["a/b", "best"], []]


def same(value: Any, told: Any) -> None:
    if isinstance(value, bool) or isinstance(told, bool):
        assert value is told
    elif isinstance(value, complex):
        assert complex(told) == value
    elif isinstance(value, int):
        assert int(told) == value
    else:
        assert float(told) == pytest.approx(value, rel=1e-5, nan_ok=True)


def test_tables(data: dict[str, Any]) -> None:
    told = item(data, "user</script>")
    with checkpoint.open("memory://page") as found:
        rows = list(found.table("user</script>").scan())
    ids = [int(key) for part in rows for key in part.keys]
    assert [row["id"] for row in told["head"]] == list(map(str, ids[:100]))
    assert told["frequencies"] == [[1, 1, 303, 1.0]]
    assert told["rows"] + told["counted"] == 303
    assert told["stats"]["count"] == 5 * told["rows"]
    assert all(row["values"] is None or len(row["values"]) == 5 for row in told["head"])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_tables_have_a_dtype(dtype: str, tmp_path: Path) -> None:
    table = wd.EmbeddingTable(10, dtype=dtype)
    table(torch.arange(5))
    url = f"memory://{tmp_path.name}"
    checkpoint.save(url, step=1, embeddings={"user": table})
    page = page_of(url, tmp_path)
    told = item(contents(page), "user")
    assert told["dtype"] == dtype
    assert [len(row["values"]) for row in told["head"]] == [8] * 5
    assert f"5 of 10 {dtype}" in words(browser_of(page, tmp_path)("name=user"))


def test_limits_hold_and_are_told(tmp_path: Path) -> None:
    saved("memory://limits")
    limits = ("--values", "600", "--read-bytes", "5000")
    told = contents(page_of("memory://limits", tmp_path, *limits))
    tensors = [one for one in told["items"] if one["kind"] == "tensor"]
    shown = sum(len(row) for one in tensors for sample in one["samples"] for row in sample["rows"])
    assert 0 < shown <= 600
    assert any(not one["samples"] and one["elements"] for one in tensors)
    unread = [one for one in tensors if one["own"] and one["stats"] is None]
    assert unread
    assert all("Not read as a whole" in one["note"] for one in unread)
    assert told["limits"]["unread"] == len(unread) + 1
    words = " ".join(told["limits"]["text"])
    assert "since 5,000 bytes were allowed" in words
    assert "the page holds up to 600" in words
    (table,) = (one for one in told["items"] if one["kind"] == "table")
    assert (len(table["head"]), table["stats"]) == (100, None)


def test_long_lists_and_texts_are_cut(tmp_path: Path) -> None:
    url = f"memory://{tmp_path.name}"
    checkpoint.save(url, step=1, extra={"text": "é" * 5000, "list": list(range(5100))})
    told = contents(page_of(url, tmp_path))
    assert len(told["items"]) == 5000
    assert item(told, "extra/text")["value"] == "é" * 2000 + "... and 3,000 letters"
    assert "101 plain values are left out: the page has the first 5,000." in told["limits"]["text"]


def test_damage_is_told_where_it_is(tmp_path: Path) -> None:
    saved("memory://damage")
    with open_store("memory://damage") as store:
        key = max(store.keys(b"~windeck~0000000000000003/t/00000000/00000000/"))
        store.delete_many([key])
    told = contents(page_of("memory://damage", tmp_path, code=1))
    (damaged,) = (one for one in told["items"] if one.get("note"))
    assert damaged["name"] == "model/layers.0.weight"
    assert damaged["note"] == f"{key.decode()} is missing, expected a chunk"


def test_damage_is_an_exit_code_and_the_page_is_written(fresh: Fresh, tmp_path: Path) -> None:
    url, out = fresh("rocksdb"), tmp_path / "page.html"
    saved(url)
    with open_store(url) as store:
        store.delete_many([max(store.keys(b"~windeck~0000000000000003/t/00000000/00000000/"))])

    def run(*options: str) -> tuple[int, list[str]]:
        code, printed, _ = command("view", url, "html", str(out), "--force", *options)
        return code, printed.splitlines()

    code, told = run()
    assert (code, told[1:]) == (1, ["damaged, as the page says: model/layers.0.weight"])
    assert told[0].startswith(f"wrote {out}, ")
    code, told = run("--json")
    assert (code, [file["file"] for file in json.loads(told[0])["files"]]) == (1, [str(out)])
    code, told = run("--values", "0", "--read-bytes", "0")  # not looked at, so not known
    assert (code, len(told)) == (0, 2)
    assert told[1].startswith("not shown or not read as a whole, as the page says: ")


class _Elements(HTMLParser):
    """Tags of a page, with their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, str] = {}
        self.inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))
        self.inside = f"{tag}#{dict(attributes).get('id', '')}"

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""

    def handle_data(self, data: str) -> None:
        self.texts[self.inside] = self.texts.get(self.inside, "") + data


def test_the_page_is_alone_and_names_are_text(page: str) -> None:
    elements = _Elements(page)
    loading = [tag for tag, _ in elements.tags if tag in ("img", "svg", "link", "iframe", "script")]
    assert loading == ["script", "script"]
    for _, attributes in elements.tags:
        assert not any(name.startswith("on") or name in ("src", "style") for name in attributes)
        assert (attributes.get("href") or "#").startswith("#")
    assert not re.search(r"https?:|//\w+\.\w", page.replace("http://www.w3.org/2000/svg", ""))
    data = elements.texts["script#data"]
    assert {*HOSTILE} <= {
        one["name"].removeprefix("extra/names/") for one in contents(page)["items"]
    }
    (policy,) = (
        a["content"] for _, a in elements.tags if a.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy is not None
    assert policy.startswith("default-src 'none'; ")
    for name, place in (("style-src", "style#"), ("script-src", "script#")):
        digest = base64.b64encode(hashlib.sha256(elements.texts[place].encode()).digest()).decode()
        assert f"{name} 'sha256-{digest}'" in policy
    assert not re.search(r"[^ -%'-;=?-~]", data)  # ASCII without <, > and &


def test_the_command(fresh: Fresh, tmp_path: Path) -> None:
    url = fresh("rocksdb")
    saved(url)
    out = tmp_path / "page.html"

    def run(*arguments: str) -> tuple[int, str, str]:
        return command("view", url, "html", *arguments)

    code, printed, errors = run(str(out))
    assert code == 0, errors
    assert printed.startswith(f"wrote {out}, ")
    code, _, errors = run(str(out))
    assert code == 2
    assert "exists already, expected a new file, or --force" in errors
    told = json.loads(run(str(out), "--force", "--json", "--generation", "2")[1])
    assert (told["generation"], told["step"]) == (2, 20)
    assert list(told) == ["url", "namespace", "generation", "step", "time", "files"]
    assert told["files"] == [{"file": str(out), "bytes": out.stat().st_size}]
    assert run(str(tmp_path), "--force")[0] == 2
    assert "there is no folder" in run(str(tmp_path / "no" / "x.html"))[2]
    assert run(str(tmp_path / "y.html"), "--generation", "9")[0] == 3
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".tmp"] == []
    assert not (tmp_path / "y.html").exists()


def test_a_page_that_cannot_have_its_name_leaves_what_was(
    fresh: Fresh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def replace(source: Path, target: Path) -> None:
        assert source.read_text().startswith("<!")
        raise OSError(28, "no space left")

    url, folder = fresh("rocksdb"), tmp_path / "pages"
    saved(url)
    folder.mkdir()
    (folder / "page.html").write_text("mine")
    monkeypatch.setattr(os, "replace", replace)
    done = command("view", url, "html", str(folder / "page.html"), "--force")
    assert done[:2] == (3, "")
    assert [(path.name, path.read_text()) for path in folder.iterdir()] == [("page.html", "mine")]


# --- in a browser ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser(page: str, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    return browser_of(page, tmp_path_factory.mktemp("browser"))


def browser_of(page: str, folder: Path) -> Callable[[str], str]:
    """Return a function that gives the page's elements after its script ran for a fragment."""
    program = next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
    )
    if not program:
        pytest.skip("there is no chromium: apt-get install chromium")
    file = folder / "page.html"
    file.write_text(page, encoding="utf-8")

    def shown(fragment: str) -> str:
        command = [program, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
        command += ["--disable-dev-shm-usage"]
        command += [f"--user-data-dir={folder / 'profile'}", "--enable-logging=stderr"]
        command += [f"{file.as_uri()}#{fragment}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        if not done.stdout:
            unavailable(f"chromium does not run here: {done.returncode} {done.stderr[-3000:]}")
        complaints = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
        assert not complaints, complaints
        return re.sub(r"<script.*?</script>", "", done.stdout, flags=re.DOTALL)

    return shown


def words(page: str, place: str = "main") -> str:
    """The text of an element, markup taken out."""
    found = re.search(rf"<{place}\b.*?</{place}>", page, re.DOTALL)
    assert found
    import html

    return html.unescape(re.sub(r"<[^>]*>", "\n", found[0]))


def listed(url: str) -> list[str]:
    """Return the names that `ls` prints."""
    code, printed, errors = command("view", url, "ls", "--flat")
    assert code == 0, errors
    return [line.split("  ")[0].strip() for line in printed.splitlines()[1:]]


def addresses(name: str) -> list[str]:
    """Return what stands after # for a name: as it is, encoded, and as a browser encodes it."""
    fragments = [
        name,
        quote(name),
        quote(name, safe=""),
        quote(name, safe="/%&+=#?'()[]{};:@!$*,|"),
    ]
    return [f"name={one}" for one in fragments]


def test_the_names_that_ls_prints_open_their_entries(data: dict[str, Any]) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("there is no node: apt-get install nodejs")
    more = ["a+b c", "50%", "100%25", "x&name=y", "q=1"]
    items = [*data["items"], *({"kind": "value", "name": name} for name in more)]
    names = [*listed("memory://page"), *more]
    names += [one["name"] for one in data["items"] if "\ud800" not in one["name"]]
    assert "embeddings/user</script>" in names
    asked = [(name, part) for name in names if name for part in addresses(name)]
    wanted = {one.get("listed", one["name"]): one["name"] for one in reversed(items)}
    program = (
        (files("windeck.cli.page") / "tree.js").read_text(encoding="utf-8")
        + """
    const [items, asked] = JSON.parse(require("fs").readFileSync(0, "utf-8"));
    console.log(JSON.stringify(asked.map((hash) => (itemNamed(items, hash) || {}).name)));
    """
    )
    given = json.dumps([items, [part for _, part in asked] + ["q=1", "n=2", "name=none"]])
    done = subprocess.run(
        [node, "-e", program], input=given, capture_output=True, text=True, check=True
    )
    *found, search, item, missing = json.loads(done.stdout)
    assert [search, item, missing] == [None] * 3
    assert found == [wanted.get(name, name) for name, _ in asked]


def test_names_of_ls_in_an_address(browser: Callable[[str], str]) -> None:
    for part in addresses("embeddings/user</script>"):
        assert "How often ids were looked up" in words(browser(part))
    assert "No such name" in words(browser("name=embeddings/none"), "nav")


def test_a_name_is_searched_for(browser: Callable[[str], str]) -> None:
    page = browser("q=weight")
    told = words(page)
    assert "2 names" in told
    assert "model/layers.0.weight" in told
    assert "model/layers.1.weight" in told
    assert "bias" not in told
    assert "bias" not in words(page, "nav")
    assert "float32 [40, 30]" in words(page, "nav")
    assert "No such name" in words(browser("q=nowhere"), "nav")


def test_values_are_searched_for(browser: Callable[[str], str]) -> None:
    told = words(browser("q=" + quote("abs > 1000")))
    assert re.search(r"model/layers.0.weight\s+\[39, 29\]\s+98765.5", told)
    assert re.search(r"model/layers.0.weight\s+\[11, 21\]\s+-?inf", told)
    assert re.search(r"model/ids\s+\[0\]\s+4611686018427387905", told)
    assert "find --where 'abs > 1000'" in told
    told = words(browser("q=nan"))
    assert re.search(r"model/layers.0.weight\s+\[10, 20\]\s+nan", told)
    assert re.search(r"extra/odd\s+nan", told)
    assert re.search(r"extra/lr\s+0.0003", words(browser("q=" + quote("= 0.0003"))))


def test_a_tensor_and_a_table_are_shown(
    browser: Callable[[str], str], data: dict[str, Any]
) -> None:
    page = browser("name=model/layers.0.weight")
    told = words(page)
    for text in ("float32", "[40, 30]", "Statistics", "Histogram", "Where NaN is", "[10, 20]"):
        assert text in told
    counts = item(data, "model/layers.0.weight")["histogram"]["counts"]
    assert page.count("<rect") == sum(count > 0 for count in counts)
    assert 'aria-current="true"' in page
    table = words(browser("name=" + quote("user</script>")))
    assert "How often ids were looked up" in table
    row = item(data, "user</script>")["head"][5]
    assert row["id"] in table
    found = words(browser("q=" + quote(row["id"])))
    assert "Row of" in found
    assert row["id"] in found


def test_the_overview_and_hostile_names(browser: Callable[[str], str]) -> None:
    page = browser("")
    assert "<title>windeck, step 30</title>" in page  # no script has set another
    told = words(page)
    assert re.search(r"generation\s+step\s+saved", told)
    assert re.search(r"2\s+20\s+\S+ \S+ UTC\s+itself alone\s+a/b, best\s", told)
    assert "model/layers.0.weight" in told
    assert page.count("<img") == page.count("onload=1>") == page.count("<b>7") == 0
    names = words(page, "nav")
    assert "<img src=x onerror=document.title='owned'>" in names
    assert "\\u202egnp.exe" in names
    assert "\u202e" not in page


def test_an_id_that_is_not_on_the_page(browser: Callable[[str], str]) -> None:
    """It may be in the store: the page says how to look there, not that there is no such name."""
    page = browser("q=123456789")
    assert "No such name" not in words(page, "nav")
    assert "Not a name" in words(page, "nav")
    told = words(page)
    assert "The id 123456789 is not among the 100 rows of this table on this page" in told
    assert "windeck view URL row 'user</script>' 123456789" in told
    assert "No such name" in words(browser("q=12345x"), "nav")


def test_an_optimizer_is_folded_and_its_counters_are_not_largest(
    tmp_path: Path, browser: Callable[[str], str]
) -> None:
    shared = torch.nn.Linear(2, 2, bias=False)
    model = torch.nn.ModuleDict({f"layer{i:02}": torch.nn.Linear(2, 2) for i in range(12)})
    model["one"], model["two"] = shared, torch.nn.Linear(2, 2, bias=False)
    model["two"].weight = shared.weight
    optimizer = torch.optim.Adam(model.parameters())
    for layer in (*list(model.values())[:12], shared):
        layer(torch.ones(2)).sum().backward()
    optimizer.step()
    for held in optimizer.state.values():
        held["step"].fill_(12345.0)
    url = f"memory://{tmp_path.name}"
    checkpoint.save(url, step=1, model=model, optimizer=optimizer,
                    extra={"rng": torch.full((9,), 54321)},
                    embeddings={"user": ModelTable(ModelCore(5, 1))})  # fmt: skip
    found = page_of(url, tmp_path)
    page = browser_of(found, tmp_path)("")
    names = words(page, "nav")
    assert names.index("Embedding tables") < names.index("Tensors")
    assert "layer00" in names
    assert "exp_avg" not in names
    assert "optimizer/state/" in names
    assert re.search(r"two.weight\s+= model/one.weight", names)
    told = words(page)
    assert "Largest magnitudes" in told
    assert "12345" not in told
    assert "54321" not in told
    assert "optimizer/state/0/step" in words(browser_of(found, tmp_path)("q=step"))
