"""The command ``windeck``."""

from __future__ import annotations

import argparse
import sys

import windeck
from windeck.cli import demo


def main(arguments: list[str] | None = None) -> None:
    """Run the command of `arguments`, or of ``sys.argv``."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] == ["view"]:
        from windeck.tools.cli import process

        process()
        return
    parser = argparse.ArgumentParser(prog="windeck")
    parser.add_argument("--version", action="version", version=f"windeck {windeck.__version__}")
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True)
    demo.add_parser(subparsers)
    subparsers.add_parser("view", help="look into the checkpoints of a store", add_help=False)
    options = parser.parse_args(arguments)
    options.run(options)
