"""``python -m windeck`` is the command ``windeck``, of the Python that runs it."""

from windeck.cli.main import main

if __name__ == "__main__":
    main()
