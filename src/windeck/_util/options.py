"""Messages for options that a call does not have: those of other libraries, and misspelt ones."""

from __future__ import annotations

import difflib
import inspect
import math
import re
from collections.abc import Callable, Mapping
from functools import partial, wraps
from types import FunctionType
from typing import Any, TypeVar

from windeck._util.text import plural, similar_names

__all__ = ["NOTES", "WORDS", "explain_native_call", "explain_options"]

T = TypeVar("T", bound=Callable[..., Any])

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
    ("Windows.folds", "k"): ("n_splits", "n_windows", "num_windows"),
    ("Windows.folds", "test_rows"): ("test_size",),
    ("Windows.folds", "train_rows"): ("max_train_size",),
    ("Windows.split", "test"): ("test_size", "test_split"),
    ("Windows.split", "validation"): ("val_size", "val_split", "validation_split"),
    ("Windows.split", "seed"): ("random_state",),
    ("Table.read", "columns"): ("usecols",),
    ("Table.read", "id_columns"): ("unique_id", "item_id", "group_ids", "id_column", "group_cols"),
    ("Table.read", "timestamp_column"): (
        *("ds", "time_idx", "timestamp", "parse_dates", "index_col", "time_col", "time"),
    ),
    ("Table.read", "delimiter"): ("sep",),
    ("Table.read", "missing"): ("na_values", "null_values"),
    ("Table.read", "timestamp_format"): ("date_format", "datetime_format"),
    ("Table.read", "rows"): ("nrows", "n_rows", "skiprows"),
    ("Table.read", "dtype"): ("dtypes",),
    ("Table.read", "in_memory"): ("memory_map",),
    ("Table.regularize", "step"): ("freq",),
    ("prepare", "step"): ("freq",),
    ("Windows.latest", "step"): ("freq",),
    ("Windows.prediction_table", "step"): ("freq",),
    ("Scaler.fit", "kind"): ("method", "strategy"),
    ("EmbeddingTable", "dim"): ("embedding_dim",),
    ("EmbeddingTable", "lr"): ("learning_rate",),
    ("EmbeddingTable.bag", "weights"): ("per_sample_weights",),
    ("checkpoint.save", "model"): ("state_dict", "model_state_dict"),
    ("checkpoint.save", "loader"): ("dataloader", "train_dataloader"),
    ("checkpoint.save", "step"): ("global_step",),
    ("checkpoint.save", "keep"): ("max_to_keep", "save_total_limit", "save_top_k"),
    ("checkpoint.save", "group"): ("process_group",),
    ("checkpoint.save", "background"): ("async_save",),
    ("doctor", "batches"): ("num_batches", "max_batches"),
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

_ROWS = "a pair (start, stop) of rows, such as rows=(0, 1000)"
_MODEL = "the model itself, or a dict of tensors"
_TRAINING = "training has the windows that `validation` and `test` leave"
_SHUFFLED = "wd.Loader(split.train, shuffle=True) shuffles the windows of a split"
_STANDARD = "kind='standard' subtracts the mean and divides by the standard deviation"
_GRADIENTS = "gradients are always of the rows that were looked up"
_ONCE = (
    "every sample is drawn once an epoch; windows.balanced(weights) draws windows by the weights "
    "of their series, and wd.Mixture draws from sources"
)
_WEIGHTS = (
    "each part has its weight, such as wd.Mixture({'web': (source, 0.7), 'books': (other, 0.3)}), "
    "and `schedule` changes them"
)
_EXTRA = "`extra` has further values, such as extra={'scheduler': scheduler.state_dict()}"

