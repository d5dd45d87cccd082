"""The lines of sasl.jaas.config."""

from __future__ import annotations

import pytest

from ottla.client.jaas import parse_jaas_config


def test_a_line_as_in_kafkas_documentation() -> None:
    entry = parse_jaas_config(
        "org.apache.kafka.common.security.plain.PlainLoginModule required \\\n"
        '  username="admin" password="a\\"b;=" user_alice=secret;'.replace("\\\n", "")
    )

    assert entry.module_name == "PlainLoginModule"
    assert entry.options == {"username": "admin", "password": 'a"b;=', "user_alice": "secret"}
    assert "secret" not in repr(entry)


@pytest.mark.parametrize(
    "text",
    ["", "Module", "Module required", "Module a=b;", "M required a;", 'M required a="b', "M x y;"],
)
def test_malformed_lines_are_refused_without_quoting_them(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected|unexpected"):
        parse_jaas_config(text)
