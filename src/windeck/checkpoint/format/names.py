"""Comparison of the names of a target with those of a checkpoint."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import combinations

__all__ = ["check_common_names", "name_mismatch_message", "affix_hint"]

#: Names of which every affix is tried.
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
        f"only in the checkpoint {_format_names(more)}{affix_hint(root, lost, more) or cure}"
    )


def affix_hint(root: str, lost: list[str], more: list[str]) -> str:
    """Return a hint for a message if most names differ by one affix; an empty text otherwise.

    An affix is text at the beginning, inside or at the end of a name.

    Examples
    --------
    >>> affix_hint("model", ["model/_orig_mod.b", "model/_orig_mod.w"], ["model/b"])[:53]
    "; only the target has '_orig_mod.' in its names: load"
    >>> affix_hint("model", ["model/a"], ["model/b"])
    ''
    """
    own, saved = ({name.removeprefix(f"{root}/") for name in names} for names in (lost, more))
    call = f"for name, value in {root}.state_dict().items()}}"
    affix = _extra_affix(own, saved)
    if affix:
        return (
            f"; only the target has {affix!r} in its names: load into the object inside, or "
            f"{root}={{name.replace({affix!r}, ''): value {call}"
        )
    affix = _extra_affix(saved, own)
    if not affix:
        return ""
    if all(name.startswith(affix) for name in saved):
        return (
            f"; only the checkpoint has {affix!r} before its names: pass "
            f"{root}={{{affix!r} + name: value {call}"
        )
    return f"; only the checkpoint has {affix!r} in its names: pass a dict of tensors by these"


def _extra_affix(longer: set[str], shorter: set[str]) -> str:
    """Return an affix without which half of the longer names are shorter ones, or an empty text."""
    affixes = set[str]()
    for name in sorted(longer)[:_SAMPLES]:
        ends = [0, *(found.end() for found in re.finditer(r"[./]", name))]
        pairs = combinations(ends, 2)
        affixes |= {name[a:b] for a, b in pairs if name[:a] + name[b:] in shorter}
    counts = {
        affix: sum(name.replace(affix, "") in shorter for name in longer)
        for affix in sorted(affixes)
    }
    best = max(counts, key=lambda affix: counts[affix], default="")
    return best if best and 2 * counts[best] >= min(len(longer), len(shorter)) else ""


def _format_names(names: list[str]) -> str:
    shown = ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")
    return f"[{shown}]"
