"""Measurement of data loading beside training: loops, machine, a verdict, and reports."""

from typing import TYPE_CHECKING

from windeck._util.imports import lazy_attributes

if TYPE_CHECKING:
    from windeck.diagnosis.diagnosing import doctor
    from windeck.diagnosis.measurements import (
        Disk,
        LoopTimes,
        Machine,
        Measurements,
        Stage,
        Subject,
        Usage,
    )
    from windeck.diagnosis.report import Diagnosis, comparison, comparison_html
    from windeck.diagnosis.verdict import CAUSES, verdict_of

__all__ = [
    "CAUSES",
    "Diagnosis",
    "Disk",
    "LoopTimes",
    "Machine",
    "Measurements",
    "Stage",
    "Subject",
    "Usage",
    "comparison",
    "comparison_html",
    "doctor",
    "verdict_of",
]

# Imported on first use: torch, pyarrow and NumPy take long to import.
__getattr__ = lazy_attributes(
    __name__,
    {
        "diagnosing": ("doctor",),
        "measurements": (
            "Disk",
            "LoopTimes",
            "Machine",
            "Measurements",
            "Stage",
            "Subject",
            "Usage",
        ),
        "report": ("Diagnosis", "comparison", "comparison_html"),
        "verdict": ("CAUSES", "verdict_of"),
    },
)
