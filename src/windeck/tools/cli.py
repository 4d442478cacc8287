"""The command ``windeck``: checks that its extras are installed, then hands over."""

import importlib.util
import sys

#: What the command line needs beyond the library (the extra ``cli``).
EXTRAS = ("typer", "rich", "matplotlib")


def main() -> None:
    """Entry point of the command ``windeck``."""
    missing = [name for name in EXTRAS if importlib.util.find_spec(name) is None]
    if missing:
        sys.exit(f"The command line needs {' and '.join(missing)}: pip install 'windeck[cli]'")
    from windeck.tools.commands import app

    app(prog_name="windeck")


if __name__ == "__main__":
    main()
