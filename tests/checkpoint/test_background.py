"""Tests of saves in the background: consistent, waited for, and their errors reported."""

from __future__ import annotations

import _thread
import gc
import re
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from support.checkpoint_parts import make_foreign
from support.internals import plant
from support.programs import printed
from support.store_servers import DURABLE, EMBEDDED
from support.training import Training, assert_equal, loaded, values_of
from windeck import checkpoint
from windeck.checkpoint.stores import open_store
from windeck.checkpoint.write import LentTensors

Fresh = Callable[[str], str]


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    """Leave no save and no error to the next test."""
    yield
    checkpoint.wait(60)
    checkpoint.wait(0)


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[Any]]:
    """Return a function that returns the memory of bytes that was made since, and is still held."""
    made, plain = list[weakref.ref[Any]](), np.empty

    def recorded(shape: Any, dtype: Any = float, **options: Any) -> Any:
        memory = plain(shape, dtype, **options)
        if dtype is np.uint8:
            made.append(weakref.ref(memory))
        return memory

    monkeypatch.setattr(np, "empty", recorded)
    return lambda: [memory for ref in made if (memory := ref()) is not None]


class Gated:
    """Store whose writes of data wait until `gate` is set."""

    def __init__(self, store: Any, error: BaseException | None = None) -> None:
        self.store, self.error = store, error
        self.gate, self.reached = threading.Event(), threading.Event()
        self.order = list[str]()

    def bulk_load(self, items: Any) -> Any:
        self.reached.set()
        assert self.gate.wait(60)
        if self.error is not None:
            raise self.error
        self.order.append("load")
        return self.store.bulk_load(items)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)


def memory() -> Any:
    return Gated(open_store("memory://"))


def failing(text: str) -> Any:
    found = Gated(open_store("memory://"), OSError(28, text))
    found.gate.set()
    return found


@pytest.mark.parametrize("kind", ["memory", *EMBEDDED, "redis"])
@pytest.mark.parametrize("incremental", [False, True])
def test_every_checkpoint_is_of_the_moment_of_the_call(
    kind: str, incremental: bool, fresh: Fresh
) -> None:
    url, training, expected = fresh(kind), Training(), dict[int, Any]()
    with open_store(url) as store:
        place: Any = store if kind == "memory" else url
        for _ in range(4):
            for _ in range(3):
                training.step()
            step = training.loader["position"]
            now = values_of(training)
            saving = checkpoint.save(
                store, step=step, **training.state, background=True, incremental=incremental,
                chunk_bytes=256,
            )  # fmt: skip
            while not saving.done():
                training.step()
            expected[saving.wait()] = now
        for generation, values in expected.items():
            assert_equal(loaded(store, generation), values)
    if kind != "memory":
        saving = checkpoint.save(place, step=10**9, **training.state, background=True)
        now = values_of(training)
        training.step()
        assert saving.wait() == 5
        assert_equal(loaded(place), now)


@pytest.mark.parametrize("incremental", [False, True])
def test_training_at_full_speed_while_saving(incremental: bool) -> None:
    """Another thread trains and evicts all the time, between the calls too."""
    store, training, turn = open_store("memory://"), Training(), threading.Lock()
    stopped = threading.Event()

    def train() -> None:
        while not stopped.is_set():
            with turn:
                training.step()

    worker = threading.Thread(target=train)
    worker.start()
    expected = dict[int, Any]()
    try:
        for step in range(25):
            with turn:
                now = values_of(training)
                saving = checkpoint.save(
                    store, step=step, **training.state, background=True, incremental=incremental,
                    background_bytes=None if step % 2 else 4000,
                )  # fmt: skip
            expected[step + 1] = now
        assert saving.wait() == 25
    finally:
        stopped.set()
        worker.join()
    for generation, values in expected.items():
        assert_equal(loaded(store, generation), values)
    assert checkpoint.verify(store, deep=True).ok


def test_the_bytes_are_those_of_a_plain_save() -> None:
    training = Training()
    for _ in range(5):
        training.step()
    found = []
    for options in ({}, {"background": True}, {"background": True, "background_bytes": 5000}):
        store = open_store("memory://")
        checkpoint.save(store, step=1, **training.state, **options)
        checkpoint.wait()
        found.append(
            {
                key: re.sub(rb'"save":\d+', b"", value[64:])
                for key, value in store.scan(b"")
                if key != b"windeck/HEAD"
            }
        )
    assert found[0] == found[1]
    assert found[2].keys() == found[0].keys()  # those that were not copied have lower numbers
    assert {key for key in found[0] if b"/t/" not in key and found[0][key] != found[2][key]} == {
        b"windeck/m/0000000000000001"
    }


