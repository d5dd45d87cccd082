"""The code blocks of the documentation, and how they are tested.

    python      is executed; a `main(bootstrap)` in it is called, and tests in it are run by pytest
    transcripts, with `$ ` before commands: are run by a shell, and the output is compared
    commands    those of `ottla` are run if they end by themselves, otherwise parsed
    toml, properties, json: are parsed

A comment in the line above a block marks exceptions:

    <!-- needs: spark -->                   run by the tests of Spark
    <!-- quoted: protocol/api/fetch.py -->  an excerpt of that file
    <!-- not run: reason -->                not tested
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
#: Every page of the repository, without those of installed packages.
PAGES = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "examples/**/*.md", "bench/**/*.md")
    for path in ROOT.glob(pattern)
)
#: The bootstrap address in all pages.
DEFAULT_ADDRESS = "localhost:9092"
#: How commands start, in blocks without a language.
PROGRAMS = ("curl", "docker", "kafka-python", "kcat", "make", "ottla", "pip", "python", "pytest")

_NOTE = re.compile(r"<!-- (needs|quoted|not run): (.+) -->")
_SEPARATORS = {"|", "&&", "||", ";", "&", "(", ")"}


@dataclass(frozen=True)
class Block:
    """A code block."""

    page: Path
    line: int
    language: str
    text: str
    needs: str = ""
    quoted: str = ""
    not_run: str = ""

    def __str__(self) -> str:
        return f"{name_of(self.page)}:{self.line}"

    @property
    def is_python(self) -> bool:
        """Whether it is Python."""
        return self.language == "python"

    @property
    def is_transcript(self) -> bool:
        """Whether it has commands and their output."""
        return self.language in ("", "console") and self.text.startswith("$ ")

    @property
    def commands(self) -> list[str]:
        """The commands, each in one line."""
        if self.language not in ("", "sh", "console"):
            return []
        lines = _lines(self.text)
        if self.is_transcript:
            return [line[2:] for line in lines if line.startswith("$ ")]
        return [line.strip() for line in lines if _is_command(line, self.language)]


def name_of(page: Path) -> str:
    """Return the path of a page relative to the root."""
    return str(page.relative_to(ROOT))


def blocks_of(page: Path) -> Iterator[Block]:
    """Yield the blocks of a page."""
    notes: dict[str, str] = {}
    opened: tuple[int, str] | None = None
    inside: list[str] = []
    for number, line in enumerate(page.read_text().splitlines(), start=1):
        if opened is not None:
            if line.startswith("```"):
                text = "\n".join([*inside, ""])
                yield Block(page, *opened, text, **notes)
                opened, inside, notes = None, [], {}
            else:
                inside.append(line)
        elif line.startswith("```"):
            opened = number, line.removeprefix("```").strip()
        elif match := _NOTE.fullmatch(line):
            notes = {match[1].replace(" ", "_"): match[2]}
        elif line:
            notes = {}
    assert opened is None, f"{name_of(page)}: the code block of line {opened} is not closed"


def _is_command(line: str, language: str) -> bool:
    words = line.split()
    while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):
        del words[0]
    if not words or words[0].startswith("#"):
        return False
    return language == "sh" or words[0] in PROGRAMS or re.search(r"[|&(] ?ottla ", line) is not None


def _lines(text: str) -> list[str]:
    """Return the lines, with continuation lines joined."""
    return re.sub(r"\s*\\\n\s*", " ", text).splitlines()


def simple_commands(line: str) -> Iterator[list[str]]:
    """Yield the words of each command in a line: those of a pipeline, and those in `$(…)`.

    Text after two spaces is an explanation; the word after < or > is a file.
    """
    for inner in re.findall(r"\$\(([^)]*)\)", line):
        yield from simple_commands(inner)
    line = re.sub(r"\"?\$\([^)]*\)\"?", "SUBSTITUTED", line)
    line = re.split(r"\s{2,}", line.strip())[0]
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.wordchars += ":@%,{}[]+!^"
    words: list[str] = []
    is_file = False
    for token in lexer:
        if token in _SEPARATORS:
            if words:
                yield words
            words = []
        elif set(token) <= set("<>"):
            is_file = True
        elif is_file:
            is_file = False
        elif not words and re.fullmatch(r"[A-Z_]+=.*", token):
            continue
        else:
            words.append(token)
    if words:
        yield words


@dataclass(frozen=True)
class Step:
    """A command of a transcript and its output."""

    command: str
    printed: list[str]


def steps_of(block: Block) -> list[Step]:
    """Return the steps of a transcript."""
    steps: list[Step] = []
    for line in _lines(block.text):
        if line.startswith("$ "):
            steps.append(Step(line[2:], []))
        else:
            steps[-1].printed.append(line)
    return steps


def is_like(printed: str, documented: str) -> bool:
    """Whether a line matches the documented one; `…` matches anything, spaces any number."""
    pattern = r"\s+".join(re.escape(word).replace("…", ".*") for word in documented.split())
    return re.fullmatch(pattern, printed.strip()) is not None
