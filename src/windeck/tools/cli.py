"""The command ``windeck``: checks that its extras are installed, then hands over."""

from __future__ import annotations

import gc
import os
import sys

#: What the command line needs beyond the library (the extra ``cli``).
EXTRAS = ("typer", "rich", "matplotlib")


def process() -> None:
    """Entry point of the command ``windeck``: `main`, and the end of the process.

    `windeck view` ends without taking its objects apart, of which a large model's manifest has a
    hundred thousand: stores are closed and all is written by then, and the kernel takes back
    memory at once.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by who called: what is said there is lost
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - until the end
    if sys.argv[1:2] != ["view"]:
        main()
        return
    code = 0
    try:
        main()
    except SystemExit as end:
        if not isinstance(end.code, int):
            raise
        code = end.code
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def main() -> None:
    """Runs the command of `sys.argv`."""
    views = sys.argv[1:2] == ["view"]
    if not views or sys.stdout.isatty():  # elsewhere, the viewer needs none of them
        _check_extras()
    if views:  # which does without what takes time to import
        gc.disable()  # nothing of what imports make is garbage
        from windeck.tools.view.app import main as view

        gc.enable()
        view(sys.argv[2:])
        return
    from windeck.tools.commands import app

    app(prog_name="windeck")


def _check_extras() -> None:
    import importlib.util

    missing = [name for name in EXTRAS if importlib.util.find_spec(name) is None]
    if missing:
        sys.exit(f"The command line needs {' and '.join(missing)}: pip install 'windeck[cli]'")


if __name__ == "__main__":
    process()