def test_an_incremental_save_refers_to_the_one_before() -> None:
    found, choices = [], list[dict[str, Any]]([{}, {"background": True}])
    for options in choices:
        store, training = open_store("memory://"), Training()
        sizes = list[int]()
        for step in range(4):
            training.step()
            before = sum(len(value) for _, value in store.scan(b""))
            checkpoint.save(
                store, step=step, **training.state, incremental=True, chunk_bytes=256, **options
            )
            checkpoint.wait()
            sizes.append(sum(len(value) for _, value in store.scan(b"")) - before)
        found.append((sizes, [commit.bases for commit in checkpoint.log(store)]))
    (plain, bases), (background_sizes, background_bases) = found
    assert bases == background_bases == [(2, 3), (2,), (), ()]
    # Numbers of saves are written with 17 to 19 digits.
    for one, other in zip(plain, background_sizes, strict=True):
        assert abs(one - other) < 60


def test_the_second_waits_for_the_first() -> None:
    first, second = memory(), memory()
    weights = torch.zeros(100)
    one = checkpoint.save(first, step=1, model={"w": weights}, background=True)
    assert first.reached.wait(60)
    assert not one.done()
    with pytest.raises(TimeoutError, match="the background save of step 1 is in progress after 0"):
        one.wait(0)
    with pytest.raises(TimeoutError):
        checkpoint.wait(0.01)
    assert repr(one) == "<BackgroundSave of step 1, in progress>"
    second.gate.set()
    threading.Timer(0.05, lambda: (first.order.append("opened"), first.gate.set())).start()
    two = checkpoint.save(second, step=2, model={"w": weights}, background=True)
    assert one.done()
    assert first.order == ["opened", "load"]
    assert two.wait() == one.wait() == 1
    assert repr(two) == "<BackgroundSave of step 2, done>"
    # A plain save waits too.
    third = memory()
    three = checkpoint.save(third, step=3, model={"w": weights}, background=True)
    threading.Timer(0.05, third.gate.set).start()
    assert checkpoint.save(third, step=4, model={"w": weights}) == 2
    assert three.done()
    assert [commit.step for commit in checkpoint.log(third)] == [4, 3]


def raised_by_wait(saving: Any) -> None:
    saving.wait()


def raised_by_module(saving: Any) -> None:
    checkpoint.wait()


def raised_by_plain(saving: Any) -> None:
    checkpoint.save(open_store("memory://"), step=1, extra={})


def raised_by_background(saving: Any) -> None:
    checkpoint.save(open_store("memory://"), step=1, extra={}, background=True)


def raised_by_begin(saving: Any) -> None:
    checkpoint.begin(open_store("memory://"), step=1, writers=2)


@pytest.mark.parametrize(
    "act",
    [raised_by_wait, raised_by_module, raised_by_plain, raised_by_background, raised_by_begin],
)
def test_an_error_is_raised_once_by_what_comes_next(act: Callable[[Any], None]) -> None:
    saving = checkpoint.save(
        failing("no space"), step=9, model={"w": torch.ones(3)}, background=True
    )
    with pytest.raises(OSError, match="no space") as caught:
        act(saving)
    assert saving.done()
    assert repr(saving) == "<BackgroundSave of step 9, failed>"
    if sys.version_info >= (3, 11) and "wait" not in act.__name__ and "module" not in act.__name__:
        assert "the background save of step 9" in caught.value.__notes__[0]
    checkpoint.wait()  # not again
    assert checkpoint.save(open_store("memory://"), step=1, extra={}) == 1
    with pytest.raises(OSError, match="no space"):  # but by this one, whose result it is
        saving.wait()


def test_an_error_is_kept_if_the_result_is_dropped() -> None:
    checkpoint.save(failing("dropped"), step=9, model={"w": torch.ones(3)}, background=True)
    gc.collect()
    with pytest.raises(OSError, match="dropped"):
        checkpoint.save(open_store("memory://"), step=1, extra={})


