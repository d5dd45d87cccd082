"""`ottla log …`: inspect the segment files of a data directory."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from . import output
from .errors import Exit

if TYPE_CHECKING:
    from ottla.protocol.batch import Record
    from ottla.storage.dump import DumpedBatch
    from ottla.storage.scrub import Damage

_METADATA_LOG = "__cluster_metadata-0"


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
                click.echo(_dumped_json(path, batch) if as_json else _dumped_text(path, batch))
                bar.advance(batch.size)


@log.command("verify")
@click.option(
    "--data-dir",
    metavar="DIRECTORY",
    default="ottla-data",
    show_default=True,
    type=click.Path(path_type=Path),
    help="Data directory of the named logs, or to verify as a whole.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per damage.")
@click.argument("targets", metavar="[DIRECTORY|TOPIC-PARTITION]...", nargs=-1)
def verify_logs(targets: tuple[str, ...], data_dir: Path, as_json: bool) -> None:
    """Verify the record batches and indexes of a data directory.

    Checks framing, CRCs, offsets, file names, and the indexes against the log. Nothing is changed,
    and a broker may use the directory meanwhile. Exits with 1 if there is damage.

    \b
        ottla log verify ottla-data
        ottla log verify --data-dir ottla-data orders-0 orders-1
    """
    from ottla.storage.disk import Disk
    from ottla.storage.scrub import list_segments, verify_segment

    directories = [
        directory
        for target in targets or (str(data_dir),)
        for directory in _log_directories(target, data_dir)
    ]
    segments = [segment for directory in directories for segment in list_segments(directory)]
    total = sum(_size_of(segment.path) for segment in segments)
    count, disk = 0, Disk()
    with output.progress("verifying", total) as bar:
        for segment in segments:
            try:
                damages = verify_segment(segment, disk, spend=bar.advance)
            except FileNotFoundError:
                continue  # Deleted by a running broker.
            for damage in damages:
                count += 1
                click.echo(_damage_json(damage) if as_json else _damage_text(damage))
    output.note(
        f"verified {output.counted(len(segments), 'segment')} of"
        f" {output.counted(len(directories), 'log')}, {output.counted(total, 'byte')}:"
        f" {f'{count:,} damaged' if count else 'no damage'}"
    )
    if count:
        raise click.exceptions.Exit(Exit.FAILED)


def _log_directories(target: str, data_dir: Path) -> list[Path]:
    """Return the directories of logs that an argument names. Raises UsageError."""
    path = Path(target)
    if not path.is_dir():
        path = data_dir / target
    if not path.is_dir():
        raise click.UsageError(
            f'"{target}" is neither a directory nor a log in {data_dir}: use a data directory, or'
            " TOPIC-PARTITION with --data-dir"
        )
    if any(path.glob("*.log")):
        return [path]
    directories = sorted({file.parent for file in path.glob("*/*.log")})
    if not directories and not (path / "meta.json").exists():
        raise click.UsageError(f'"{target}" is not a data directory: it has no logs')
    return directories


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0  # Deleted by a running broker.


def _damage_text(damage: Damage) -> str:
    last = "?" if damage.last_offset is None else damage.last_offset
    return (
        f"{damage.path}: position {damage.position}, {damage.size} bytes, offsets"
        f" {damage.first_offset} to {last}: {damage.reason}; {damage.advice}"
    )


def _damage_json(damage: Damage) -> str:
    return json.dumps(
        {
            "file": str(damage.path),
            "position": damage.position,
            "size": damage.size,
            "first_offset": damage.first_offset,
            "last_offset": damage.last_offset,
            "reason": damage.reason,
            "advice": damage.advice,
        }
    )


def _dumped_text(path: Path, batch: DumpedBatch) -> str:
    fields = {"position": batch.position, "size": batch.size, **batch.header}
    if batch.error:
        fields["error"] = batch.error
    lines = [
        "  " + _formatted(fields),
        *("    " + _formatted(_record(path, record)) for record in batch.records),
    ]
    return "\n".join(lines)


def _formatted(fields: dict[str, Any]) -> str:
    # Quoted as JSON, so that the content of a record cannot send escape codes to a terminal.
    return " ".join(f"{key}={json.dumps(value)}" for key, value in fields.items())


def _dumped_json(path: Path, batch: DumpedBatch) -> str:
    document = {"file": str(path), "position": batch.position, "size": batch.size, **batch.header}
    document["error"] = batch.error
    if batch.records:
        document["content"] = [_record(path, record) for record in batch.records]
    return json.dumps(document)


def _record(path: Path, record: Record) -> dict[str, Any]:
    # The keys of SCRAM, in the metadata log: dumps are passed on.
    is_scram = (record.key or b"").startswith(b"scram")
    hides = is_scram and path.absolute().parent.name == _METADATA_LOG
    return {
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": _readable(record.key),
        "value": "[hidden]" if hides and record.value else _readable(record.value),
        "headers": [(name, _readable(value)) for name, value in record.headers],
    }


def _readable(data: bytes | None) -> str | None:
    return None if data is None else data.decode(errors="backslashreplace")
