"""`html`: writes the page."""

from __future__ import annotations

import os
from pathlib import Path

from windeck.checkpoint.stores import Store
from windeck.tools.view import output
from windeck.tools.view.page.collecting import collect
from windeck.tools.view.page.limits import Limits
from windeck.tools.view.page.writing import render
from windeck.tools.view.session import Different, Wrong, namespace_of, plain_url, shown

__all__ = ["html"]


def html(
    url: str,
    store: Store,
    file: Path,
    *,
    namespace: str,
    generation: int | None,
    limits: Limits,
    force: bool,
    json: bool,
) -> None:
    """Writes one self-contained file; it has its name when it is finished. `Different` where
    something is damaged."""
    if file.is_dir():
        raise Wrong(f"{file} is a folder, expected the name of a file")
    if not file.parent.is_dir():
        raise Wrong(f"there is no folder {file.parent}, expected one to write {file.name} into")
    if file.exists() and not force:
        raise Wrong(f"{file} is there already, expected a new file, or --force")
    address, space = plain_url(url), namespace_of(namespace)
    data = collect(store, space, url=address, generation=generation, limits=limits)
    part = file.with_name(f".{file.name}.{os.getpid()}.part")
    try:
        part.write_text(render(data), encoding="utf-8")
        os.replace(part, file)
    finally:
        part.unlink(missing_ok=True)
    held, damaged = file.stat().st_size, [item for item in data["items"] if item.get("damaged")]
    if json:
        keys = ("url", "namespace", "generation", "step", "time")
        told = {key: data[key] for key in keys}
        output.write_json({**told, "files": [{"file": str(file), "bytes": held}]})
    else:
        output.say(f"wrote {shown(str(file))}, {output.size(held)}")
        notes = sum(bool(item.get("note")) for item in data["items"]) - len(damaged)
        if notes:
            output.say(f"not shown or not read as a whole, as the page says: {notes:,}")
        if damaged:
            names = ", ".join(shown(item["name"]) for item in damaged[:20])
            more = f" and {len(damaged) - 20:,} more" if len(damaged) > 20 else ""
            output.say(f"damaged, as the page says: {names}{more}")
    if damaged:
        raise Different