def test_what_is_wrong_in_the_call_is_raised_by_the_call() -> None:
    store = open_store("memory://")
    for options, kind, text in (
        ({"extra": {"x": object()}}, TypeError, "extra/x is of type object"),
        ({"embeddings": {"t": 3}}, TypeError, "embeddings/t must be a table"),
        ({"step": -1}, ValueError, "`step` must be at least 0"),
        ({"background": 1}, TypeError, "`background` must be a bool, got int"),
        (
            {"background_bytes": 2.5},
            ValueError,
            "`background_bytes` must be a whole number",
        ),
        ({"background_bytes": -1}, ValueError, "`background_bytes` must be at least 0, got -1"),
        ({"background": False, "background_bytes": 1}, ValueError, "needs background=True, got 1"),
    ):
        given: dict[str, Any] = {"step": 1, "background": True, **options}
        with pytest.raises(kind, match=text):
            checkpoint.save(store, **given)
    assert list(store.keys()) == []


def test_options_have_their_effects() -> None:
    store, weights = open_store("memory://"), torch.arange(5.0)

    def save(step: int, **options: Any) -> int:
        found: Any = checkpoint.save(
            store, step=step, model={"w": weights}, background=True, **options
        )
        number: int = found.wait()
        return number

    assert [save(step, keep=2, keep_every=3) for step in range(1, 6)] == [1, 2, 3, 4, 5]
    assert save(6, tag="best") == 6
    assert [(c.step, c.tags) for c in checkpoint.log(store)] == [
        (6, ("best",)),
        (5, ()),
        (4, ()),
        (3, ()),
    ]
    with pytest.raises(ValueError, match="`step` must be at least 6"):
        save(2)
    assert save(2, lower_step=True) == 7
    assert save(3, namespace="other") == 1


def test_another_run_is_refused_and_takeover() -> None:
    store = open_store("memory://")
    checkpoint.save(store, step=1, extra={})
    make_foreign(store)
    saving = checkpoint.save(store, step=2, extra={}, background=True)
    with pytest.raises(RuntimeError, match="saved by another run"):
        saving.wait()
    saving = checkpoint.save(store, step=2, extra={}, background=True, takeover=True)
    assert saving.wait() > 1


def test_tensors_that_do_not_fit_are_written_before_the_call_returns(
    copies: Callable[[], list[Any]],
) -> None:
    store = open_store("memory://")
    gate, written = threading.Event(), list[bytes]()

    class Slow:
        def bulk_load(self, items: Any) -> Any:
            def slowly() -> Iterator[Any]:
                for key, value in items:
                    if bytes(value)[64:68] == b"\0\0\0\0":  # of `b`, which is copied
                        assert gate.wait(60)
                    written.append(key)
                    yield key, value

            return store.bulk_load(slowly())

        def __getattr__(self, name: str) -> Any:
            return getattr(store, name)

    place: Any = Slow()
    big, small = torch.ones(1000), torch.zeros(10)
    saving = checkpoint.save(
        place, step=1, model={"b": small, "a": big}, chunk_bytes=400, background=True,
        background_bytes=3999,
    )  # fmt: skip
    assert len(written) == 10  # all of `a`
    assert not saving.done()
    big.zero_()
    small.fill_(5)
    gate.set()
    saving.wait()
    target = {"b": torch.full((10,), 9.0), "a": torch.zeros(1000)}
    checkpoint.load(store, model=target)
    assert bool((target["a"] == 1).all())
    assert bool((target["b"] == 0).all())
    # Of the copies there were no more bytes than allowed; they are kept for the next save.
    assert [*map(len, copies())] == [64]
    checkpoint.wait()
    assert copies() == []


def test_nothing_is_committed_if_the_call_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    store = memory()
    weights = torch.ones(1000)

    def wait(self: LentTensors) -> None:
        store.reached.wait(60)
        raise KeyboardInterrupt

    plant(monkeypatch, "copies.LentTensors.wait", wait)
    with pytest.raises(KeyboardInterrupt):
        checkpoint.save(store, step=1, model={"w": weights}, background=True, background_bytes=0)
    weights.zero_()
    store.gate.set()
    with pytest.raises(RuntimeError, match="the call of save was interrupted"):
        checkpoint.wait()
    assert checkpoint.log(store) == []


