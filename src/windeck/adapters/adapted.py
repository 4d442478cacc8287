"""A loader with batches in the form of another library."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, TypeVar

from torch import Tensor

from windeck._util.options import explain_options
from windeck.loader import Loader
from windeck.sources import Source, Stream
from windeck.windows import BalancedWindows, Windows
from windeck.windows.device import DeviceWindows
from windeck.windows.device_balanced import DeviceBalancedWindows

__all__ = [
    "NEEDS_MASKS",
    "AdaptedLoader",
    "array_of",
    "check_no_codes",
    "is_observed",
    "loader_of",
    "windows_of",
]

#: The cure where a mask is missing.
NEEDS_MASKS = "give the windows masks, by masks=True or among their `keys`"

T = TypeVar("T")
Batch = Mapping[str, Tensor]


@explain_options
class AdaptedLoader(Generic[T]):
    """The batches of a `windeck.Loader`, each in the form of another library.

    Loops, length and state are those of the loader, so it resumes exactly, with any batch size and
    world size. Trainers take it wherever they take a `DataLoader`.

    Attributes
    ----------
    loader : windeck.Loader
        Position, epoch and step, and the object for `windeck.checkpoint`.
    convert
        The function from a batch of the loader to a batch of the library.

    Examples
    --------
    >>> import numpy as np, windeck as wd
    >>> table = wd.Table.from_columns({"load": np.arange(100.0)})
    >>> loader = wd.Loader(wd.Windows(table, context_length=8), batch_size=16)
    >>> pasts = AdaptedLoader(loader, lambda batch: batch["past_target"])
    >>> next(iter(pasts)).shape, pasts.state_dict()["position"]
    (torch.Size([16, 8, 1]), 16)
    """

    def __init__(self, loader: Loader, convert: Callable[[dict[str, Tensor]], T]) -> None:
        self.loader, self.convert = loader, convert

    def __len__(self) -> int:
        """Return the number of batches in the whole current epoch; see `windeck.Loader`."""
        return len(self.loader)

    def __iter__(self) -> Iterator[T]:
        return map(self.convert, self.loader)

    def state_dict(self, *, step: int | None = None) -> dict[str, Any]:
        """Return the state of the loader, fit for JSON; see `windeck.Loader.state_dict`."""
        return self.loader.state_dict(step=step)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of this class or of a `windeck.Loader`; errors as there."""
        self.loader.load_state_dict(state)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.loader!r})"


def windows_of(data: Source | Stream) -> Windows | None:
    """Return the windows that balanced windows, or windows on a device, are made of; or None."""
    while not isinstance(data, Windows):
        if not isinstance(data, (BalancedWindows, DeviceWindows, DeviceBalancedWindows)):
            return None
        data = data.windows
    return data


def loader_of(data: Source | Stream, batch_size: int, options: Mapping[str, Any]) -> Loader:
    """Return a loader of windows, or of another source or stream.

    Raises
    ------
    ValueError
        For windows of another layout than ``"btc"``.
    """
    windows = windows_of(data)
    if windows is not None and windows.layout != "btc":
        raise ValueError(
            f"`data` must have layout='btc', got windows with layout={windows.layout!r}"
        )
    return Loader(data, batch_size=batch_size, **options)


def check_no_codes(batch: Mapping[str, Any]) -> None:
    """Raise a ValueError for a batch with codes of categories, which the library has no place for.

    Codes of categories are in keys of their own.
    """
    found = [key for key in batch if key.endswith("_categorical")]
    if found:
        raise ValueError(
            f"the batch has codes of categories in {', '.join(found)}, expected numbers alone: "
            "leave these columns out of the roles of the windows"
        )


def array_of(batch: Batch, key: str, cure: str) -> Tensor:
    """Return an array of a batch.

    Raises
    ------
    KeyError
        If the batch lacks the key; the message ends with `cure`.
    """
    if key not in batch:
        raise KeyError(f"the batch has no {key!r}, only {list(batch)}: {cure}")
    return batch[key]


def is_observed(batch: Batch, key: str, like: Tensor) -> Tensor:
    """Return the mask of a key as numbers: 1 where a value is observed, in the dtype of `like`."""
    return array_of(batch, f"{key}_mask", NEEDS_MASKS).to(like.dtype)
