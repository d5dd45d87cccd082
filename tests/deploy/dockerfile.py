"""A minimal Dockerfile parser."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Stage:
    """A build stage."""

    name: str
    base: str
    steps: list[tuple[str, str]] = field(default_factory=list)

    def all(self, verb: str) -> list[str]:
        """Return the arguments of each instruction of a kind."""
        return [words for step_verb, words in self.steps if step_verb == verb]

    def last(self, verb: str) -> str:
        """Return the arguments of the last instruction of a kind, which is the effective one."""
        return self.all(verb)[-1]

    def command(self, verb: str) -> list[str]:
        """Return a command in exec form, in which signals reach the process."""
        command = json.loads(self.last(verb))
        assert isinstance(command, list)
        return command

    @property
    def environment(self) -> dict[str, str]:
        """The variables set by ENV."""
        pairs = (pair for words in self.all("ENV") for pair in shlex.split(words))
        return dict(pair.split("=", 1) for pair in pairs)

    @property
    def copied(self) -> set[str]:
        """The paths copied from the build context."""
        lines = [words.split() for words in self.all("COPY") if not words.startswith("--from")]
        return {name for words in lines for name in words[:-1]}


def parse(path: Path) -> dict[str, Stage]:
    """Return the stages by name, in order."""
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
