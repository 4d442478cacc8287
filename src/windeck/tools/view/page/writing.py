"""A page from its template and its data; names out of stores are text on it, never markup."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

__all__ = ["as_script", "render"]

#: One scope, in this order.
_SCRIPTS = ("dom.js", "tree.js", "detail.js", "tables.js", "search.js", "main.js")
_here = files("windeck.tools.view.page")


def render(data: Mapping[str, Any]) -> str:
    """The page that shows what `collecting.collect` gave.

    Notes
    -----
    Its policy lets nothing run or show but its one script and its one style, named by their
    hashes, and nothing be loaded from anywhere.
    """
    style = _text("page.css")
    script = '(() => {\n"use strict";\n' + "".join(map(_text, _SCRIPTS)) + "})();\n"
    policy = (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    title = f"{data['namespace']}, step {data['step']}"
    parts = {
        "policy": policy, "title": html.escape(title), "style": style, "script": script,
        "data": as_script(data),
    }  # fmt: skip
    # Once over the template, so that nothing in the data is taken for a place in it.
    return re.sub(r"@@(\w+)@@", lambda found: parts[found[1]], _text("page.html"))


def as_script(value: Any) -> str:
    """JSON that can stand in a script element: no ``<``, ``>`` or ``&``, nothing but ASCII.

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
    return (_here / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"
