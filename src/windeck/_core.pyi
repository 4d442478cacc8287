"""
The native core of windeck: orders, windows, gather.
"""
from __future__ import annotations
__all__: list[str] = ['simd']
def simd() -> str:
    """
    The instruction set in use: 'baseline', 'avx2' or 'avx512' (see WINDECK_SIMD).
    """
