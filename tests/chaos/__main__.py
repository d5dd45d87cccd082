"""The command: python tests/chaos run, and python tests/chaos soak; --help says more."""

from __future__ import annotations

import sys
from pathlib import Path

import click

# Where pytest finds what tests share.
TESTS = Path(__file__).resolve().parent.parent
sys.path[0] = str(TESTS)

from chaos.runner import run  # noqa: E402
from chaos.soak import soak  # noqa: E402


@click.group()
def main() -> None:
    """Break things under load, and see what survives."""


main.add_command(run)
main.add_command(soak)

if __name__ == "__main__":
    main()
