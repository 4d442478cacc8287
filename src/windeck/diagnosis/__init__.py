"""Measurement of data loading beside training: loops, machine, a verdict, and reports."""
