"""The command line: `make chaos` and `make soak`, or PYTHONPATH=tests python -m chaos --help."""

from __future__ import annotations

import click

from chaos.runner import run
from chaos.soak import soak


@click.group()
def main() -> None:
    """Inject faults under load and check what survives."""


main.add_command(run)
main.add_command(soak)

if __name__ == "__main__":
    main()
