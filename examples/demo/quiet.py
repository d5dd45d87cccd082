"""Where the logs of a demo go: into files, of which the ends are shown if it fails."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

_SHOWN_LINES = 20


@contextmanager
def folder() -> Iterator[Path]:
    """Give a folder for logs and data, which goes away with the demo."""
    with tempfile.TemporaryDirectory(prefix="ottla-demo-") as name:
        made = Path(name)
        try:
            yield made
        except click.ClickException:
            raise  # it says all that there is to say
        except Exception:
            for log in sorted(made.glob("*.log")):
                last = log.read_text(errors="replace").splitlines()[-_SHOWN_LINES:]
                click.echo("\n".join([f"--- the end of {log.name}", *last]), err=True)
            raise


@contextmanager
def silence(log: Path) -> Iterator[None]:
    """Let what Spark and Java say of themselves go into a file: it would tear the table."""
    stderr = os.dup(2)
    with log.open("wb") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
