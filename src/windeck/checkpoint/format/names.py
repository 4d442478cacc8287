"""Comparison of the names of a target with those of a checkpoint."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import combinations

__all__ = ["check_common_names", "name_mismatch_message", "piece_hint"]

#: Names of which every piece is tried.
_SAMPLES = 20


def check_common_names(root: str, found: str, own: Iterable[str], saved: Iterable[str]) -> None:
    """Raise a KeyError if a target has names, and none of them is in the checkpoint.

    Parameters
    ----------
    root
        What has the names: ``"model"``.
    found
        Name of the checkpoint, for the message.
    own, saved
        Names of the target, and of the checkpoint.

    Examples
    --------
    >>> check_common_names("model", "generation 1", ["model/a", "model/b"], ["model/b"])
    >>> try:
    ...     check_common_names("model", "generation 1", ["model/c"], ["model/b"])
    ... except KeyError as error:
    ...     print(str(error)[-30:-1])
    ; there is none on both sides
    """
    own, saved = {*own}, {*saved}
    if own and own.isdisjoint(saved):
        lost, more = sorted(own), sorted(saved)
        raise KeyError(name_mismatch_message(root, found, lost, more, common=False))


def name_mismatch_message(
    root: str, found: str, lost: list[str], more: list[str], *, common: bool = True
) -> str:
    """Return the error message for names that only one side has.

    Parameters
    ----------
    common
        True if others are on both sides, so that they could be loaded.
    """
    cure = "; strict=False loads the others" if common else "; there is none on both sides"
    return (
        f"the names in {root} are not those of {found}: only in the target {_format_names(lost)}; "
        f"only in the checkpoint {_format_names(more)}{piece_hint(root, lost, more) or cure}"
    )


def piece_hint(root: str, lost: list[str], more: list[str]) -> str:
    """Return a hint for a message if most names differ by one piece; an empty text otherwise.

    Examples
    --------
    >>> piece_hint("model", ["model/_orig_mod.b", "model/_orig_mod.w"], ["model/b"])[:53]
    "; only the target has '_orig_mod.' in its names: load"
    >>> piece_hint("model", ["model/a"], ["model/b"])
    ''
    """
    own, saved = ({name.removeprefix(f"{root}/") for name in names} for names in (lost, more))
    call = f"for name, value in {root}.state_dict().items()}}"
    piece = _extra_piece(own, saved)
    if piece:
        return (
            f"; only the target has {piece!r} in its names: load into the object inside, or "
            f"{root}={{name.replace({piece!r}, ''): value {call}"
        )
    piece = _extra_piece(saved, own)
    if not piece:
        return ""
    if all(name.startswith(piece) for name in saved):
        return (
            f"; only the checkpoint has {piece!r} before its names: pass "
            f"{root}={{{piece!r} + name: value {call}"
        )
    return f"; only the checkpoint has {piece!r} in its names: pass a dict of tensors by these"


def _extra_piece(longer: set[str], shorter: set[str]) -> str:
    """Return a piece without which half of the longer names are shorter ones, or an empty text."""
    pieces = set[str]()
    for name in sorted(longer)[:_SAMPLES]:
        ends = [0, *(found.end() for found in re.finditer(r"[./]", name))]
        pairs = combinations(ends, 2)
        pieces |= {name[a:b] for a, b in pairs if name[:a] + name[b:] in shorter}
    counts = {
        piece: sum(name.replace(piece, "") in shorter for name in longer)
        for piece in sorted(pieces)
    }
    best = max(counts, key=lambda piece: counts[piece], default="")
    return best if best and 2 * counts[best] >= min(len(longer), len(shorter)) else ""


def _format_names(names: list[str]) -> str:
    shown = ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")
    return f"[{shown}]"
