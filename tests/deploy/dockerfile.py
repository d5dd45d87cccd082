"""A Dockerfile, as far as the tests need to understand one."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Stage:
    """What one FROM begins."""

    name: str
    base: str
    steps: list[tuple[str, str]] = field(default_factory=list)

    def all(self, verb: str) -> list[str]:
        """Give what an instruction is followed by, each time that it comes."""
        return [words for found, words in self.steps if found == verb]

    def last(self, verb: str) -> str:
        """Give what the last of these instructions says: the one that counts."""
        return self.all(verb)[-1]

    def command(self, verb: str) -> list[str]:
        """Give a command in exec form: no shell stands between it and signals."""
        found = json.loads(self.last(verb))
        assert isinstance(found, list)
        return found

    @property
    def environment(self) -> dict[str, str]:
        """The variables that it sets."""
        pairs = (pair for words in self.all("ENV") for pair in shlex.split(words))
        return dict(pair.split("=", 1) for pair in pairs)

    @property
    def copied(self) -> set[str]:
        """What it takes from the context."""
        lines = [words.split() for words in self.all("COPY") if not words.startswith("--from")]
        return {name for words in lines for name in words[:-1]}


def parse(path: Path) -> dict[str, Stage]:
    """Give the stages, in order."""
    lines = [line for line in path.read_text().splitlines() if not line.lstrip().startswith("#")]
    stages: dict[str, Stage] = {}
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        verb, _, words = line.strip().partition(" ")
        if verb == "FROM":
            base, _, name = words.partition(" AS ")
            stage = stages[name] = Stage(name, base)
            if base in stages:
                stage.steps += stages[base].steps
        elif verb:
            stage.steps.append((verb, " ".join(words.split())))
    return stages
