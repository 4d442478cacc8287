"""Tokenization of text with functions and with tokenizers that take batches of texts."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np

from windeck._util.fingerprints import digest, order_name
from windeck.documents.protocol import Int64s

__all__ = ["Tokenizer", "check_tokenizer", "tokenize", "tokenizer_name"]

#: Function from a text to its tokens (a sequence or an array of integers, or bytes); a tokenizer of
#: transformers; or an object with ``encode_batch``, such as a `tokenizers.Tokenizer`.
Tokenizer: TypeAlias = Any

#: Documents and characters that are tokenized at a time.
_BATCH_ROWS, _BATCH_CHARACTERS = 1024, 1 << 22
_INT32 = np.iinfo(np.int32)


def check_tokenizer(tokenizer: Tokenizer) -> None:
    """Check that an object is a tokenizer.

    Raises
    ------
    TypeError
        If it is neither callable nor has ``encode_batch``.
    ValueError
        If it is set to cut or pad texts.
    """
    if not callable(tokenizer) and not hasattr(tokenizer, "encode_batch"):
        raise TypeError(
            "`tokenizer` must be a function from a text to its tokens, a tokenizer of "
            f"transformers, or have encode_batch, got {type(tokenizer).__name__}"
        )
    if _is_of_transformers(tokenizer):
        # Switches off cutting and padding, while no other thread uses the tokenizer.
        tokenizer(["a"], padding=False, truncation=False)
    if callable(tokenizer):
        return
    for setting, cure in (("truncation", "no_truncation"), ("padding", "no_padding")):
        if getattr(tokenizer, setting, None) is not None:
            raise ValueError(
                f"the tokenizer is set to {setting}, which would change documents; expected a "
                f"tokenizer after {cure}()"
            )


def tokenize(texts: Any, tokenizer: Tokenizer, where: str) -> tuple[np.ndarray[Any, Any], Int64s]:
    """Tokenize every row of a column.

    Parameters
    ----------
    texts
        pyarrow ChunkedArray of strings. A null is an empty document and is not tokenized.
    tokenizer
        See `Tokenizer`. Tokenizers that take batches are called with up to 1,024 texts.
    where
        Column and file, for messages.

    Returns
    -------
    tokens : ndarray of integers
        Of the dtype of the arrays. For lists int32 if all tokens fit, else int64.
    offsets : int64 ndarray, shape (rows + 1,)
        Document j is ``tokens[offsets[j] : offsets[j + 1]]``.

    Raises
    ------
    TypeError
        If the tokenizer returns anything but a flat sequence of integers for a text, or integers
        that do not fit into one 64-bit dtype.
    ValueError
        If it returns more or fewer documents than texts.
    """
    documents: list[np.ndarray[Any, Any]] = []
    encode = _batch_function(tokenizer)
    for batch in _batches(texts):
        if encode is None:
            for text in batch:
                place = f"document {len(documents)} in {where}"
                found = b"" if text is None else _call(tokenizer, text, place)
                documents.append(_as_integers(found, place))
        else:
            documents += _encode_batch(encode, batch, len(documents), where)
    offsets = np.zeros(len(documents) + 1, np.int64)
    np.cumsum([len(tokens) for tokens in documents], out=offsets[1:])
    kept = [tokens for tokens in documents if len(tokens)]
    kind = np.result_type(*{tokens.dtype for tokens in kept}) if kept else np.dtype(np.int32)
    if kind.kind not in "iu":
        raise TypeError(
            f"the tokenizer returned tokens of several dtypes for {where}, which only {kind} can "
            "hold; expected integers of one dtype"
        )
    return (np.concatenate(kept).astype(kind) if kept else np.zeros(0, kind)), offsets


def _batches(texts: Any) -> Iterator[list[str | None]]:
    """Yield the rows of a column in lists of a limited number of rows and characters."""
    for start in range(0, len(texts), _BATCH_ROWS):
        batch: list[str | None] = []
        characters = 0
        for text in texts.slice(start, _BATCH_ROWS).to_pylist():
            batch.append(text)
            characters += len(text or "")
            if characters > _BATCH_CHARACTERS:
                yield batch
                batch, characters = [], 0
        if batch:
            yield batch


def _batch_function(tokenizer: Tokenizer) -> Callable[[list[str]], Sequence[Any]] | None:
    """Return the function from texts to the tokens of each; None for a function of one text."""
    if _is_of_transformers(tokenizer):
        options = {"return_attention_mask": False, "return_token_type_ids": False}
        return lambda texts: tokenizer(
            texts, padding=False, truncation=False, verbose=False, **options
        )["input_ids"]
    if callable(tokenizer):
        return None
    # The same tokens without their places in the text.
    encode = getattr(tokenizer, "encode_batch_fast", tokenizer.encode_batch)
    return lambda texts: [getattr(one, "ids", one) for one in encode(texts)]


def _is_of_transformers(tokenizer: Tokenizer) -> bool:
    """Return True for a tokenizer of transformers, which is not imported for that."""
    return any(kind.__name__ == "PreTrainedTokenizerBase" for kind in type(tokenizer).__mro__)


def _encode_batch(
    encode: Callable[[list[str]], Sequence[Any]], batch: list[str | None], first: int, where: str
) -> list[np.ndarray[Any, Any]]:
    """Tokenize the texts of a batch that are not null; `first` is its first document."""
    rows = [row for row, text in enumerate(batch) if text is not None]
    texts = [text for text in batch if text is not None]
    place = f"documents {first} to {first + len(batch) - 1} in {where}"
    found = _call(encode, texts, place) if texts else []
    if len(found) != len(texts):
        raise ValueError(
            f"the tokenizer returned {len(found)} documents for {len(texts)} texts of {place}"
        )
    documents = [np.zeros(0, np.int32)] * len(batch)
    for row, tokens in zip(rows, found, strict=True):
        documents[row] = _as_integers(tokens, f"document {first + row} in {where}")
    return documents


def _call(tokenizer: Callable[[Any], Any], text: str | list[str], where: str) -> Any:
    """Tokenize a text or several; add the location as a note to an error of the tokenizer."""
    try:
        return tokenizer(text)
    except Exception as error:
        if sys.version_info >= (3, 11):
            error.add_note(f"raised by the tokenizer for {where}")
        raise


def _as_integers(tokens: Any, where: str) -> np.ndarray[Any, Any]:
    """Return the tokens of one document as an array of native integers."""
    if isinstance(tokens, (bytes, bytearray)):
        return np.frombuffer(tokens, np.uint8)
    try:
        array = np.asarray(tokens)
    except (ValueError, TypeError, OverflowError) as error:
        raise _not_tokens(tokens, where) from error
    if array.ndim == 1 and not len(array):
        return np.zeros(0, np.int32)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise _not_tokens(tokens, where)
    if isinstance(tokens, (list, tuple)) and array.dtype == np.int64:
        low, high = int(array.min()), int(array.max())
        return array.astype(np.int32) if _INT32.min <= low and high <= _INT32.max else array
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _not_tokens(tokens: Any, where: str) -> TypeError:
    found = repr(tokens)
    found = found if len(found) < 60 else f"{found[:60]}..."
    return TypeError(
        f"the tokenizer returned a {type(tokens).__name__} for {where}, {found}; expected a flat "
        "sequence of integers"
    )


#: Text whose tokens distinguish tokenizers of one name: letters, digits, accents, scripts, code.
_PROBE = (
    "The quick brown fox jumps over 13 lazy dogs; naïve façade, Straße, ŁÓDŹ, привет, 日本語, 🙂.\n"
    "\tdef f(x):\n        return x ** 2  # 0.5e-3, 'x' != \"y\" unbelievably antidisestablishment\n"
)


def tokenizer_name(tokenizer: Tokenizer) -> str:
    """Return the name of a tokenizer as saved states hold it, with a digest of its tokens.

    A function is identified by its name, other tokenizers by the size of their vocabulary: their
    classes and names change between versions, and contain paths.
    """
    if _batch_function(tokenizer) is None:
        name = order_name(tokenizer)
        if len(name) > 200:
            name = f"{name[:60]}... #{digest(name)}"
    else:
        name = f"tokenizer of {_vocabulary_size(tokenizer)}"
    return f"{name} #{_probe_digest(tokenizer)}"


def _vocabulary_size(tokenizer: Tokenizer) -> int:
    if hasattr(tokenizer, "get_vocab_size"):
        return int(tokenizer.get_vocab_size())
    return int(getattr(tokenizer, "n_vocab", 0)) or (
        len(tokenizer) if hasattr(tokenizer, "__len__") else 0
    )


def _probe_digest(tokenizer: Tokenizer) -> str:
    """Return a digest of a tokenizer's tokens for one text, or of the type of error it raises."""
    encode = _batch_function(tokenizer)
    try:
        tokens = tokenizer(_PROBE) if encode is None else encode([_PROBE])[0]
        if isinstance(tokens, (bytes, bytearray)):
            tokens = list(tokens)
        return digest(np.asarray(tokens).astype(np.int64))
    except Exception as error:  # A user's function may raise anything.
        return digest(type(error).__name__)
