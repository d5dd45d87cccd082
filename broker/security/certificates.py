"""Principals of client certificates: their subjects, mapped by ssl.principal.mapping.rules.

A subject is written most specific part first: `CN=alice,OU=app,O=Example,C=DE`. A rule has the form
`RULE:PATTERN/REPLACEMENT/`, with `L` or `U` after it for lower or upper case. Its pattern has to
match the whole subject; `$1` in the replacement is a group. The first rule that matches wins. A
certificate that no rule matches is refused.

Subjects are chosen by clients, and Python's matching may take exponential time, during which no
other thread runs: patterns have the syntax of RE2, and take time in proportion to the subject.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from ottla.coord.consumer.regexes import CapturingRegex, InvalidRegexError
from ottla.coord.principal import KafkaPrincipal, user
from ottla.protocol.configdef import ConfigError

_RULE = re.compile(
    r"RULE:(?P<pattern>(?:[^/\\]|\\.)*)/(?P<replacement>(?:[^/\\]|\\.)*)/(?P<case>[LU]?)"
)
_GROUP = re.compile(r"\$(\d)")
_DEFAULT = "DEFAULT"
#: Longer subjects are refused.
_MAX_SUBJECT = 1024


class PrincipalRule(NamedTuple):
    """A rule; DEFAULT has no pattern."""

    pattern: CapturingRegex | None
    replacement: str
    case: str

    def name_of(self, subject: str) -> str | None:
        """Return the name for a subject; None if the rule does not match."""
        if self.pattern is None:
            return subject
        groups = self.pattern.fullmatch(subject)
        if groups is None:
            return None
        name = _GROUP.sub(lambda group: groups[int(group[1])], self.replacement)
        return {"L": name.lower, "U": name.upper}.get(self.case, name.__str__)()


def parse_rules(text: str) -> tuple[PrincipalRule, ...]:
    """Parse ssl.principal.mapping.rules. Raises ConfigError."""
    rules: list[PrincipalRule] = []
    position, text = 0, text.strip() or _DEFAULT
    while position < len(text):
        if text.startswith(_DEFAULT, position):
            rules.append(PrincipalRule(None, "", ""))
            position += len(_DEFAULT)
        elif match := _RULE.match(text, position):
            rules.append(_rule(match))
            position = match.end()
        else:
            raise _invalid(text[position:])
        rest = text[position:].lstrip()
        if rest and not rest.startswith(","):
            raise _invalid(text[position:])
        position = len(text) - len(rest[1:].lstrip()) if rest else len(text)
    return tuple(rules)


def _rule(match: re.Match[str]) -> PrincipalRule:
    replacement = match["replacement"]
    problem = ""
    try:
        pattern = CapturingRegex(match["pattern"])
        groups = map(int, _GROUP.findall(replacement))
        if max(groups, default=0) > pattern.group_count:
            problem = f"the pattern has {pattern.group_count} groups"
    except InvalidRegexError as error:
        problem = str(error)
    if problem:
        raise ConfigError(f"Invalid rule {match[0]!r} in ssl.principal.mapping.rules: {problem}")
    return PrincipalRule(pattern, replacement, match["case"])


def _invalid(rest: str) -> ConfigError:
    return ConfigError(
        f"Invalid rule {rest!r} in ssl.principal.mapping.rules: expected DEFAULT or"
        " RULE:PATTERN/REPLACEMENT/, followed by L, U or nothing"
    )


def principal_of_subject(rules: tuple[PrincipalRule, ...], subject: str) -> KafkaPrincipal | None:
    """Return the principal of a subject; None if no rule matches."""
    if len(subject) > _MAX_SUBJECT:
        return None
    for rule in rules:
        name = rule.name_of(subject)
        if name:
            return user(name)
    return None


def load_subject_parser() -> Callable[[bytes], str]:
    """Return the function that returns the subject of a DER certificate. Raises ConfigError."""
    try:
        # Optional, and slow to import.
        from cryptography import x509  # noqa: PLC0415
        from cryptography.x509.oid import NameOID  # noqa: PLC0415
    except ImportError:
        raise ConfigError(
            "ssl.client.auth requires cryptography: pip install 'ottla[security]'"
        ) from None
    # Java's names; others are written as numbers.
    names: dict[Any, str] = {
        NameOID.COMMON_NAME: "CN",
        NameOID.COUNTRY_NAME: "C",
        NameOID.ORGANIZATION_NAME: "O",
        NameOID.ORGANIZATIONAL_UNIT_NAME: "OU",
        NameOID.LOCALITY_NAME: "L",
        NameOID.STATE_OR_PROVINCE_NAME: "ST",
        NameOID.STREET_ADDRESS: "STREET",
        NameOID.DOMAIN_COMPONENT: "DC",
        NameOID.USER_ID: "UID",
    }

    def subject_of(certificate: bytes) -> str:
        return x509.load_der_x509_certificate(certificate).subject.rfc4514_string(names)

    return subject_of
