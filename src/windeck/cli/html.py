"""`html`: one self-contained HTML page that shows a checkpoint."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from windeck._util.terminal import escaped
from windeck.cli.output import (
    check_output_file,
    format_size,
    print_json,
    print_lines,
)
from windeck.cli.page.contents import collect
from windeck.cli.page.limits import Limits
from windeck.cli.parser import Namespace, add_command, add_generation, at_least
from windeck.cli.session import (
    NegativeResult,
    checked_namespace,
    opened_store,
    redacted_url,
)
from windeck.io.local_files import atomic_file

__all__ = ["add_parser", "as_script", "render", "run"]

#: Scripts of the page, which share one scope, in the order in which they run.
_SCRIPTS = ("dom.js", "tree.js", "detail.js", "tables.js", "search.js", "main.js")
_NAMED = 20  # damaged tensors whose names are printed


def add_parser(commands: Any) -> None:
    """Add the command `html`."""
    parser = add_command(
        commands, "html",
        "Write one self-contained page: tree, values, statistics, histograms, search.", run,
    )  # fmt: skip
    parser.add_argument("file", type=Path, metavar="OUT.html", help="The file to write.")
    parser.add_argument("--force", action="store_true", help="Replace the file.")
    parser.add_argument(
        "--values", type=at_least(0), default=200_000, metavar="N",
        help="Numbers that the page holds (default: 200,000).",
    )  # fmt: skip
    parser.add_argument(
        "--read-bytes", type=at_least(0), default=8 << 30, metavar="N",
        help="Bytes to read for statistics (default: 8 GiB).",
    )  # fmt: skip
    add_generation(parser)


def run(arguments: Namespace) -> None:
    """Write the page; `NegativeResult` where something is damaged."""
    limits = Limits(values=arguments.values, read_bytes=arguments.read_bytes)
    url, file, generation = redacted_url(arguments.url), arguments.file, arguments.generation
    with opened_store(arguments.url) as store:
        check_output_file(file, force=arguments.force)
        namespace = checked_namespace(arguments.namespace)
        data = collect(store, namespace, url=url, generation=generation, limits=limits)
    with atomic_file(file) as temporary:
        temporary.write_text(render(data), encoding="utf-8")
    held, damaged = file.stat().st_size, [item for item in data["items"] if item.get("damaged")]
    if arguments.json:
        keys = ("url", "namespace", "generation", "step", "time")
        document = {key: data[key] for key in keys}
        print_json({**document, "files": [{"file": str(file), "bytes": held}]})
    else:
        print_lines(f"wrote {escaped(str(file))}, {format_size(held)}")
        notes = sum(bool(item.get("note")) for item in data["items"]) - len(damaged)
        if notes:
            print_lines(f"not shown or not read as a whole, as the page says: {notes:,}")
        if damaged:
            names = ", ".join(escaped(item["name"]) for item in damaged[:_NAMED])
            more = f" and {len(damaged) - _NAMED:,} more" if len(damaged) > _NAMED else ""
            print_lines(f"damaged, as the page says: {names}{more}")
    if damaged:
        raise NegativeResult


def render(data: Mapping[str, Any]) -> str:
    """Return the page of the data that `page.contents.collect` returns.

    Notes
    -----
    Names and text from stores are text on the page, never markup. Its security policy allows one
    script and one style, by their hashes, and loads nothing.
    """
    style = _text("page.css")
    script = '(() => {\n"use strict";\n' + "".join(map(_text, _SCRIPTS)) + "})();\n"
    policy = (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    title = f"{data['namespace']}, step {data['step']}"
    contents = {
        "policy": policy, "title": html.escape(title), "style": style, "script": script,
        "data": as_script(data),
    }  # fmt: skip
    # One pass over the template: nothing in the data is taken for a placeholder.
    return re.sub(r"@@(\w+)@@", lambda found: contents[found[1]], _text("page.html"))


def as_script(value: Any) -> str:
    """Return JSON for a script element: ASCII without ``<``, ``>`` and ``&``.

    Examples
    --------
    >>> as_script({"name": "</script>"})
    '{"name":"\\\\u003c/script\\\\u003e"}'
    """
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _text(name: str) -> str:
    return (files("windeck.cli.page") / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"
