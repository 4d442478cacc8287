"""Batches of windows in the form that the models of other forecasting libraries train on.

One module for each library, named after it. Each converts batches of a `windeck.Loader`: names,
shapes and dtypes are those of the library's own loader, and values are equal bit for bit. The state
is that of the `Loader`. A library is imported only by functions that need its classes.
"""

from windeck._util.imports import needs_torch

with needs_torch("windeck.adapters"):
    from windeck.adapters import (
        chronos2,
        darts,
        gluonts,
        neuralforecast,
        pytorch_forecasting,
        time_series_library,
    )
    from windeck.adapters.adapted import AdaptedLoader

__all__ = [
    "AdaptedLoader",
    "chronos2",
    "darts",
    "gluonts",
    "neuralforecast",
    "pytorch_forecasting",
    "time_series_library",
]
