"""`windeck view URL ls` and `log`: what is there, from the manifest alone."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from support.programs import assert_not_imported
from support.store_servers import EMBEDDED
from support.view_cases import Fresh, model, refused, run, run_json, saved, url
from windeck import checkpoint
from windeck.checkpoint.format import manifests, state_json
from windeck.checkpoint.stores import open_store
from windeck.columns import DTYPES, item_bytes

__all__ = ["url"]


def test_ls_lists_every_tensor_and_value(url: str) -> None:
    found = run_json(url, "ls")
    assert (found["url"], found["namespace"]) == (url, "windeck")
    assert (found["generation"], found["step"]) == (3, 30)
    assert abs(found["time"] - time.time()) < 3600
    expected = [
        {
            "name": f"model/{name}",
            "dtype": str(tensor.dtype).removeprefix("torch."),
            "shape": list(tensor.shape),
            "bytes": tensor.numel() * tensor.element_size(),
            "data": "model/layers.0.w" if "tied" in name else f"model/{name}",
        }
        for name, tensor in model().items()
    ]
    assert found["tensors"] == expected
    assert found["bytes"] == 327
    assert found["tables"] == []
    assert {value["name"]: value["value"] for value in found["values"]} == {
        "extra/loss": 0.25,
        "extra/bad": "nan",
        "extra/note": "warm\x1b[2Jup",
        "extra/betas": [0.9, 0.99],
        "extra/deep/0/x": 1,
    }


def test_ls_is_a_tree(url: str) -> None:
    code, out, err = run(url, "ls")
    assert (code, err) == (0, "")
    told = out.splitlines()
    assert told[0].startswith("windeck  generation 3  step 30  20")
    assert told[0].endswith("UTC  9 tensors  327 B")
    assert [line.split() for line in told[1:]] == [
        ["model/", "9", "tensors", "327", "B"],
        ["├─", "layers.", "3", "tensors", "260", "B"],
        ["│", "├─", "0.", "2", "tensors", "260", "B"],
        ["│", "│", "├─", "w", "float32", "[12,", "5]", "240", "B"],
        ["│", "│", "└─", "b", "float32", "[5]", "20", "B"],
        ["│", "└─", "1.tied", "float32", "[12,", "5]", "240", "B", "=", "model/layers.0.w"],
        ["├─", "half", "bfloat16", "[2,", "2]", "8", "B"],
        ["├─", "ids", "int64", "[4]", "32", "B"],
        ["├─", "flags", "bool", "[3]", "3", "B"],
        ["├─", "turns", "complex64", "[2]", "16", "B"],
        ["├─", "scalar", "float64", "[]", "8", "B"],
        ["└─", "nothing", "float32", "[0,", "4]", "0", "B"],
        ["extra/"],
        ["├─", "loss", "0.25"],
        ["├─", "bad", "nan"],
        ["├─", "note", "'warm\\x1b[2Jup'"],
        ["├─", "betas", "(0.9,", "0.99)"],
        ["└─", "deep/0/x", "1"],
    ]
    assert run(url) == (0, out, "")


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("model/layers", ["model/layers.0.w", "model/layers.0.b", "model/layers.1.tied"]),
        ("model/layers.0.", ["model/layers.0.w", "model/layers.0.b"]),
        ("model/half", ["model/half"]),
        ("*.w", ["model/layers.0.w"]),
        ("model/[fh]*", ["model/half", "model/flags"]),
        ("extra", []),
    ],
)
def test_ls_of_some(fresh: Fresh, pattern: str, names: list[str]) -> None:
    url = saved(fresh("rocksdb"))
    assert [t["name"] for t in run_json(url, "ls", pattern)["tensors"]] == names
    code, out, _ = run(url, "ls", pattern, "--flat")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()[1 : len(names) + 1]] == names


def test_ls_of_nothing_is_told_by_the_exit_code(fresh: Fresh) -> None:
    url = saved(fresh("rocksdb"))
    assert run_json(url, "ls", "model/layer", code=1)["tensors"] == []
    code, out, _ = run(url, "ls", "model/layer")
    assert code == 1
    assert out.count("\n") == 1


def test_ls_of_some_depth(fresh: Fresh) -> None:
    url = saved(fresh("rocksdb"))
    rows = [line.split() for line in run(url, "ls", "--depth", "1")[1].splitlines()[1:]]
    assert [row[:2] for row in rows] == [["model/", "9"], ["extra/"]]
    shown = [line.split()[1] for line in run(url, "ls", "--depth", "2")[1].splitlines()[2:9]]
    assert shown == ["layers.", "half", "ids", "flags", "turns", "scalar", "nothing"]


def test_ls_of_an_older_generation_and_another_namespace(url: str) -> None:
    saved(url, 77, namespace="runs/b")
    assert run_json(url, "ls", "--generation", "2")["step"] == 20
    assert run_json(url, "ls", "--namespace", "runs/b")["step"] == 77
    told = refused(url, "ls", "--generation", "9", code=3)
    assert told == "there is no generation 9 in windeck, expected one of 3, 2, 1"


def test_log(url: str) -> None:
    with open_store(url) as store:
        commits = checkpoint.log(store)
    found = run_json(url, "log")
    assert (found["url"], found["namespace"]) == (url, "windeck")
    assert [(c["generation"], c["step"]) for c in found["generations"]] == [
        (3, 30),
        (2, 20),
        (1, 10),
    ]
    assert [c["save"] for c in found["generations"]] == [commit.save for commit in commits]
    code, out, err = run(url, "log")
    assert (code, err) == (0, "")
    assert out.splitlines()[0].split() == [
        "generation",
        "step",
        "time",
        "manifest",
        "bases",
        "tags",
    ]
    rows = [line.split() for line in out.splitlines()[1:]]
    assert [(row[0], row[1]) for row in rows] == [("3", "30"), ("2", "20"), ("1", "10")]
    assert [row[-2:] == ["in", "force"] for row in rows] == [True, False, False]


def test_tags_are_shown(fresh: Fresh) -> None:
    url = saved(fresh("rocksdb"), 1, 2, 3)
    for tag, generation in (("best", 2), ("a/b", 2), ("last", 3)):
        checkpoint.tag(url, tag, generation=generation)
    log = run_json(url, "log")["generations"]
    assert [found["tags"] for found in log] == [["last"], ["a/b", "best"], []]
    rows = [line.split() for line in run(url, "log")[1].splitlines()[1:]]
    assert [row[-3:] for row in rows[:2]] == [["last", "in", "force"], ["B", "a/b,", "best"]]
    assert rows[2][-1] == "B"
    for generation, tags in ((3, ["last"]), (2, ["a/b", "best"]), (1, [])):
        option = ("--generation", str(generation))
        assert run_json(url, "ls", *option)["tags"] == tags
        head = run(url, "ls", *option)[1].splitlines()[0]
        assert head.endswith(f"B  tags {', '.join(tags)}" if tags else " B")
    found = run_json(url, "gc", "--keep", "1")
    assert (found["kept"], found["removed"]) == ([3, 2], [1])


def test_log_tells_what_a_generation_is_based_on(fresh: Fresh) -> None:
    url = fresh("rocksdb")
    weights = torch.zeros(3, 20)
    for step in range(3):
        weights[step] = 1
        checkpoint.save(url, step=step, model={"w": weights}, chunk_bytes=80, incremental=True)
    assert [found["bases"] for found in run_json(url, "log")["generations"]] == [[1, 2], [1], []]
    code, out, err = run(url, "log")
    assert (code, err) == (0, "")
    rows = [line.split() for line in out.splitlines()[1:]]
    assert rows[0][-4:] == ["1,", "2", "in", "force"]
    assert [rows[1][-1], rows[1][-2]] == ["1", "B"]
    assert rows[2][-1] == "B"


@pytest.mark.parametrize("command", ["ls", "log"])
def test_where_nothing_is(fresh: Fresh, tmp_path: Path, command: str) -> None:
    with open_store(fresh("rocksdb")) as store:
        empty = store.url
    for place in (empty, f"{empty}?compression=none", fresh("leveldb"), fresh("redis")):
        open_store(place).close()
        told = f"there is no checkpoint at {place}: expected the key windeck/HEAD"
        assert refused(place, command, code=3) == told
    for scheme in EMBEDDED:
        words = refused(f"{scheme}://{tmp_path}/none", command, code=3)
        assert words == f"there is no database at {scheme}://{tmp_path}/none"
        assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("ls", "expected the URL of a store, such as rocksdb:///path, got a text that has no ://"),
        ("rockdb:///x", "no store has URLs that begin with rockdb://: .* did you mean rocksdb?"),
        ("rocksdb:///x?creat=1", "rocksdb:// URLs have no option 'creat': .* did you mean create?"),
        ("redis://u:geheim@h:x/", "the host and port of a redis:// URL cannot be read"),
    ],
)
def test_a_url_that_is_none(url: str, words: str) -> None:
    told = refused(url, "ls", code=2)
    head, _, tail = words.partition(" .* ")
    assert told.startswith(head)
    assert tail in told
    assert "geheim" not in told


def test_a_server_that_is_not_there_and_a_password_that_is_not_shown() -> None:
    told = refused("redis://me:geheim@127.0.0.1:1/0", "ls", code=3)
    assert told.startswith("redis://me:***@127.0.0.1:1/0 cannot be reached: ")
    assert "geheim" not in told


def test_a_namespace_that_cannot_be(fresh: Fresh) -> None:
    url = saved(fresh("rocksdb"))
    for command in ("ls", "log"):
        told = refused(url, command, "--namespace", "a b", code=2)
        assert told.startswith("expected a namespace of 1 to 200 letters, digits")


@pytest.mark.parametrize("arguments", [["deal"], ["ls", "--depth", "0"], ["ls", "--depth", "x"]])
def test_what_is_not_understood(fresh: Fresh, arguments: list[str]) -> None:
    assert run(saved(fresh("rocksdb")), *arguments)[0] == 2


def test_a_damaged_manifest(url: str) -> None:
    key = b"windeck/m/%016x" % 3
    with open_store(url) as store:
        value = store.get(key)
        assert value is not None
        store.put_many([(key, value[:-1] + b"?")])
    told = refused(url, "ls", code=1)
    assert told.startswith(f"{key.decode()} is damaged: found a payload with CRC32C ")
    assert run_json(url, "log")["generations"][0]["generation"] == 3


def test_beside_the_process_that_writes(fresh: Fresh) -> None:
    url = fresh("rocksdb")
    with open_store(url) as store:
        for step in (1, 2):
            checkpoint.save(store, step=step, model=model(step))
            assert run_json(url, "ls")["step"] == step
    url = saved(fresh("leveldb"))
    with open_store(url):
        assert "is open already" in refused(url, "ls", code=3)


@pytest.mark.parametrize("command", ["ls", "log"])
def test_torch_and_numpy_stay_outside(fresh: Fresh, command: str) -> None:
    url = saved(fresh("rocksdb"))
    heavy = {"torch", "numpy", "pyarrow", "rich", "matplotlib"}
    assert_not_imported(heavy, "view", url, command)


@pytest.mark.parametrize("arguments", [("ls",), ("ls", "--json")])
def test_a_reader_that_goes_away(fresh: Fresh, arguments: tuple[str, ...]) -> None:
    url = fresh("rocksdb")
    names = {f"tensor.{i:06d}.{'x' * 60}": torch.zeros(0) for i in range(2000)}
    checkpoint.save(url, step=1, model=names)
    command = [sys.executable, "-m", "windeck", "view", url, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(10)
        process.stdout.close()
        told = process.stderr.read()
    assert (process.returncode, told) == (141, b"")


def test_bytes_of_every_dtype_of_torch() -> None:
    known = {v for v in vars(torch).values() if isinstance(v, torch.dtype)}
    for dtype in known:
        assert item_bytes(str(dtype).removeprefix("torch.")) == dtype.itemsize
    assert item_bytes("float256") is None
    assert len(DTYPES) >= len(known)


def test_a_dtype_of_a_later_torch(fresh: Fresh, monkeypatch: pytest.MonkeyPatch) -> None:
    url, half = fresh("rocksdb"), torch.zeros(7, 31, dtype=torch.bfloat16)
    checkpoint.save(url, step=1, model={"half": half, "ids": torch.arange(4)})
    monkeypatch.delitem(DTYPES, "bfloat16")
    found = {t["name"]: t["bytes"] for t in run_json(url, "ls")["tensors"]}
    assert found == {"model/half": None, "model/ids": 32}
    (line,) = (line for line in run(url, "ls")[1].splitlines() if "half" in line)
    assert line.split()[-1] == "?"


#: A line of a tree of tensors of bytes: its guides and label, bytes of a tensor, those of a group.
LINE = re.compile(r"([│ ]*(?:[├└]─ )?)(\S*) +(?:uint8 +\[\d+\] +(\d+) B|(\d+) tensors? +(\d+) B)")


def tree(sizes: Mapping[str, int], *options: str) -> list[tuple[str, str, int | None, int, int]]:
    """Return the guides, label, bytes of a tensor, count of tensors and bytes of each line."""
    tensors = {name: torch.zeros(size, dtype=torch.uint8) for name, size in sizes.items()}
    checkpoint.save("memory://tree", step=1, model=tensors, keep=1)
    code, out, err = run("memory://tree", "ls", *options)
    assert (code, err) == (0, "")
    lines = []
    for line in out.splitlines()[1:]:
        found = LINE.fullmatch(line)
        assert found, line
        guides, label, own, count, held = found.groups()
        size = None if own is None else int(own)
        lines.append((guides, label, size, int(count or 1), int(held or own)))
    return lines


def labels(sizes: Mapping[str, int]) -> list[tuple[str, int]]:
    """Return each line with its guides, and its bytes."""
    return [(guides + label, held) for guides, label, _, _, held in tree(sizes)]


def test_the_tree_of_names_that_begin_alike() -> None:
    names = ["a", "a.b", "a.c.d.e", "f..g", "/h/", "a.c.d.z"]
    assert labels(dict.fromkeys(names, 2)) == [
        ("model/", 12),
        ("├─ a", 2),
        ("├─ a.", 6),
        ("│  ├─ b", 2),
        ("│  └─ c.d.", 4),
        ("│     ├─ e", 2),
        ("│     └─ z", 2),
        ("├─ f..g", 2),
        ("└─ /h/", 2),
    ]


def test_groups_that_are_the_same_inside_but_for_what_stands_beside() -> None:
    names = [f"{layer}.{name}" for layer in "abc" for name in ("v", "x.y", "x.z")]
    sizes = dict(zip(names, [1, 1, 2, 1, 2, 1, 1, 1, 2], strict=True))
    first = [("│  ├─ v", 1), ("│  └─ x.", 3), ("│     ├─ y", 1), ("│     └─ z", 2)]
    second = [("│  ├─ v", 1), ("│  └─ x.", 3), ("│     ├─ y", 2), ("│     └─ z", 1)]
    last = [("   ├─ v", 1), ("   └─ x.", 3), ("      ├─ y", 1), ("      └─ z", 2)]
    groups = [("├─ a.", 4), *first, ("├─ b.", 4), *second, ("└─ c.", 4), *last]
    assert labels(sizes) == [("model/", 12), *groups]


def test_the_tree_of_a_name_that_is_the_beginning_of_another() -> None:
    assert labels({"a/": 2, "a/b": 3}) == [("model/a/", 5), ("├─ ", 2), ("└─ b", 3)]
    assert labels({"a/b": 3, "a/": 2}) == [("model/a/", 5), ("├─ b", 3), ("└─ ", 2)]


def test_the_same_name_twice_is_two_lines() -> None:
    checkpoint.save("memory://twice", step=1, extra={"a": {"b": 1}, "a/b": 2})
    told = [line.split() for line in run("memory://twice", "ls")[1].splitlines()[1:]]
    assert told == [["extra/a/"], ["├─", "b", "1"], ["└─", "b", "2"]]


def test_names_of_ten_thousand_dots() -> None:
    names = ["." * n for n in (10_000, 9_999, 3)]
    assert sum(size is not None for _, _, size, _, _ in tree(dict.fromkeys(names, 2))) == 3


def test_sizes() -> None:
    texts = {
        0: "0 B",
        1000: "1.00 kB",
        9_994: "9.99 kB",
        9_996: "10.0 kB",
        99_960: "100 kB",
        999_600: "1.00 MB",
    }
    checkpoint.save(
        "memory://sizes",
        step=1,
        model={f"w{count}": torch.zeros(count, dtype=torch.uint8) for count in texts},
    )
    lines = run("memory://sizes", "ls", "--flat")[1].splitlines()
    assert [" ".join(line.split()[-2:]) for line in lines[1:]] == [*texts.values()]
    assert lines[0].endswith("1.12 MB")


def test_a_catalog_says_the_same_of_tensors_as_the_manifest(fresh: Fresh) -> None:
    with open_store(saved(fresh("rocksdb"))) as store:
        commit = manifests.find_commit(store, "windeck", None)
        whole = manifests.read_manifest(store, "windeck", commit)
        short = manifests.read_catalog(store, "windeck", commit)
    assert {
        name: (entry.dtype, entry.shape, entry.chunk_bytes)
        for name, entry in whole["tensors"].items()
    } == {name: short.kinds[number] for name, number in short.tensors.items()}
    for root, pairs in whole["places"].items():
        assert pairs == list(zip(short.names[root], short.data[root], strict=True))
        assert pairs == list(state_json.iter_tensors(whole["trees"][root], root))


@given(
    st.lists(st.text("ab./", max_size=9), min_size=1, max_size=9, unique=True),
    st.none() | st.integers(1, 4),
)
def test_names_can_be_read_off_any_tree(names: list[str], depth: int | None) -> None:
    path: list[str] = []
    seen: list[tuple[str, int]] = []
    deepest = 0
    options = () if depth is None else ("--depth", str(depth))
    for guides, label, size, below, held in tree(
        {n: 1 << i for i, n in enumerate(names)}, *options
    ):
        level = len(guides) // 3
        path[level:] = [label]
        deepest = max(deepest, level)
        if size is not None:
            seen.append(("".join(path), size))
            continue
        inside = [name for name in names if f"model/{name}".startswith("".join(path))]
        assert below <= len(inside)
        if depth is not None and level == depth - 1:  # folded: told by its totals
            seen += [("".join(path), 1 << i) for i in range(len(names)) if held >> i & 1]
            assert below == bin(held).count("1")
    assert depth is None or deepest < depth
    expected = [(f"model/{name}", 1 << i) for i, name in enumerate(names)]
    if depth is None:
        assert sorted(seen) == sorted(expected)
    else:
        assert sorted(held for _, held in seen) == sorted(held for _, held in expected)
