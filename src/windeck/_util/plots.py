"""Axes of matplotlib for the methods `plot`, and long lines drawn with few points."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["MOST_POINTS", "new_axes", "thin_line"]

#: Points of a line: more than a screen has columns.
MOST_POINTS = 4000


def new_axes(ax: Any) -> Any:
    """Return axes to draw on: `ax`, or those of a new figure of pyplot if it is None.

    Raises
    ------
    ModuleNotFoundError
        If matplotlib is not installed.
    """
    if ax is not None:
        return ax
    try:
        from matplotlib import pyplot
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "matplotlib":
            raise
        raise ModuleNotFoundError(
            "plot() needs matplotlib, which is not installed: pip install 'windeck[plot]'",
            name="matplotlib",
        ) from None
    return pyplot.subplots(figsize=(8, 3), layout="constrained")[1]


def thin_line(
    x: npt.NDArray[Any], y: npt.NDArray[np.float64]
) -> tuple[npt.NDArray[Any], npt.NDArray[np.float64]]:
    """Return the least and the greatest value of each of equal stretches of a long line.

    Parameters
    ----------
    x, y
        Of shape (n,). NaN in `y` is no value.

    Returns
    -------
    x, y
        At most `MOST_POINTS` points in their order; a shorter line as it is. O(n) time and memory.
    """
    import numpy as np

    if len(y) <= MOST_POINTS:
        return x, y
    width = -(-2 * len(y) // MOST_POINTS)
    starts = np.arange(0, len(y), width)
    padded = np.full(len(starts) * width, np.nan)
    padded[: len(y)] = y
    rows = padded.reshape(-1, width)
    missing = np.isnan(rows)
    low = starts + np.where(missing, np.inf, rows).argmin(axis=1)
    high = starts + np.where(missing, -np.inf, rows).argmax(axis=1)
    places = np.stack([np.minimum(low, high), np.maximum(low, high)], axis=1).ravel()
    places = np.minimum(places, len(y) - 1)
    return x[places], y[places]
