"""Random corpora and ways to pack them, for Hypothesis."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from models.packing_model import Model, ModelCorpus
from windeck import PackedSequences

QUIET = settings(
    deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None
)

STORED = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]

#: Empty, of one token, ordinary, and longer than several sequences.
LENGTHS = st.one_of(
    st.just(0), st.just(1), st.integers(0, 12), st.integers(0, 12), st.integers(20, 90)
)


@st.composite
def corpora(draw: st.DrawFn) -> ModelCorpus:
    """Draw shards, some empty, of a few documents, with or without filters."""
    sizes = draw(
        st.lists(st.lists(LENGTHS, max_size=9), min_size=1, max_size=7),
    )
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    strip = draw(st.sampled_from([[], [], [3], [3, 5]]))
    return ModelCorpus(
        [[rng.integers(0, 9, size).tolist() for size in shard] for shard in sizes],
        [str(rng.choice(STORED)) for _ in sizes],
        strip=strip,
        min_length=draw(st.sampled_from([0, 0, 1, 4])),
    )


@st.composite
def models(draw: st.DrawFn) -> Model:
    """Draw a corpus and options of packing that give at least one sequence."""
    ways = [("shards", False), ("global", False), ("shards", True)]
    ways += [("mixed", False), ("mixed-global", False), ("mixed", True)]
    order, padded = draw(st.sampled_from(ways))
    sequence_eos = draw(st.sampled_from([None, None, 103]))
    least = 1 if sequence_eos is None else 2
    model = Model(
        draw(corpora()),
        length=draw(st.one_of(st.integers(least, 12), st.integers(least, 60))),
        bos=draw(st.sampled_from([None, 100])),
        eos=draw(st.sampled_from([None, 101])),
        order=order,
        padded=padded,
        pad=draw(st.sampled_from([0, 77])) if padded else 0,
        mixed_shards=draw(st.sampled_from([1, 2, 3, 8])),
        sequence_bos=draw(st.sampled_from([None, None, 102])),
        sequence_eos=sequence_eos,
    )
    if model.total() < (1 if padded else model.length + 1):
        model.corpus.shards.append([[1] * (model.length + model.corpus.min_length + 1)])
        model.corpus.dtypes.append("uint16")
        model.corpus.__post_init__()
    return model


def packing(model: Model, **options: Any) -> PackedSequences:
    """Return the library's packed sequences of a model."""
    return PackedSequences(
        model.corpus,
        sequence_length=model.length,
        bos=model.bos,
        eos=model.eos,
        order=model.order,  # type: ignore[arg-type]
        padded=model.padded,
        pad=model.pad,
        mixed_shards=model.mixed_shards,
        sequence_bos=model.sequence_bos,
        sequence_eos=model.sequence_eos,
        **{"live_shards": 2, "threads": 1, **options},
    )


WAYS: list[dict[str, Any]] = [
    {},
    {"order": "global"},
    {"padded": True, "pad": 50},
    {"order": "mixed", "mixed_shards": 3},
    {"order": "mixed-global", "mixed_shards": 2},
    {"order": "mixed", "padded": True, "pad": 50},
]


def corpus(shards: int = 12) -> ModelCorpus:
    rng = np.random.default_rng(2)
    documents = [
        [rng.integers(0, 99, size).tolist() for size in rng.integers(0, 30, 40)]
        for _ in range(shards)
    ]
    return ModelCorpus(documents, ["uint16"] * shards)


def tokens(source: Any) -> Any:
    return source.gather_rows(range(len(source)))["tokens"]
