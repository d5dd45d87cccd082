"""`ottla log …`: inspect the segment files of a data directory."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from . import output

if TYPE_CHECKING:
    from ottla.protocol.batch import Record
    from ottla.storage.dump import DumpedBatch


@click.group()
def log() -> None:
    """Inspect the segment files of a data directory."""


@log.command("dump")
@click.option("--records", is_flag=True, help="Also print the records of each batch.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per batch.")
@click.argument(
    "files",
    metavar="FILE...",
    nargs=-1,
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
)
def dump_files(files: tuple[Path, ...], records: bool, as_json: bool) -> None:
    """Print the record batches of segment files and report damage.

    \b
        ottla log dump ottla-data/orders-0/*.log
        ottla log dump --records ottla-data/orders-0/00000000000000000000.log
    """
    from ottla.storage.dump import dump

    total = sum(path.stat().st_size for path in files)
    with output.progress("reading", total, is_shown=not sys.stdout.isatty()) as bar:
        for path in files:
            if not as_json:
                click.echo(f"{path}:")
            for batch in dump(path, records=records):
                click.echo(_dumped_json(path, batch) if as_json else _dumped_text(batch))
                bar.advance(batch.size)


def _dumped_text(batch: DumpedBatch) -> str:
    fields = {"position": batch.position, "size": batch.size, **batch.header}
    if batch.error:
        fields["error"] = batch.error
    lines = [
        "  " + _formatted(fields),
        *("    " + _formatted(_record(record)) for record in batch.records),
    ]
    return "\n".join(lines)


def _formatted(fields: dict[str, Any]) -> str:
    # Quoted as JSON, so that the content of a record cannot send escape codes to a terminal.
    return " ".join(f"{key}={json.dumps(value)}" for key, value in fields.items())


def _dumped_json(path: Path, batch: DumpedBatch) -> str:
    document = {"file": str(path), "position": batch.position, "size": batch.size, **batch.header}
    document["error"] = batch.error
    if batch.records:
        document["content"] = [_record(record) for record in batch.records]
    return json.dumps(document)


def _record(record: Record) -> dict[str, Any]:
    return {
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": _readable(record.key),
        "value": _readable(record.value),
        "headers": [(name, _readable(value)) for name, value in record.headers],
    }


def _readable(data: bytes | None) -> str | None:
    return None if data is None else data.decode(errors="backslashreplace")
