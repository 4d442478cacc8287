"""``python -m windeck`` runs the command `windeck`."""

from windeck.cli.main import process

if __name__ == "__main__":
    process()
