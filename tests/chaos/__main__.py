"""The command line of `make chaos`, `make nemesis` and `make soak`: python -m chaos --help."""

from __future__ import annotations

import click

from chaos.nemesis import nemesis
from chaos.runner import run
from chaos.soak import soak


@click.group()
def main() -> None:
    """Inject faults under load and check what survives."""


main.add_command(nemesis)
main.add_command(run)
main.add_command(soak)

if __name__ == "__main__":
    main()