#: What to say of some of these names, and of options that a call neither has nor needs.
NOTES: dict[str, dict[str, str]] = {
    "Windows": {
        "batch_size": "wd.Loader(windows, batch_size=...) makes batches",
        "shuffle": "wd.Loader(windows, batch_size=..., shuffle=True) shuffles windows",
        "freq": "the step is that of the table's time stamps",
    },
    "Windows.split": {
        "train": _TRAINING,
        "train_size": _TRAINING,
        "train_split": _TRAINING,
        "shuffle": _SHUFFLED,
    },
    "Windows.folds": {
        "n_splits": "windows.folds(5) has 5 splits, each with a later test part",
        "shuffle": _SHUFFLED,
    },
    "Windows.latest": {
        "n": "each series has one window; windows.subset(last=n) has the last n of each series",
    },
    "Table.read": {
        "parse_dates": "the name of the column of times, such as timestamp_column='date'",
        "index_col": "the name of the column of times; columns that identify series are "
        "`id_columns`",
        "nrows": _ROWS,
        "n_rows": _ROWS,
        "skiprows": "a pair (start, stop) of rows, such as rows=(1000, None)",
        "memory_map": "in_memory=False reads rows when they are needed",
        "chunksize": "in_memory=False reads rows when they are needed",
        "dayfirst": "`timestamp_format` states the format, such as '%d.%m.%Y'",
        "freq": "the step is that of the time stamps; `max_gap` of Windows leaves out windows with "
        "longer ones",
    },
    "Scaler.fit": {
        "with_mean": _STANDARD,
        "with_std": _STANDARD,
        "feature_range": "kind='minmax' scales to [0, 1]",
    },
    "Loader": {
        "num_workers": "batches are made by native code in a thread, without worker processes",
        "generator": "the order is a function of seed and epoch",
        "sampler": "an order is a function f(size, *, seed, epoch); a sampler is for torch's "
        "DataLoader, as windeck.OrderSampler is",
        "replacement": _ONCE,
        "num_samples": "an epoch has all samples; `max_steps` ends a loop earlier",
    },
    "Stream.map": {
        "collate_fn": "a source makes whole batches; wd.Stream(source).map(function, collate=...) "
        "changes them, and wd.MapDataset(source) is for torch's DataLoader",
    },
    "PackedSequences": {
        "batch_size": "wd.Loader(packed, batch_size=...) makes batches",
        "seed": "wd.Loader(packed, batch_size=..., shuffle=True, seed=...) shuffles sequences",
        "shuffle": "wd.Loader(packed, batch_size=..., shuffle=True) shuffles sequences",
    },
    "Mixture": {
        "weights": _WEIGHTS,
        "probabilities": _WEIGHTS,
    },
    "OrderSampler": {
        "replacement": _ONCE,
        "num_samples": "an epoch has all samples; windows.balanced(epoch_length=...) sets the "
        "length of an epoch, and `max_steps` of wd.Loader ends a loop earlier",
        "shuffle": "wd.Permutation, the default of `order`, shuffles, and wd.Sequential does not",
    },
    "EmbeddingTable": {
        "num_embeddings": "a row is made when its id is first looked up",
        "sparse": _GRADIENTS,
        "device": "rows are in the memory of the host",
        "max_norm": "rows are not scaled to a norm",
    },
    "checkpoint.save": {
        "state_dict": _MODEL,
        "model_state_dict": _MODEL,
        "epoch": "`extra` has further values, such as extra={'epoch': 3}; that of a loader is in "
        "its state",
        "scheduler": _EXTRA,
        "lr_scheduler": _EXTRA,
    },
    "checkpoint.load": {
        "map_location": "tensors are loaded into those of the model, on their devices",
        "weights_only": "a checkpoint has no pickled objects",
        "step": "`generation` is the number of a save, and checkpoint.log has the step of each",
    },
}

#: Calls whose options have the meaning of those of another class.
_FAMILIES = {"JaggedTable": "Table", "prepare": "Table"}

#: Options that have one meaning in all calls.
_SAME = {"seed"}

#: Classes that are made by a method of another one.
_CALLS = {"MappedStream": "Stream.map"}

#: Methods that are called for every batch: they do not pay for a check of their keywords.
_EVERY_BATCH = {"forward", "gather", "gather_rows", "step"}

#: The options of each call that explains them.
_options: dict[str, list[str]] = {}