@pytest.mark.parametrize("limit", [0, None])
def test_a_call_that_is_interrupted_as_its_thread_starts(
    limit: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The save is waited for; it commits only what was copied before."""
    store, weights, start = memory(), torch.ones(1000), _thread.start_new_thread

    def interrupted(call: Callable[[], None], arguments: tuple[()]) -> None:
        start(call, arguments)
        assert store.reached.wait(60)
        raise KeyboardInterrupt

    monkeypatch.setattr(_thread, "start_new_thread", interrupted)
    with pytest.raises(KeyboardInterrupt):
        checkpoint.save(
            store, step=1, model={"w": weights}, background=True, background_bytes=limit
        )
    weights.zero_()
    threading.Timer(0.05, store.gate.set).start()
    if limit == 0:
        with pytest.raises(RuntimeError, match="the call of save was interrupted"):
            checkpoint.wait()
        assert checkpoint.log(store) == []
    else:
        checkpoint.wait()
        assert checkpoint.load(store, model={"w": weights}).step == 1
        assert bool((weights == 1).all())


def test_a_call_that_is_interrupted_before_its_thread_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, training = open_store("memory://"), Training()
    training.step()
    calls = list[Callable[[], None]]()

    def interrupted(call: Callable[[], None], arguments: tuple[()]) -> None:
        calls.append(call)
        raise KeyboardInterrupt

    monkeypatch.setattr(_thread, "start_new_thread", interrupted)
    with pytest.raises(KeyboardInterrupt):
        checkpoint.save(store, step=1, **training.state, background=True)
    monkeypatch.undo()
    calls[0]()  # a thread that was started nevertheless finds nothing to do
    checkpoint.wait(1)
    assert checkpoint.log(store) == []
    assert checkpoint.save(store, step=2, **training.state, background=True).wait() == 1


def test_memory_of_copies_is_used_again(copies: Callable[[], list[Any]]) -> None:
    store, weights = open_store("memory://"), torch.ones(1000)
    checkpoint.save(store, step=1, model={"w": weights}, background=True).wait()
    (first,) = copies()
    checkpoint.save(store, step=2, model={"w": weights + 1}, background=True).wait()
    assert [memory is first for memory in copies()] == [True]
    del first
    # Not if it is more than twice what is needed, or less.
    checkpoint.save(store, step=3, model={"w": weights[:100]}, background=True).wait()
    assert [*map(len, copies())] == [448]
    target = {"w": torch.zeros(1000)}
    checkpoint.load(store, model=target, generation=2)
    assert bool((target["w"] == 2).all())
    # Nor if it is more than the limit.
    model = {"w": weights[:100], "v": weights[:80]}
    checkpoint.save(store, step=4, model=model, background=True).wait()
    assert [*map(len, copies())] == [768]
    checkpoint.save(store, step=5, model=model, background=True, background_bytes=500).wait()
    assert [*map(len, copies())] == [448]


@pytest.mark.parametrize("kind", DURABLE)
def test_maintenance_and_readers_wait_where_they_must(kind: str, fresh: Fresh) -> None:
    url, weights = fresh(kind), torch.ones(300_000)
    for step in range(3):
        checkpoint.save(url, step=step, model={"w": weights}, background=True)
    assert checkpoint.gc(url, keep=1) == [1, 2]
    checkpoint.save(url, step=4, model={"w": weights}, background=True)
    assert checkpoint.tag(url, "best") == 4
    checkpoint.save(url, step=5, model={"w": weights}, background=True)
    steps = [commit.step for commit in checkpoint.log(url)]
    assert steps in ([[5, 4, 2]] if kind == "leveldb" else [[5, 4, 2], [4, 2]])
    checkpoint.wait()
    checkpoint.copy(url, "memory://")
    assert [commit.step for commit in checkpoint.log(url)] == [5, 4, 2]


AT_EXIT = """
import atexit, sys, time
import torch
from windeck import checkpoint
from windeck.checkpoint.stores import open_store

class Slow:
    def __init__(self, store):
        self.store = store
    def bulk_load(self, items):
        time.sleep(0.3)
        if sys.argv[2] == "fail":
            raise OSError(28, "no space left for the test")
        return self.store.bulk_load(items)
    def __getattr__(self, name):
        return getattr(self.store, name)

weights = torch.ones(400_000)
store = Slow(open_store(sys.argv[1]))
checkpoint.save(store, step=7, model={"w": weights}, background=True, incremental=True)
weights.zero_()
print("last line", end="")                  # in the buffer
if sys.argv[2] == "raise":
    raise KeyError("of the program")
if sys.argv[2] == "fail":
    atexit.register(print, ", and one at exit", end="", flush=True)
    sys.exit(int(sys.argv[3]))
"""


@pytest.mark.usefixtures("finalized")
@pytest.mark.parametrize(
    ("kind", "how", "status", "found"),
    [
        ("rocksdb", "end", "0", 0),
        ("leveldb", "fail", "0", 120),
        ("rocksdb", "fail", "3", 120),
        ("redis", "raise", "0", 1),
    ],
)
def test_exit_waits_and_reports(kind: str, how: str, status: str, found: int, fresh: Fresh) -> None:
    """The status of a program whose last save failed is that of an error of the cleanup."""
    url = fresh(kind)
    done = subprocess.run(
        [sys.executable, "-c", AT_EXIT, url, how, status], capture_output=True, text=True,
        check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == found, done.stderr
    assert done.stdout == "last line" + ", and one at exit" * (how == "fail")
    if how == "fail":
        assert "windeck: step 7 was not saved: its background save failed" in done.stderr
        assert "no space left for the test" in done.stderr
        assert "step 7 was not saved, so the exit status is 120" in done.stderr
        assert checkpoint.log(url) == []
        return
    assert "windeck:" not in done.stderr
    assert ("of the program" in done.stderr) == (how == "raise")
    target = {"w": torch.zeros(400_000)}
    assert checkpoint.load(url, model=target).step == 7
    assert bool((target["w"] == 1).all())


AFTER_MAIN = """
import sys, threading, time
import torch
from windeck import checkpoint

def first():
    checkpoint.save("memory://a", step=1, model={"w": torch.ones(10)}, background=True)

def train():
    threading.main_thread().join()
    time.sleep(0.3)                             # the functions at exit were called
    if sys.argv[1] == "after":
        first()
    checkpoint.save("redis://127.0.0.1:1/0", step=2, model={"w": torch.ones(10)}, background=True)

if sys.argv[1] == "before":
    first()
threading.Thread(target=train).start()
"""


@pytest.mark.usefixtures("finalized")
@pytest.mark.parametrize("first", ["before", "after"])
def test_an_error_after_the_end_of_the_main_thread_is_reported(first: str) -> None:
    """Threads that are no daemons go on, and may save."""
    done = subprocess.run(
        [sys.executable, "-c", AFTER_MAIN, first], capture_output=True, text=True, check=False,
        timeout=300,
    )  # fmt: skip
    assert done.returncode == 120, done.stderr
    assert "windeck: step 2 was not saved: its background save failed" in done.stderr
    assert "127.0.0.1" in done.stderr


FORKS = """
import os, sys, threading
import torch
from windeck import checkpoint
from windeck.checkpoint.stores import open_store

class Gated:
    gate, reached = threading.Event(), threading.Event()
    def __init__(self, store):
        self.store = store
    def bulk_load(self, items):
        self.reached.set()
        assert self.gate.wait(60)
        return self.store.bulk_load(items)
    def __getattr__(self, name):
        return getattr(self.store, name)

store = Gated(open_store(sys.argv[1]))
saving = checkpoint.save(store, step=7, model={"w": torch.ones(400_000)}, background=True)
assert store.reached.wait(60)
pid = os.fork()
if pid == 0:
    checkpoint.wait()                       # nothing to wait for here
    try:
        saving.wait()
    except RuntimeError as error:
        assert "belongs to process" in str(error)
        with open_store("memory://") as own:
            assert checkpoint.save(own, step=1, extra={}, background=True).wait() == 1
        os._exit(5)
    os._exit(6)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 5
Gated.gate.set()
assert saving.wait() == 1
store.close()
"""


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize("kind", DURABLE)
def test_a_fork_leaves_the_save_to_its_parent(kind: str, fresh: Fresh) -> None:
    url = fresh(kind)
    printed(FORKS, url)
    assert [commit.step for commit in checkpoint.log(url)] == [7]


MEMORY = """
import sys, torch
from windeck import checkpoint
from windeck.checkpoint.stores import open_store

def mark(name):
    status = open("/proc/self/status").read()
    return int(status.split(name + ":")[1].split()[0]) / 1024

model = {f"w{i}": torch.ones(1 << 20) for i in range(32)}            # 4 MiB each
with open_store(sys.argv[1]) as store:
    warm = {"w": torch.ones(16 << 20)}                              # what the store needs itself
    checkpoint.save(store, step=1, model=warm)
    del warm
    for most in map(int, sys.argv[2:]):
        checkpoint.wait()
        open("/proc/self/clear_refs", "w").write("5")
        before = mark("VmRSS")
        limit = None if most < 0 else most << 20
        checkpoint.save(store, step=1, model=model, background=True, background_bytes=limit).wait()
        print(mark("VmHWM") - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_memory_is_that_of_the_copies(fresh: Fresh) -> None:
    bounds = [16, 0, 64, -1]
    found = map(float, printed(MEMORY, fresh("rocksdb"), *map(str, bounds)).split())
    for extra, allowed in zip(found, [16, 0, 64, 128], strict=True):
        assert allowed - 1 < extra + 1 < allowed + 48, (extra, allowed)
