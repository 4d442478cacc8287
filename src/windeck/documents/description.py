"""What a corpus says of itself to people."""

from __future__ import annotations

import numpy as np

from windeck._util.fingerprints import digest
from windeck._util.text import format_bytes, plural
from windeck.documents.counts import Counts
from windeck.documents.discovery import Listing
from windeck.documents.protocol import Int64s
from windeck.documents.readers import Reading

__all__ = ["check_some_tokens", "explain", "short", "summary"]


_LISTED = 12


def explain(listing: Listing, counts: Counts, reading: Reading, sizes: Int64s) -> str:
    """Totals, a line for each dataset, what is filtered, and where the counts come from."""
    lines = [
        f"{summary(listing, counts)}, {format_bytes(float(sizes.sum()))}, from {listing.root!r}"
    ]
    for number, name in enumerate(listing.dataset_ids[:_LISTED]):
        mine = listing.dataset == number
        lines.append(
            f"  {name}: {plural(int(mine.sum()), 'shard')}, {_contents(counts, mine)}, "
            f"{format_bytes(float(sizes[mine].sum()))}"
        )
    if len(listing.dataset_ids) > _LISTED:
        lines.append(f"  and {len(listing.dataset_ids) - _LISTED:,} more")
    lines += [*_filtered(counts, reading), _origin(counts)]
    if listing.others:
        lines.append(f"{plural(listing.others, 'file')} beside them with no name of a shard")
    return "\n".join(lines)


def summary(listing: Listing, counts: Counts) -> str:
    """Datasets, shards, documents, tokens."""
    every = np.ones(len(listing.paths), dtype=bool)
    return (
        f"{plural(len(listing.dataset_ids), 'dataset')}, {plural(len(listing.paths), 'shard')}, "
        f"{_contents(counts, every)}"
    )


def _contents(counts: Counts, mine: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> str:
    documents, tokens = int(counts.documents[mine].sum()), int(counts.kept_tokens[mine].sum())
    return f"{plural(documents, 'document')}, {plural(tokens, 'token')}"


def _filtered(counts: Counts, reading: Reading) -> list[str]:
    if not (reading.min_length or reading.strip):
        return []
    gone = int((counts.documents - counts.kept).sum())
    tokens = int((counts.tokens - counts.kept_tokens).sum())
    return [
        f"{plural(gone, 'document')} filtered ({_filters(reading)}), {plural(tokens, 'token')} "
        "left out"
    ]


def _filters(reading: Reading) -> str:
    said = []
    if reading.strip:
        said.append(f"{plural(len(reading.strip), 'token id')} stripped at both ends")
    if reading.min_length:
        said.append(f"fewer than {reading.min_length:,} tokens")
    return ", ".join(said)


def _origin(counts: Counts) -> str:
    stated, shards = int(counts.stated.sum()), len(counts.stated)
    if stated == shards:
        return f"counts from {counts.source}"
    counted = f"counts of {plural(shards - stated, 'shard')} by looking into them"
    return counted if not stated else f"{counted}, of {stated:,} from {counts.source}"


def check_some_tokens(listing: Listing, counts: Counts, reading: Reading) -> None:
    """Refuse a corpus without a token.

    Raises
    ------
    ValueError
        All documents are empty or filtered.
    """
    if counts.kept_tokens.any():
        return
    documents, kept = int(counts.documents.sum()), int(counts.kept.sum())
    filtered = ""
    if documents > kept:
        filtered = f"{documents - kept:,} are filtered ({_filters(reading)}), "
    raise ValueError(
        f"none of the {plural(documents, 'document')} in {plural(len(listing.paths), 'shard')} "
        f"below {listing.root!r} has a token: {filtered}{kept:,} are empty; expected at least one"
    )


def short(text: str) -> str:
    """A long text as its beginning and a digest, for a fingerprint."""
    return text if len(text) <= 1000 else f"{text[:60]}... #{digest(text)}"
