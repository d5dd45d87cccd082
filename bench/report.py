"""Writes docs/benchmarks.md and its plots from what the scripts have measured.

    python bench/report.py [--results FOLDER] [--docs FOLDER]

Of each part of each script the newest result counts; one of a --quick run only where there is no
other. So a figure can be measured again by itself: `python bench/broker.py --only latency`, then
this. What was never measured is said to be missing, with the command that measures it.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import click

from benchmark import RESULTS, ROOT
from chart import draw
from figures import SECTIONS, Figure, Table
from figures.parts import NAMES

BUSY_LOAD = 1.0
LINE = 108
HEAD = """# Benchmarks

<!-- Written by bench/report.py: `make bench` measures everything and writes this again. -->

What ottla can do, what that costs, and the same for its peers on the same machine in the same run.
[bench/README.md](../bench/README.md) says how it is measured. In short: contenders take turns, the
best round of each counts, clients and brokers share the cores of one machine. So **the ratios
within a figure mean something; the numbers are those of this machine**.
"""


class Found(NamedTuple):
    """A part of a script's results, and the record that it is from."""

    record: dict[str, Any]
    results: Any


def load(folder: Path) -> list[dict[str, Any]]:
    """Read all results, those that count more behind those that count less."""
    records = [json.loads(path.read_text()) for path in folder.glob("*.json")]
    return sorted(records, key=lambda record: (not record["quick"], record["date"]))


def find(records: list[dict[str, Any]], bench: str, part: str) -> Found | None:
    """Give the result that counts, if there is any."""
    for record in reversed(records):
        if record["bench"] == bench and record["results"].get(part):
            return Found(record, record["results"][part])
    return None


def write(results: Path, docs: Path) -> list[str]:
    """Write the page and its plots; give the titles of the figures that are missing."""
    records = load(results)
    plots = docs / "plots"
    plots.mkdir(parents=True, exist_ok=True)
    for old in plots.glob("*.svg"):
        old.unlink()
    missing, body, used = [], [], []
    for section in SECTIONS:
        body += [f"## {section.title}", textwrap.fill(section.text, LINE)]
        for figure in section.figures:
            body.append(f"### {figure.title}")
            found = find(records, figure.bench, figure.part)
            if found is None:
                missing.append(figure.title)
                body.append(_is_missing(figure))
                continue
            used.append(found.record)
            body += _shown(figure, found, plots)
    page = "\n\n".join([HEAD.strip(), _machine(used), *body])
    (docs / "benchmarks.md").write_text(page + "\n")
    return missing


def _shown(figure: Figure, found: Found, plots: Path) -> Iterable[str]:
    drawing = figure.make(found.results)
    yield textwrap.fill(figure.text, LINE)
    # Where all of a kind have failed, there is nothing to draw.
    if panels := [panel for panel in drawing.panels if panel]:
        (plots / figure.plot).write_text(draw(figure.title, panels))
        yield f"![{figure.title}](plots/{figure.plot})"
    yield from (_table(table) for table in drawing.tables if table.rows)
    yield _source(found.record)
    left_out = found.record["results"].get("left_out", {})
    for name, reason in left_out.items():
        yield f"{NAMES.get(name, name)} is left out: {reason}."


def _is_missing(figure: Figure) -> str:
    return (
        f"*Not measured here.* `python bench/{figure.bench}.py` measures it, then "
        "`python bench/report.py` writes this page again."
    )


def _source(record: dict[str, Any]) -> str:
    words = [f"`{record['command']}`", record["date"][:10], f"commit {record['commit']}"]
    if record["quick"]:
        words.append("**a quick run: one round, for a first look**")
    if record["load"] > BUSY_LOAD:
        words.append(f"**the machine was busy: a load of {record['load']:.1f} at the start**")
    return f"<sub>{'; '.join(words)}</sub>"


def _machine(records: list[dict[str, Any]]) -> str:
    """Say on what it was measured, with what, and when."""
    if not records:
        return "Nothing has been measured yet: `make bench` does it."
    machines = sorted({record["cpu"] for record in records})
    versions: dict[str, str] = {}
    for record in sorted(records, key=lambda record: record["date"]):
        versions |= record["versions"] | record["results"].get("versions", {})
    python = versions.pop("python")
    versions.pop("ottla")
    others = ", ".join(
        f"{NAMES.get(name, name)} {version}" for name, version in sorted(versions.items())
    )
    text = f"Measured on {' and on '.join(machines)}; Python {python}; {others}."
    return textwrap.fill(text, LINE)


def _table(table: Table) -> str:
    rows = [table.header, ["---", *["---:"] * (len(table.header) - 1)], *table.rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


@click.command(help=(__doc__ or "").splitlines()[0])
@click.option("--results", type=click.Path(path_type=Path), default=RESULTS)
@click.option("--docs", type=click.Path(path_type=Path), default=ROOT / "docs")
def main(results: Path, docs: Path) -> None:
    """Write it, and say what is missing."""
    for title in write(results, docs):
        click.echo(f"not measured: {title}", err=True)
    click.echo(f"written to {docs / 'benchmarks.md'}")


if __name__ == "__main__":
    main()
