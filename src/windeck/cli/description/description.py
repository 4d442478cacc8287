"""The description of a file or folder: facts, columns and the Python that loads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["Code", "Column", "Description", "call", "literal"]


@dataclass(frozen=True)
class Column:
    """A column: its type in the file, the role that is guessed, and its missing values.

    `missing` counts rows of the sample; None where it is not known.
    """

    name: str
    type: str
    role: str = ""
    missing: int | None = None


@dataclass(frozen=True)
class Description:
    """The contents of a file or folder, as windeck would read them.

    Attributes
    ----------
    path, kind
        The path as given; "table", "lists", "documents" or "checkpoint".
    summary
        Size and format in a few words.
    facts
        Values for ``--json``.
    columns
        The columns, in the order of the file.
    notes
        Sentences: series, span, steps, gaps; what comes from a sample; what was guessed.
    code
        Lines of Python that load it.
    """

    path: str
    kind: str
    summary: str
    facts: Mapping[str, Any]
    columns: Sequence[Column] = ()
    notes: Sequence[str] = ()
    code: Sequence[str] = field(default_factory=list)

    def document(self) -> dict[str, Any]:
        """Return the description as one JSON document."""
        columns = [asdict(column) for column in self.columns]
        return {
            "path": self.path,
            "kind": self.kind,
            "summary": self.summary,
            **self.facts,
            "columns": columns,
            "notes": list(self.notes),
            "code": "\n".join(self.code),
        }


class Code(str):
    """Text of Python code, which `literal` leaves as it is."""


def literal(value: Any) -> str:
    """Return Python code for a value, with double quotes around text.

    Examples
    --------
    >>> literal(["site", 'a"b']), literal(("x",))
    ('["site", \\'a"b\\']', '["x"]')
    """
    if isinstance(value, Code):
        return str(value)
    if isinstance(value, str):
        text = repr(value)
        return f'"{text[1:-1]}"' if text[0] == "'" and '"' not in text else text
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(literal, value))}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{literal(k)}: {literal(v)}' for k, v in value.items())}}}"
    return repr(value)


def call(name: str, first: str, function: str, options: Mapping[str, Any]) -> list[str]:
    """Return lines of Python that assign a call's result; without options that are None or empty.

    Examples
    --------
    >>> call("table", '"a.csv"', "wd.Table.read", {"id_columns": "site", "sort": None})
    ['table = wd.Table.read("a.csv", id_columns="site")']
    """
    given = [
        f"{option}={literal(value)}"
        for option, value in options.items()
        if value is not None and (not isinstance(value, (list, tuple, Mapping)) or value)
    ]
    line = f"{name} = {function}({', '.join([first, *given])})"
    if len(line) <= 80:
        return [line]
    return [f"{name} = {function}(", *(f"    {one}," for one in [first, *given]), ")"]
