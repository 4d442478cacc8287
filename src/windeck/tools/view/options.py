"""What many commands of `windeck view URL` have in common."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from windeck.checkpoint.stores import Store
from windeck.tools.view import session
from windeck.tools.view.session import Catalog, opened_store

__all__ = ["Generation", "Json", "Namespace", "found_in"]

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Namespace = Annotated[str, typer.Option(help="What the keys of the checkpoint begin with.")]
Generation = Annotated[
    int | None, typer.Option(help="One of `log`.", show_default="the one in force")
]


@contextmanager
def found_in(
    context: typer.Context, namespace: str, generation: int | None
) -> Iterator[tuple[Store, Catalog]]:
    """The store of the URL, and what a generation in it holds."""
    url: str = context.obj
    with opened_store(url) as store:
        yield store, session.catalog(url, store, namespace, generation)
