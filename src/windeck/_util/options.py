"""Messages for options that a call does not have: those of other libraries, and misspelt ones."""

from __future__ import annotations

import inspect
from functools import wraps
from typing import Any, TypeVar

from windeck._util.text import similar_names

__all__ = ["NOTES", "WORDS", "explain_options"]

T = TypeVar("T")

#: The names that other libraries have for an option, by its call and its name. `docs/words.md` has
#: the same.
WORDS: dict[tuple[str, str], tuple[str, ...]] = {
    ("Windows", "context_length"): (
        *("lookback", "input_size", "input_chunk_length", "max_encoder_length", "seq_len"),
        *("sequence_length", "window_size"),
    ),
    ("Windows", "prediction_length"): (
        *("horizon", "h", "fh", "output_chunk_length", "max_prediction_length", "pred_len"),
        "forecast_horizon",
    ),
    ("Windows", "gap"): ("output_chunk_shift", "lead_time"),
    ("Windows", "stride"): ("step_size", "sequence_stride"),
    ("Windows", "dilation"): ("sampling_rate",),
    ("Windows", "target_columns"): ("y", "target"),
    ("Windows", "known_covariates"): (
        *("futr_exog_list", "future_covariates", "feat_dynamic_real", "time_varying_known_reals"),
    ),
    ("Windows", "past_covariates"): (
        *("hist_exog_list", "past_feat_dynamic_real", "time_varying_unknown_reals"),
    ),
    ("Windows", "static_covariates"): ("stat_exog_list", "feat_static_real", "static_reals"),
    ("Windows", "min_context_length"): ("min_encoder_length",),
    ("Table.read", "id_columns"): ("unique_id", "item_id", "group_ids"),
    ("Table.read", "timestamp_column"): ("ds", "time_idx", "timestamp"),
    ("PackedSequences", "sequence_length"): (
        *("seq_length", "block_size", "max_seq_length", "seq_len"),
    ),
    ("PackedSequences", "bos"): ("bos_token",),
    ("PackedSequences", "eos"): ("delimiter_token", "eod", "eos_token"),
    ("PackedSequences", "padded"): ("packing_strategy",),
    ("Loader", "batch_size"): ("micro_batch_size", "per_device_train_batch_size"),
    ("Loader", "prefetch"): ("num_workers", "prefetch_factor", "persistent_workers"),
    ("Loader", "seed"): ("generator", "worker_init_fn"),
    ("Loader", "order"): ("sampler", "batch_sampler"),
    ("Loader", "stall_timeout"): ("timeout",),
    ("Loader", "rank"): ("process_index",),
    ("Loader", "world_size"): ("process_count", "num_replicas"),
    ("Loader", "epochs"): ("num_epochs", "max_epochs", "num_train_epochs"),
    ("Stream.map", "collate"): ("collate_fn",),
}

#: What else to say of some of these names.
NOTES = {
    "num_workers": "batches are made by native code in a thread, without worker processes",
    "generator": "the order is a function of seed and epoch",
    "sampler": "an order is a function f(size, *, seed, epoch); a sampler is for torch's "
    "DataLoader, as windeck.OrderSampler is",
    "collate_fn": "a source makes whole batches; wd.Stream(source).map(function, collate=...) "
    "changes them, and wd.MapDataset(source) is for torch's DataLoader",
}

#: The options of each class that explains them.
_options: dict[str, list[str]] = {}


def explain_options(cls: type[T]) -> type[T]:
    """Let a class explain keywords that its constructor does not have.

    The error names the option that another library calls so, or similar ones. The signature stays
    that of ``__init__``; so does the depth of the stack, on which warnings depend, since keywords
    are checked by ``__new__``.

    Examples
    --------
    >>> @explain_options
    ... class Loader:
    ...     def __init__(self, data, *, batch_size, prefetch=2):
    ...         pass
    >>> Loader([], batch_size=1, num_workers=4)
    Traceback (most recent call last):
        ...
    TypeError: Loader has no option `num_workers`, which is `prefetch` here: batches are made by \
native code in a thread, without worker processes
    """
    constructor, allocate = cls.__init__, cls.__new__
    parameters = _options[cls.__name__] = list(inspect.signature(constructor).parameters)[1:]

    @wraps(constructor, assigned=())  # `inspect.signature` follows it.
    def new(made: type[T], *args: Any, **options: Any) -> T:
        # A class derived from it may have other options.
        if options and made.__init__ is constructor:
            for name in options:
                if name not in parameters:
                    raise TypeError(_explain(cls.__name__, name, parameters))
        if allocate is object.__new__:
            return allocate(made)
        return allocate(made, *args, **options)

    cls.__new__ = new  # type: ignore[assignment]
    return cls


def _explain(call: str, name: str, options: list[str]) -> str:
    """Return the message for an option that a call does not have."""
    found = f"{call} has no option `{name}`"
    words = [word for word, names in WORDS.items() if name in names]
    for owner, option in sorted(words, key=lambda word: word[0] != call):
        of_owner = "" if owner == call else f" of {owner}"
        note = NOTES.get(name, "see docs/words.md")
        return f"{found}, which is `{option}`{of_owner} here: {note}"
    others = [other for other, own in _options.items() if name in own]
    if others:
        return f"{found}, which is an option of {' and '.join(sorted(others))}"
    return f"{found}; {similar_names(name, options)}"
