"""`windeck view URL diff`, `verify`, `gc` and `copy`."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from support.store_servers import EMBEDDED, need
from support.view_cases import (
    REACHABLE,
    Fresh,
    model,
    refused,
    run,
    run_json,
    saved,
    saved_table,
    url,
)
from windeck import checkpoint
from windeck.checkpoint.stores import open_store

__all__ = ["url"]


def pairs(url: str, prefix: bytes = b"") -> dict[bytes, bytes]:
    with open_store(url) as store:
        return dict(store.scan(prefix))


def contents(url: str, namespace: str) -> dict[bytes, bytes]:
    """Return the values of a namespace, by their keys without it."""
    name = namespace.encode()
    return {
        key.removeprefix(prefix): value
        for prefix in (name + b"/", b"~%s~" % name)
        for key, value in pairs(url, prefix).items()
    }


def test_diff_of_two_generations(url: str) -> None:
    found = run_json(url, "diff", "1", "3", code=1)
    assert (found["url"], found["other"]) == (url, url)
    assert found["first"] == {"generation": 1, "step": 10}
    assert found["second"] == {"generation": 3, "step": 30}
    first, second = model(10), model(30)
    changed = {
        one["name"]: (one["what"], one["changed"], one["elements"], one["index"], one["largest"])
        for one in found["tensors"]
    }
    w = np.argwhere((first["layers.0.w"] != second["layers.0.w"]).numpy())
    assert changed == {
        "model/layers.0.w": ("values", len(w), 60, w[0].tolist(), 20.0),
        "model/layers.1.tied": ("values", len(w), 60, w[0].tolist(), 20.0),
        "model/ids": ("values", 1, 4, [3], 20.0),
    }
    assert found["equal"] == len(first) - 3
    assert (found["values"], found["tables"]) == ([], [])
    code, out, err = run(url, "diff", "1")
    assert (code, err) == (1, "")
    told = out.splitlines()
    assert told[0] == "generation 1 (step 10) and generation 3 (step 30): 6 tensors are equal"
    assert told[3].split() == ["model/layers.0.w", "values", "60", "of", "60", "[0,", "0]", "20"]


def test_diff_of_equal_ones(url: str) -> None:
    assert run_json(url, "diff", "2", "2")["equal"] == 9
    code, out, _ = run(url, "diff", "2", "2")
    assert (code, out.count("\n")) == (0, 1)


def test_diff_of_names_shapes_dtypes_and_values(fresh: Fresh) -> None:
    url = fresh("rocksdb")
    a = {
        "old": torch.zeros(2),
        "shape": torch.zeros(2),
        "dtype": torch.zeros(2),
        "same": torch.ones(1),
    }
    b = {
        "shape": torch.zeros(3),
        "dtype": torch.zeros(2, dtype=torch.float64),
        "same": torch.ones(1),
        "new": torch.zeros(1),
    }
    checkpoint.save(url, step=1, model=a, extra={"lr": 0.5, "gone": 1, "kept": "x"})
    checkpoint.save(url, step=2, model=b, extra={"lr": 0.25, "kept": "x", "came": float("nan")})
    found = run_json(url, "diff", "1", "2", code=1)
    assert {one["name"]: one["what"] for one in found["tensors"]} == {
        "model/old": "only in first",
        "model/shape": "shape",
        "model/dtype": "dtype",
        "model/new": "only in second",
    }
    shapes = {one["name"]: (one["first"], one["second"]) for one in found["tensors"]}
    float32 = {"dtype": "float32", "shape": [2]}
    assert shapes["model/shape"] == (float32, {"dtype": "float32", "shape": [3]})
    assert shapes["model/new"] == (None, {"dtype": "float32", "shape": [1]})
    values = {one["name"]: (one["what"], one["first"], one["second"]) for one in found["values"]}
    assert values == {
        "extra/lr": ("changed", 0.5, 0.25),
        "extra/gone": ("only in first", 1, None),
        "extra/came": ("only in second", None, "nan"),
    }
    out = run(url, "diff", "1", "2")[1]
    assert "float32 [2] -> float64 [2]" in out
    assert ["extra/lr", "changed", "0.5", "0.25"] in [line.split() for line in out.splitlines()]


def test_diff_of_tables(fresh: Fresh) -> None:
    url = saved_table(fresh("rocksdb"))
    (table,) = run_json(url, "diff", "1", "2", code=1)["tables"]
    # Id 7 is gone; of the others, infinity and NaN plus 1 are what they were, the slots are not.
    counts = {"only_first": 1, "only_second": 0, "changed": 4}
    assert table == {"name": "user", **counts, "note": ""}
    out = run(url, "diff", "1", "2")[1]
    assert ["user", "1", "0", "4"] in [line.split() for line in out.splitlines()]


@pytest.mark.parametrize("words", [["{}"], ["1", "{}"], ["{}", "1"]])
def test_diff_of_a_url_names_the_option_for_it(words: list[str], url: str) -> None:
    code, out, err = run(
        url, "diff", *(word.format("redis://user:secret@host/1") for word in words)
    )
    assert (code, out) == (2, "")
    assert "expected a generation or a tag, found a URL: `diff GEN --other URL` compares" in err
    assert "secret" not in err


def test_diff_of_two_stores(fresh: Fresh) -> None:
    first, second = saved(fresh("rocksdb"), 10, 20), saved(fresh("leveldb"), 20, namespace="b")
    options = ("--other", second, "--other-namespace", "b")
    found = run_json(first, "diff", "2", "1", *options)
    assert (found["equal"], found["other"]) == (9, second)
    assert run(first, "diff", "1", "1", *options)[0] == 1
    assert run(first, "diff", "2", *options)[0] == 0
    told = refused(first, "diff", "1", "7", *options, code=3)
    assert told == "there is no generation 7 in b, expected one of 1"
    assert refused(first, "diff", "1", "1", "--other", "ls", code=2).startswith("expected the URL")


def test_verify_of_what_is_whole(url: str) -> None:
    for deep in ([], ["--deep"]):
        found = run_json(url, "verify", *deep)
        assert (found["ok"], found["damages"], found["deep"]) == (True, [], bool(deep))
        assert found["generations"] == [3, 2, 1]
        chunks = len(pairs(url, b"~windeck~"))
        assert found["values"] >= chunks
    code, out, err = run(url, "verify")
    assert (code, err) == (0, "")
    assert out.splitlines()[0].startswith("generations 3, 2, 1: ")
    assert out.splitlines()[1] == "ok"
    assert run_json(url, "verify", "--generation", "2")["generations"] == [2]
    assert "no generation 9" in refused(url, "verify", "--generation", "9", code=3)


def test_verify_finds_damage(url: str) -> None:
    held = pairs(url, b"~windeck~%016x/t/" % 2)
    missing, *_, flipped = held
    with open_store(url) as store:
        value = held[flipped]
        store.delete_many([missing])
        store.put_many([(flipped, value[:-1] + bytes([value[-1] ^ 1]))])
    shallow = run_json(url, "verify", code=1)
    assert [one["key"] for one in shallow["damages"]] == [missing.decode()]
    deep = run_json(url, "verify", "--deep", code=1)
    assert {one["key"]: one["generation"] for one in deep["damages"]} == {
        missing.decode(): 2,
        flipped.decode(): 2,
    }
    assert not deep["ok"]
    code, out, err = run(url, "verify", "--deep")
    assert (code, err) == (1, "")
    assert f"{missing.decode()} is missing, expected a chunk" in out
    assert out.splitlines()[-1] == "damaged: 2 problems"
    assert run(url, "verify")[1].splitlines()[-1] == "damaged: 1 problem"
    assert run_json(url, "verify", "--deep", "--generation", "3")["ok"]


def test_verify_of_a_damaged_head(url: str) -> None:
    with open_store(url) as store:
        store.put_many([(b"windeck/HEAD", b"nonsense")])
    (damage,) = run_json(url, "verify", code=1)["damages"]
    assert damage["key"] == "windeck/HEAD"
    assert run(url, "verify")[1].splitlines()[2].split()[:2] == ["0", "windeck/HEAD"]
    assert refused(url, "ls", code=1).startswith("windeck/HEAD is damaged: found 8 bytes")


def test_verify_tells_what_nobody_refers_to(fresh: Fresh) -> None:
    url = saved(fresh("rocksdb"))
    with open_store(url) as store:
        store.put_many([(b"~windeck~%016x/t/%08x/%08x/%08x" % (9, 0, 0, 0), b"left")])
    assert run_json(url, "verify")["unreferenced"] == 1
    assert run(url, "verify")[1].splitlines()[-1].startswith("1 keys without a reference")


def test_gc(url: str) -> None:
    before = pairs(url)
    dry = run_json(url, "gc", "--keep", "1", "--dry-run")
    assert (dry["kept"], dry["removed"], dry["dry_run"]) == ([3], [1, 2], True)
    assert pairs(url) == before
    assert run(url, "gc", "--keep", "1", "--dry-run")[1].splitlines() == [
        "kept generations 3",
        "would remove from generations 1, 2",
    ]
    found = run_json(url, "gc", "--keep", "2")
    assert (found["kept"], found["removed"], found["dry_run"]) == ([3, 2], [1], False)
    assert {key: before[key] for key in pairs(url, b"~windeck~")} == pairs(url, b"~windeck~")
    assert [one["generation"] for one in run_json(url, "log")["generations"]] == [3, 2]
    assert run(url, "gc", "--keep", "2") == (0, "kept generations 3, 2\nnothing to remove\n", "")
    assert run_json(url, "verify", "--deep")["ok"]


def test_gc_wants_to_know_how_many(url: str) -> None:
    assert run(url, "gc")[0] == 2
    assert run(url, "gc", "--keep", "0")[0] == 2
    told = refused(url, "gc", "--keep", "1", "--namespace", "other", code=3)
    assert told == f"there is no checkpoint at {url}: expected the key other/HEAD"


@pytest.mark.parametrize("options", ["?create=0", "?create=1", "?compression=lz4"])
def test_gc_of_a_store_with_options(options: str, fresh: Fresh) -> None:
    url = saved(fresh("rocksdb"), 1, 2) + options
    assert run_json(url, "gc", "--keep", "1")["removed"] == [1]


def test_gc_beside_a_writer(fresh: Fresh) -> None:
    url = saved(fresh("rocksdb"), 1, 2)
    with open_store(url):
        assert "is open already" in refused(url, "gc", "--keep", "1", code=3)
        assert run_json(url, "gc", "--keep", "1", "--dry-run")["removed"] == [1]


@pytest.mark.usefixtures("forked")
def test_beside_a_process_that_goes_on_saving(fresh: Fresh) -> None:
    url = fresh("rocksdb")
    program = (
        "import sys, torch\n"
        "from windeck import checkpoint\n"
        "with checkpoint.stores.open_store(sys.argv[1]) as store:\n"
        "    for step in range(1, 40):\n"
        "        model = {'w': torch.full((100,), float(step))}\n"
        "        checkpoint.save(store, step=step, model=model, chunk_bytes=64)\n"
        "        if step % 5 == 0: checkpoint.gc(store, keep=2)\n"
        "        print(step, flush=True)\n"
    )
    command = [sys.executable, "-c", program, url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        first, steps = int(process.stdout.readline()), list[int]()
        while process.poll() is None or not steps:
            found = run_json(url, "show", "model/w", "--head", "100")
            assert found["values"] == [float(found["step"])] * 100
            assert run_json(url, "verify", "--deep")["ok"]
            steps.append(found["step"])
    assert process.returncode == 0
    assert first <= steps[0] <= steps[-1] <= 39
    assert steps == sorted(steps)


def test_gc_makes_no_database(fresh: Fresh) -> None:
    for kind in EMBEDDED:
        url = fresh(kind)
        assert "there is no database" in refused(url, "gc", "--keep", "1", code=3)
        assert "there is no database" in refused(url, "gc", "--keep", "1", "--dry-run", code=3)


@pytest.mark.parametrize(("source", "target"), [*itertools.product(REACHABLE, repeat=2)])
def test_copy_from_any_store_to_any_other(fresh: Fresh, source: str, target: str) -> None:
    need(source)
    same = source == target == "redis"
    first = saved(fresh(source), 10, 20)
    second = first if same else fresh(target) if target != "redis" else _other_redis(first, fresh)
    options = ["--to-namespace", "b"] if same else []
    space = "b" if same else "windeck"
    found = run_json(first, "copy", second, *options)
    assert found["generations"] == [2, 1]
    assert (found["target"], found["namespace"]) == (second, space)
    ours, theirs = contents(first, "windeck"), contents(second, space)
    assert theirs == ours
    assert len(ours) > 10
    assert run_json(second, "verify", "--deep", "--namespace", space)["ok"]


def _other_redis(first: str, fresh: Fresh) -> str:
    """Another database of a server; flushing it does not touch an embedded source."""
    return fresh("redis")


def test_copy_of_some_and_over_another(fresh: Fresh) -> None:
    first, second = saved(fresh("rocksdb"), 10, 20, 30), saved(fresh("leveldb"), 7)
    told = refused(first, "copy", second, code=2)
    assert told == (
        f"{second} has a checkpoint in windeck already, expected none, or --replace to remove it "
        "after the copy"
    )
    assert run_json(second, "ls")["step"] == 7
    code, out, err = run(
        first, "copy", second, "--replace", "--generation", "1", "--generation", "3"
    )
    assert (code, err) == (0, "")
    assert out.startswith("copied generations 3, 1: ")
    assert out.endswith(f", to {second}\n")
    assert [one["step"] for one in run_json(second, "log")["generations"]] == [30, 10]
    told = refused(first, "copy", fresh("leveldb"), "--generation", "9", code=3)
    assert told == "there is no generation 9 in windeck, expected one of 3, 2, 1"


def test_copy_onto_itself_and_of_nothing(fresh: Fresh) -> None:
    url = saved(fresh("rocksdb"))
    told = refused(url, "copy", url, code=2)
    assert told == f"source and target are both windeck in {url}, expected two"
    told = refused(url, "copy", "memory://spare", code=2)
    assert told == "memory://spare is lost when the command ends, expected a store that is kept"
    target = fresh("leveldb")
    told = refused(url, "copy", target, "--namespace", "x", code=3)
    assert told == f"there is no checkpoint at {url}: expected the key x/HEAD"
    assert refused(url, "copy", target, "--generation", "2", code=3)
    assert "there is no database" in refused(target, "ls", code=3)  # none was made
    assert refused(url, "copy", "nowhere", code=2).startswith("expected the URL of a store")


def test_a_copy_does_not_replace_its_own_source(fresh: Fresh) -> None:
    url, target = saved(fresh("rocksdb")), fresh("leveldb")
    assert run(url, "copy", target)[0] == 0
    told = refused(url, "copy", target, "--replace", code=2)
    assert told == (
        f"windeck in {target} is the checkpoint to be copied, or a copy of it, expected another "
        "one to replace"
    )
    assert run_json(target, "verify", "--deep")["ok"]


def test_a_copy_of_what_is_damaged_is_not_committed(fresh: Fresh) -> None:
    url, target = saved(fresh("rocksdb")), fresh("leveldb")
    held = pairs(url, b"~windeck~")
    key, value = next(iter(held.items()))
    with open_store(url) as store:
        store.put_many([(key, value[:-1] + bytes([value[-1] ^ 1]))])
    told = refused(url, "copy", target, code=1)
    assert told.startswith(f"{key.decode()} is damaged: found a payload with CRC32C")
    assert "no checkpoint" in refused(target, "ls", code=3)


def test_documents_name_no_password(fresh: Fresh, request: Any) -> None:
    import redis

    url = fresh("redis")
    server = request.getfixturevalue("redis_server")
    server.say("ACL", "SETUSER", "me", "on", ">geheim", "~*", "&*", "+@all")
    login = url.replace("redis://", "redis://me:geheim@")
    saved(login)
    for words in (["ls"], ["log"], ["show", "model/half"], ["verify"], ["gc", "--keep", "1"]):
        code, out, err = run(login, *words, "--json")
        assert code == 0
        assert "geheim" not in out + err
        assert "me:***@" in out
    wrong = refused(login.replace("geheim", "falsch"), "ls", code=3)
    assert "falsch" not in wrong
    server.say("ACL", "DELUSER", "me")
    assert redis is not None


def test_tags_in_place_of_generations(fresh: Fresh, tmp_path: Path) -> None:
    url = saved(fresh("rocksdb"), 10, 20, 30)
    checkpoint.tag(url, "best/val", generation=2)
    named = ["--generation", "best/val"]
    assert run_json(url, "ls", *named)["step"] == 20
    assert run_json(url, "show", "model/layers.0.w", *named)["step"] == 20
    assert run_json(url, "find", "model/layers.0.w", "--nan", *named, code=1)["step"] == 20
    assert (
        run_json(url, "export", str(tmp_path / "w.npy"), "model/layers.0.w", *named)["step"] == 20
    )
    assert run_json(url, "html", str(tmp_path / "page.html"), *named)["step"] == 20
    assert run_json(url, "verify", *named)["generations"] == [2]
    assert run_json(url, "diff", "best/val", "2")["equal"]
    assert run_json(url, "diff", "3", "best/val", code=1)["second"]["generation"] == 2
    assert run_json(url, "copy", fresh("leveldb"), *named)["generations"] == [2]
    for words in (["ls"], ["verify"], ["copy", fresh("leveldb")]):
        told = refused(url, *words, "--generation", "last", code=3)
        assert told == "there is no tag 'last' in windeck, expected one of its tags: best/val"
