"""`verify`, `gc` and `copy`: is it whole, what may go, and the same elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict

from windeck.checkpoint import history
from windeck.checkpoint.format import keys
from windeck.checkpoint.format.manifests import read_kept
from windeck.checkpoint.stores import Store
from windeck.tools.view import output
from windeck.tools.view.output import paint, say, size
from windeck.tools.view.session import (
    Different,
    Wrong,
    namespace_of,
    opened_store,
    plain_url,
    shown,
)

__all__ = ["copy", "gc", "verify"]

#: Damages that are printed for people; JSON has all of them.
SHOWN = 100


def verify(
    url: str, store: Store, namespace: str, *, deep: bool, generation: int | None, json: bool
) -> None:
    """Prints what is wrong; `Different` where anything is."""
    from windeck.checkpoint import verifying

    space = namespace_of(namespace)
    report = verifying.verify(store, deep=deep, generation=generation, namespace=space)
    if json:
        told = {"url": plain_url(url), "namespace": space, "deep": deep, "ok": report.ok}
        output.write_json({**told, **asdict(report)})
    else:
        numbers = ", ".join(map(str, report.generations)) or "none"
        read = f"{report.values:,} values, {size(report.bytes)} read"
        say(paint(f"generations {numbers}: {read}{'' if deep else ' (--deep reads all)'}", "bold"))
        if report.damages:
            rows = [
                (str(one.generation), one.name or one.key, one.problem)
                for one in report.damages[:SHOWN]
            ]
            output.table(("generation", "of", "problem"), rows, right=[0])
            left = len(report.damages) - len(rows)
            say(*([f"and {left:,} more"] if left else []))
            count = len(report.damages)
            say(paint(f"damaged: {count:,} problem{'' if count == 1 else 's'}", "red"))
        else:
            say(paint("ok", "green"))
        if report.unreferenced:
            say(f"{report.unreferenced:,} keys that nobody refers to (gc removes old ones)")
    if not report.ok:
        raise Different


def gc(url: str, *, keep: int, dry_run: bool, namespace: str, json: bool) -> None:
    """Prints the generations that were removed, or would be."""
    space = namespace_of(namespace)
    with opened_store(url, writing=not dry_run) as store:
        commits = read_kept(store, space)
        gone = history.gc(store, keep=keep, namespace=space, dry_run=dry_run)
    kept = [commit.generation for commit in commits[:keep]]
    if json:
        told = {"url": plain_url(url), "namespace": space, "dry_run": dry_run}
        output.write_json({**told, "kept": kept, "removed": gone})
        return
    verb = "would remove from" if dry_run else "removed from"
    say(f"kept generations {', '.join(map(str, kept))}")
    say(f"{verb} generations {', '.join(map(str, gone))}" if gone else "nothing to remove")


def copy(
    url: str,
    target: str,
    *,
    generations: Sequence[int],
    namespace: str,
    to_namespace: str | None,
    replace: bool,
    json: bool,
) -> None:
    """Copies and prints what was copied."""
    from windeck.checkpoint import copying

    spaces = [namespace_of(name) for name in (namespace, to_namespace or namespace)]
    if plain_url(target).startswith("memory://"):
        raise Wrong(f"{target} is gone when the command ends, expected a store that stays")
    if plain_url(url) == plain_url(target) and spaces[0] == spaces[1]:
        raise Wrong(f"source and target are both {spaces[0]} in {plain_url(url)}, expected two")
    with opened_store(url) as source:
        copying.chosen(source, spaces[0], generations or None)  # before a target is made
        with opened_store(target, making=True) as place:
            there = place.get(keys.head(spaces[1]))
            if there is not None and not replace:
                raise Wrong(
                    f"{plain_url(target)} has a checkpoint in {spaces[1]} already, expected none, "
                    "or --replace to remove it first"
                )
            if there is not None and there == source.get(keys.head(spaces[0])):
                raise Wrong(copying.same(plain_url(target), spaces[1]))
            done = copying.copy(
                source,
                place,
                generations=generations or None,
                namespace=spaces[0],
                target_namespace=spaces[1],
                replace=replace,
                progress=_progress(),
            )
    if json:
        urls = {"url": plain_url(url), "target": plain_url(target), "namespace": spaces[1]}
        output.write_json({**urls, **asdict(done)})
        return
    numbers = ", ".join(map(str, done.generations))
    say(f"copied generations {numbers}: {done.values:,} values, {size(done.bytes)}, to "
        f"{shown(plain_url(target))}")  # fmt: skip


def _progress() -> Callable[[int], object] | None:
    """Counts bytes on a terminal's line of errors; nothing where nobody looks."""
    if not sys.stderr.isatty():
        return None
    done, last = 0, 0.0

    def count(more: int) -> None:
        nonlocal done, last
        done += more
        if time.monotonic() - last > 0.2:
            last = time.monotonic()
            print(f"\r{size(done)} copied ", end="", file=sys.stderr, flush=True)

    return count
