"""The lines of Kafka's sasl.jaas.config.

org.apache.kafka.common.security.plain.PlainLoginModule required username="a" password="b";
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

_TOKEN = re.compile(r'\s*(?:"((?:[^"\\]|\\.)*)"|([^\s=";]+)|(=)|(;))')
_FLAGS = ("required", "requisite", "sufficient", "optional")


class JaasEntry(NamedTuple):
    """A login module with its options, some of which are secrets."""

    login_module: str
    options: Mapping[str, str]

    def __repr__(self) -> str:
        return f"JaasEntry({self.login_module}, {', '.join(self.options)})"

    @property
    def module_name(self) -> str:
        """The name of the class without its package."""
        return self.login_module.rpartition(".")[2]


def parse_jaas_config(text: str) -> JaasEntry:
    """Parse a line with one login module. Raises ValueError, which does not quote the line."""
    tokens = _tokens(text)
    if len(tokens) < 3 or tokens[-1] != (";", True):
        raise ValueError('expected MODULE required NAME="VALUE" …; with a semicolon at the end')
    (module, _), (flag, _), *rest = tokens[:-1]
    if flag.lower() not in _FLAGS:
        raise ValueError(f"expected 'required' after {module}")
    options: dict[str, str] = {}
    while rest:
        if len(rest) < 3 or rest[1] != ("=", True) or rest[0][1] or rest[2][1]:
            raise ValueError('expected options as NAME="VALUE"')
        options[rest[0][0]] = rest[2][0]
        rest = rest[3:]
    return JaasEntry(module, options)


def _tokens(text: str) -> list[tuple[str, bool]]:
    """Return the tokens, each with whether it is punctuation."""
    tokens: list[tuple[str, bool]] = []
    position, text = 0, text.strip()
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise ValueError(f"unexpected character at position {position}")
        quoted, word, equals, semicolon = match.groups()
        if quoted is not None:
            tokens.append((re.sub(r"\\(.)", r"\1", quoted), False))
        elif word is not None:
            tokens.append((word, False))
        else:
            tokens.append((equals or semicolon, True))
        position = match.end()
    return tokens