def explain_options(target: T) -> T:
    """Let a function explain keywords that it does not have, or a class those of its methods.

    The error names the option that another library calls so, or similar ones. Of a class, the
    constructor and the public methods with options explain them, but for those that are called for
    every batch. The signature stays the same for `inspect`, documentation and type checkers. A call
    takes about 1 us more.

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
    if not isinstance(target, type):
        return _explained(target, _call_name(target))  # type: ignore[return-value]
    for name, value in list(vars(target).items()):
        function = getattr(value, "__func__", value)  # of a class method
        if isinstance(function, FunctionType) and _has_options(name, function):
            owner = _CALLS.get(target.__name__, target.__name__)
            call = owner if name == "__init__" else f"{owner}.{name}"
            explained = _explained(function, call)
            setattr(target, name, explained if function is value else type(value)(explained))
    return target


def explain_native_call(call: str, signatures: str, count: int, options: Mapping[str, Any]) -> str:
    """Return the message for a call of a native function with arguments that it does not take.

    Parameters
    ----------
    call
        Name of the function.
    signatures
        Its docstring, with the signatures that pybind11 writes.
    count, options
        The number of positional arguments, and the keywords.

    Examples
    --------
    >>> explain_native_call("f", "f(size: int, *, seed: int = 0) -> int", 1, {"sed": 3})
    "f has no option `sed`; did you mean 'seed' or 'size'?"
    >>> explain_native_call("f", "f(size: int, *, seed: int = 0) -> int", 0, {})
    'f is called without `size`; expected f(size, *, seed=0)'
    """
    lines = re.findall(r"^(?:\d+\. )?\w+\((.+)\) ->", signatures, re.MULTILINE)
    found = [re.findall(r"(\*|\w+)(?:: [\w.]+)?(?: = (\w+))?(?:, |$)", line) for line in lines]
    forms = [[one for one in form if one[0] != "self"] for form in found]
    names = list(dict.fromkeys(name for form in forms for name, _ in form if name != "*"))
    if not options.keys() <= set(names):
        return _explain_first(call, names, dict(options))
    shown = " or ".join(
        f"{call}({', '.join(f'{name}={value}' if value else name for name, value in form)})"
        for form in forms
    )
    for form in forms:
        twice = [name for name, _ in form[:count] if name in options]
        if twice:
            return f"{call} is called with `{twice[0]}` twice; expected {shown}"
        missing = [
            name for name, value in form[count:] if not value and name not in {"*", *options}
        ]
        if missing and options.keys() <= {name for name, _ in form}:
            return f"{call} is called without `{missing[0]}`; expected {shown}"
    given = [plural(count, "positional argument")] if count or not options else []
    given += [f"`{name}`" for name in options]
    return f"{call} is called with {' and '.join(given)}; expected {shown}"


def _has_options(name: str, function: Callable[..., Any]) -> bool:
    """Return whether a method of a class has options of its own."""
    if (name.startswith("_") and name != "__init__") or name in _EVERY_BATCH:
        return False
    kinds = {one.kind for one in inspect.signature(function).parameters.values()}
    has_options = name == "__init__" or inspect.Parameter.KEYWORD_ONLY in kinds
    return has_options and inspect.Parameter.VAR_KEYWORD not in kinds


def _call_name(function: Callable[..., Any]) -> str:
    """Return the public name of a function without `windeck`: ``"checkpoint.save"``."""
    *packages, module = function.__module__.split(".")[1:]
    public = [one for one in packages if one in ("checkpoint", "safetensors", "stores")]
    if packages == ["adapters"]:
        public = ["adapters", module]
    return ".".join([*public, function.__name__])


def _explained(function: Callable[..., Any], call: str) -> Callable[..., Any]:
    """Return a function that explains a TypeError for its keywords, or for options without one."""
    found = inspect.signature(function).parameters
    parameters = _options[call] = list(found)
    places = [name for name, one in found.items() if one.kind is not one.KEYWORD_ONLY]
    is_bound = int(parameters[0] in ("self", "cls"))
    del parameters[:is_bound]
    names, explain = frozenset(parameters), partial(_explain_first, call, parameters)
    most = (
        math.inf if any(one.kind is one.VAR_POSITIONAL for one in found.values()) else len(places)
    )
    explain_places = partial(_explain_places, call, parameters, len(places) - is_bound)

    def explained(*args: Any, **options: Any) -> Any:
        try:
            return function(*args, **options)
        except TypeError:
            if not options.keys() <= names:
                raise TypeError(explain(options)) from None
            if len(args) > most:
                raise TypeError(explain_places(len(args) - is_bound)) from None
            raise

    # With the globals of the function: doctest finds the functions of a module by them.
    made = FunctionType(explained.__code__, function.__globals__, closure=explained.__closure__)
    return wraps(function)(made)


def _explain_places(call: str, parameters: list[str], places: int, count: int) -> str:
    """Return the message for options that are given without their names."""
    named = [f"{name}=..." for name in parameters[places:count]]
    shown = ", ".join([*parameters[:places], *named])
    return f"{call} is called with {plural(count, 'positional argument')}; expected {call}({shown})"


def _explain_first(call: str, parameters: list[str], options: dict[str, Any]) -> str:
    """Return the message for the first keyword that is no option of the call."""
    return _explain(call, next(name for name in options if name not in parameters), parameters)


def _explain(call: str, name: str, options: list[str]) -> str:
    """Return the message for an option that a call does not have."""
    found = f"{call} has no option `{name}`"
    calls = sorted(_options.keys() | NOTES.keys() | {owner for owner, _ in WORDS})
    calls.sort(key=lambda owner: _distance(owner, call))
    near = difflib.get_close_matches(name.lower(), options, n=1, cutoff=0.8)
    word = name if near else _similar_word(call, name)
    for owner in calls:
        note, is_near = NOTES.get(owner, {}).get(word, ""), _distance(owner, call) < 2
        option = next(
            (o for (own, o), names in WORDS.items() if own == owner and word in names), ""
        )
        if option:
            is_here = option in options and (is_near or option in _SAME)
            of_owner = "" if is_here else f" of {owner}"
            return f"{found}, which is `{option}`{of_owner} here{note and f': {note}'}"
        if note and is_near:
            return f"{found}: {note}"
    others = [other for other in calls if name in _options.get(other, ())]
    if others and not near:
        return f"{found}, which is an option of {' and '.join(others[:3])}"
    return f"{found}; {similar_names(name, options)}"


def _similar_word(call: str, name: str) -> str:
    """Return the name that another library has for an option of the call, if one is alike."""
    words = [word for (own, _), names in WORDS.items() if own == call for word in names]
    words += NOTES.get(call, {})
    return next(iter(difflib.get_close_matches(name.lower(), words, n=1, cutoff=0.9)), name)


def _distance(owner: str, call: str) -> int:
    """Return 0 for the same call, 1 for calls of one class, and 2 for others."""
    families = [_FAMILIES.get(one, one) for one in (owner.split(".")[0], call.split(".")[0])]
    return 0 if owner == call else 1 if families[0] == families[1] else 2
