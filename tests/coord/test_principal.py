"""Principals are written as TYPE:NAME."""

from __future__ import annotations

import pytest

from ottla.coord.principal import ANONYMOUS, KafkaPrincipal, user


def test_principals_are_written_and_parsed_as_in_kafka() -> None:
    assert str(ANONYMOUS) == "User:ANONYMOUS"
    assert KafkaPrincipal.parse("User:CN=alice,O=Example:1") == user("CN=alice,O=Example:1")


@pytest.mark.parametrize("text", ["", "alice", ":alice", "User:"])
def test_a_principal_without_type_or_name_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="expected TYPE:NAME"):
        KafkaPrincipal.parse(text)
