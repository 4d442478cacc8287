"""Something that happens at a chosen instruction of a call, where CPython would call a handler."""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from types import CodeType, FrameType
from typing import Any

#: Instructions after which CPython looks for signals.
CHECKING = ("CALL", "RESUME", "JUMP_BACKWARD", "JUMP_ABSOLUTE")


def files_of(*modules: str) -> set[str]:
    """Return the files of modules, as codes name them."""
    found = (find_spec(module) for module in modules)
    return {str(spec.origin) for spec in found if spec is not None}


@contextmanager
def at_instructions(
    act: Callable[[FrameType], None], chosen: Callable[[CodeType], bool]
) -> Iterator[None]:
    """Call `act` with the frame at each instruction in this thread at which handlers are called.

    Parameters
    ----------
    chosen
        Returns whether to act in frames of a code.
    """
    names: dict[CodeType, dict[int, bool]] = {}

    def trace_call(frame: FrameType, event: str, argument: Any) -> Any:
        if not chosen(frame.f_code):
            return None
        frame.f_trace_opcodes = True
        code, is_checked = frame.f_code, False
        if code not in names:
            names[code] = {
                one.offset: one.opname.startswith(CHECKING) for one in dis.get_instructions(code)
            }
        checks = names[code]

        def trace(frame: FrameType, event: str, argument: Any) -> Any:
            nonlocal is_checked
            if event == "opcode":
                if is_checked:
                    act(frame)
                is_checked = checks.get(frame.f_lasti, False)
            return trace

        return trace

    before = sys.gettrace()
    sys.settrace(trace_call)
    try:
        yield
    finally:
        sys.settrace(before)
