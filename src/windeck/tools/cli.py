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
    if sys.argv[1:2] == ["view"]:  # which is quick, and does without what takes time to import
        from windeck.tools.view.app import main as view

        view(sys.argv[2:])
        return
    from windeck.tools.commands import app

    app(prog_name="windeck")


if __name__ == "__main__":
    main()
