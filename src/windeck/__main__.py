"""``python -m windeck`` is the command ``windeck``, of the Python that runs it."""

from windeck.tools.cli import process

if __name__ == "__main__":
    process()
