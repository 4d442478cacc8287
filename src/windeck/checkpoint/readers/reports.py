"""What `verify` tells."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Damage", "Report"]


@dataclass(frozen=True)
class Damage:
    """One thing that is wrong.

    Attributes
    ----------
    key
        Of the value that it is about; "" for what is about none.
    name
        The tensor or table, "" for what is none.
    generation
        The newest one that it concerns.
    problem
        A sentence.
    """

    key: str
    name: str
    generation: int
    problem: str


@dataclass
class Report:
    """What `verify` found.

    Attributes
    ----------
    generations
        Those that were looked at, the one in force first.
    values, bytes
        How many values are referred to; how many bytes of them were read and compared with
        their sums, which without `deep` are those of manifests alone.
    damages
        Everything that is wrong.
    unreferenced, unreferenced_keys
        How many keys of the namespace nobody refers to: left by saves that were killed, or of one
        that goes on. They do no harm, `gc` removes those that are older than the one in force.
        The first thousand of them.
    """

    generations: list[int] = field(default_factory=list)
    values: int = 0
    bytes: int = 0
    damages: list[Damage] = field(default_factory=list)
    unreferenced: int = 0
    unreferenced_keys: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.damages
