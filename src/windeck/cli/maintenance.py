"""`log`, `verify`, `gc` and `copy`: generations listed, checked, removed and copied."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import Any

from windeck._util.schemes import scheme_of
from windeck._util.terminal import escaped
from windeck.checkpoint.format import keys
from windeck.checkpoint.format.manifests import read_commits
from windeck.checkpoint.stores import Store
from windeck.checkpoint.stores.urls import takes_parts
from windeck.cli.output import (
    colored,
    format_size,
    format_time,
    print_json,
    print_lines,
    print_table,
)
from windeck.cli.parser import Namespace, add_command, add_generation, at_least, generation
from windeck.cli.session import (
    NegativeResult,
    UsageError,
    checked_namespace,
    opened_store,
    redacted_url,
)

__all__ = ["add_parser"]

#: Damaged values that are printed as text; JSON has all of them.
SHOWN = 100


def add_parser(commands: Any) -> None:
    """Add the commands `log`, `verify`, `gc` and `copy`."""
    add_command(commands, "log", "List the generations kept, the current one first.", _log)
    verify = add_command(commands, "verify", "Search for damage. 0: none; 1: some.", _verify)
    verify.add_argument("--deep", action="store_true", help="Read every value, not only names.")
    add_generation(verify)
    gc = add_command(
        commands, "gc", "Remove old generations without a tag, and what killed processes left.", _gc
    )
    gc.add_argument(
        "--keep", type=at_least(1), required=True, metavar="N",
        help="Generations to keep (required).",
    )  # fmt: skip
    gc.add_argument(
        "--keep-every", type=at_least(1), metavar="STEPS",
        help="Also keep generations whose step is a multiple of this.",
    )  # fmt: skip
    gc.add_argument("--dry-run", action="store_true", help="Print, but remove nothing.")
    copy = add_command(
        commands, "copy", "Copy a checkpoint to another store, where it shows when it is complete.",
        _copy,
    )  # fmt: skip
    copy.add_argument("target", metavar="DST", help="The URL of any store.")
    copy.add_argument(
        "--generation", dest="generations", type=generation, action="append", metavar="GEN",
        help="Copy only this generation or tag; may be repeated.",
    )  # fmt: skip
    copy.add_argument("--to-namespace", metavar="TEXT", help="Prefix of the keys of the copy.")
    copy.add_argument(
        "--replace",
        action="store_true",
        help="Remove a checkpoint that the target has, after the copy.",
    )


def _log(arguments: Namespace) -> None:
    with opened_store(arguments.url) as store:
        namespace = checked_namespace(arguments.namespace)
        commits = read_commits(store, namespace)
    if arguments.json:
        kept = [commit._asdict() for commit in commits]
        url = redacted_url(arguments.url)
        print_json({"url": url, "namespace": namespace, "generations": kept})
        return
    rows = [
        (
            str(one.generation),
            str(one.step),
            format_time(one.time),
            format_size(one.manifest_bytes),
            ", ".join(map(str, one.bases)),
            ", ".join(one.tags),
            "in force" if one is commits[0] else "",
        )
        for one in commits
    ]
    headings = ("generation", "step", "time", "manifest", "bases", "tags", "")
    print_table(headings, rows, right=(0, 1, 3))


def _verify(arguments: Namespace) -> None:
    from windeck.checkpoint.read import verifying

    namespace, deep = checked_namespace(arguments.namespace), arguments.deep
    with opened_store(arguments.url) as store:
        report = verifying.verify(
            store, deep=deep, generation=arguments.generation, namespace=namespace
        )
    if arguments.json:
        url = redacted_url(arguments.url)
        document = {"url": url, "namespace": namespace, "deep": deep, "ok": report.ok}
        print_json({**document, **asdict(report)})
    else:
        _print_report(report, deep=deep)
    if not report.ok:
        raise NegativeResult


def _print_report(report: Any, *, deep: bool) -> None:
    numbers = ", ".join(map(str, report.generations)) or "none"
    read = f"{report.values:,} values, {format_size(report.bytes)} read"
    note = "" if deep else " (--deep reads all)"
    print_lines(colored(f"generations {numbers}: {read}{note}", "bold"))
    if report.damages:
        rows = [
            (str(one.generation), one.name or one.key, one.problem)
            for one in report.damages[:SHOWN]
        ]
        print_table(("generation", "of", "problem"), rows, right=[0])
        count = len(report.damages)
        if count > SHOWN:
            print_lines(f"and {count - SHOWN:,} more")
        print_lines(colored(f"damaged: {count:,} problem{'s' * (count != 1)}", "red"))
    else:
        print_lines(colored("ok", "green"))
    if report.unreferenced:
        print_lines(f"{report.unreferenced:,} keys without a reference (gc removes old ones)")


def _gc(arguments: Namespace) -> None:
    from windeck.checkpoint import maintenance

    namespace, dry_run = checked_namespace(arguments.namespace), arguments.dry_run
    with opened_store(arguments.url, writing=not dry_run) as store:
        commits = maintenance.log(store, namespace=namespace)
        retain = partial(
            maintenance.select_kept, keep=arguments.keep, keep_every=arguments.keep_every
        )
        gone = maintenance.gc_open_store(
            store, retain, namespace, dry_run=dry_run,
            alone=not dry_run and takes_parts(arguments.url),
        )  # fmt: skip
        if not gone and not commits:
            read_commits(store, namespace)  # says that there is none
    kept = [commit.generation for commit in commits if commit.generation not in gone]
    if arguments.json:
        document = {"url": redacted_url(arguments.url), "namespace": namespace}
        print_json({**document, "dry_run": dry_run, "kept": kept, "removed": gone})
        return
    verb = "would remove from" if dry_run else "removed from"
    print_lines(f"kept generations {', '.join(map(str, kept)) or 'none'}")
    print_lines(f"{verb} generations {', '.join(map(str, gone))}" if gone else "nothing to remove")


def _copy(arguments: Namespace) -> None:
    from windeck.checkpoint import copying

    url, target = redacted_url(arguments.url), redacted_url(arguments.target)
    generations = arguments.generations
    namespace = checked_namespace(arguments.namespace)
    to_namespace = checked_namespace(arguments.to_namespace or namespace)
    if scheme_of(target).store == "memory":
        raise UsageError(f"{target} is lost when the command ends, expected a store that is kept")
    if (url, namespace) == (target, to_namespace):
        raise UsageError(f"source and target are both {namespace} in {url}, expected two")
    with opened_store(arguments.url) as source:
        copying.select_commits(source, namespace, generations)  # before a target is made
        with opened_store(arguments.target, create=True) as store:
            head = store.get(keys.head(to_namespace))
            if head is not None and not keys.has_segments(store):  # it takes what it lacks
                _check_replaced(arguments, source, head)
            done = copying.copy(
                source,
                store,
                generations=generations,
                namespace=namespace,
                target_namespace=to_namespace,
                replace=arguments.replace,
            )
    if arguments.json:
        print_json({"url": url, "target": target, "namespace": to_namespace, **asdict(done)})
        return
    numbers = ", ".join(map(str, done.generations))
    print_lines(
        f"copied generations {numbers}: {done.values:,} values, {format_size(done.bytes)}, "
        f"to {escaped(target)}"
    )


def _check_replaced(arguments: Namespace, source: Store, head: bytes) -> None:
    """Raise a UsageError unless the checkpoint of a target, by its HEAD, may be replaced."""
    from windeck.checkpoint import copying

    target, namespace = (
        redacted_url(arguments.target),
        arguments.to_namespace or arguments.namespace,
    )
    if not arguments.replace:
        raise UsageError(
            f"{target} has a checkpoint in {namespace} already, expected none, or --replace to "
            "remove it after the copy"
        )
    if head == source.get(keys.head(arguments.namespace)):
        raise UsageError(copying.same_checkpoint_message(target, namespace))
