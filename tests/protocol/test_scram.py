"""SCRAM: the example of RFC 7677, and messages that are refused."""

from __future__ import annotations

from base64 import b64decode, b64encode

import pytest

from ottla.protocol.scram import (
    ScramError,
    ScramMechanism,
    auth_message,
    credential_of,
    escape,
    parse_client_final,
    parse_client_first,
    parse_server_final,
    parse_server_first,
    unescape,
    xor,
)

_FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
_SERVER_FIRST = (
    b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
)
_FINAL = (
    b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
    b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
)
_SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def test_the_example_of_the_rfc() -> None:
    mechanism = ScramMechanism.SHA_256
    first, bare = parse_client_first(_FIRST)
    server_first = parse_server_first(_SERVER_FIRST)
    final = parse_client_final(_FINAL)
    salted = mechanism.salted_password("pencil", server_first.salt, server_first.iterations)
    credential = credential_of(mechanism, salted, server_first.salt, server_first.iterations)
    signed = auth_message(bare, _SERVER_FIRST.decode(), final.without_proof)

    client_key = xor(final.proof, mechanism.hmac(credential.stored_key, signed))

    assert (first.username, first.authzid, first.gs2_header) == ("user", "", "n,,")
    assert server_first.text.encode() == _SERVER_FIRST
    assert mechanism.hash(client_key) == credential.stored_key
    assert mechanism.hmac(credential.server_key, signed) == parse_server_final(_SERVER_FINAL)


def test_names_are_escaped() -> None:
    first, _bare = parse_client_first(b"n,a=a=3Db=2Cc,n=a=3Db=2Cc,r=x,tokenauth=true")

    assert escape("a=b,c") == "a=3Db=2Cc"
    assert first.username == first.authzid == unescape("a=3Db=2Cc") == "a=b,c"
    assert first.extensions == {"tokenauth": "true"}
    assert first.gs2_header == "n,a=a=3Db=2Cc,"


@pytest.mark.parametrize(
    "message",
    [
        *(b"", b"n", b"n,,", b"p=tls-unique,,n=u,r=x", b"n,,n=,r=x", b"n,,n=u,r=", b"n,,r=x,n=u"),
        *(b"n,b=u,n=u,r=x", b"n,,n=u=2D,r=x", b"n,,n=u,r=a b", b"n,,n=u,n=v,r=x", b"n,,n=\xff,r=x"),
        b"n,,n=u,r=" + b"x" * 5000,
    ],
)
def test_malformed_first_messages_are_refused(message: bytes) -> None:
    with pytest.raises(ScramError):
        parse_client_first(message)


@pytest.mark.parametrize(
    "message", [b"", b"c=biws", b"c=biws,r=x", b"c=!,r=x,p=AA==", b"c=biws,r=x,p=A", b"p=AA==,r=x"]
)
def test_malformed_last_messages_are_refused(message: bytes) -> None:
    with pytest.raises(ScramError):
        parse_client_final(message)


def test_the_error_of_a_server_is_told() -> None:
    with pytest.raises(ScramError, match="unknown-user"):
        parse_server_final(b"e=unknown-user")


def test_a_credential_does_not_show_its_keys() -> None:
    mechanism, salt = ScramMechanism.SHA_512, b64decode("c2FsdA==")
    credential = credential_of(mechanism, b"salted password", salt, 4096)

    assert repr(credential) == "ScramCredential(iterations=4096)"
    assert b64encode(credential.stored_key).decode() not in f"{credential}"
    assert ScramMechanism.of(mechanism.mechanism) is mechanism
    assert mechanism.key_bytes == len(credential.stored_key) == 64
