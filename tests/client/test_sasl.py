"""SASL exchanges: the examples of the RFCs, and brokers that lie."""

import base64

import pytest

from ottla.client.sasl import MAX_ITERATIONS, OAuthBearer, Plain, SaslError, Scram
from ottla.protocol import scram
from ottla.protocol.scram import ScramMechanism

# RFC 7677, section 3.
NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_FIRST = (
    b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
)
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def a_scram(mechanism=ScramMechanism.SHA_256, user="user", password="pencil"):
    return Scram(mechanism, user, password, nonce=NONCE)


def test_scram_sha_256_follows_the_example_of_rfc_7677():
    exchange = a_scram()

    assert exchange.first() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    assert exchange.respond(SERVER_FIRST) == (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert not exchange.is_complete
    assert exchange.respond(SERVER_FINAL) is None
    assert exchange.is_complete


def test_scram_sha_512_proves_the_password_and_verifies_the_broker():
    mechanism = ScramMechanism.SHA_512
    exchange = a_scram(mechanism)
    exchange.first()

    final = scram.parse_client_final(exchange.respond(SERVER_FIRST))

    challenge = scram.parse_server_first(SERVER_FIRST)
    salted = mechanism.salted_password("pencil", challenge.salt, challenge.iterations)
    known = scram.credential_of(mechanism, salted, challenge.salt, challenge.iterations)
    signed = scram.auth_message(f"n=user,r={NONCE}", SERVER_FIRST.decode(), final.without_proof)
    client_key = scram.xor(final.proof, mechanism.hmac(known.stored_key, signed))
    assert mechanism.hash(client_key) == known.stored_key
    signature = base64.b64encode(mechanism.hmac(known.server_key, signed))
    assert exchange.respond(b"v=" + signature) is None
    assert exchange.is_complete


def test_commas_and_equals_signs_in_names_are_escaped():
    assert a_scram(user="a=b,c").first() == b"n,,n=a=3Db=2Cc,r=" + NONCE.encode()


def test_nonces_differ():
    assert (
        Scram(ScramMechanism.SHA_256, "u", "p").first()
        != Scram(ScramMechanism.SHA_256, "u", "p").first()
    )


@pytest.mark.parametrize(
    ("challenge", "problem"),
    [
        (SERVER_FIRST.replace(b"rOpr", b"xOpr"), "nonce"),
        (b"r=" + NONCE.encode() + b",s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096", "nonce"),
        (SERVER_FIRST.replace(b"4096", b"4095"), "4095 iterations"),
        (SERVER_FIRST.replace(b"4096", b"1"), "1 iterations"),
        (SERVER_FIRST.replace(b"4096", b"%d" % (MAX_ITERATIONS + 1)), "iterations: must be"),
        (SERVER_FIRST.replace(b"4096", b"9" * 4000), "iterations: must be"),
        (SERVER_FIRST.replace(b"4096", b"-5000"), "expected r=NONCE,s=SALT,i=NUMBER"),
        (SERVER_FIRST.replace(b",i=4096", b""), "expected r=NONCE,s=SALT,i=NUMBER"),
        (SERVER_FIRST.replace(b"W22Z", b"!!!!"), "expected base64"),
        (b"m=ext," + SERVER_FIRST, "expected r=NONCE"),
        (SERVER_FIRST + b",i=4096", "distinct names"),
        (b"nonsense", "NAME=VALUE"),
        (b"", "NAME=VALUE"),
        (b"\xff\xfe", "expected UTF-8"),
    ],
)
def test_a_tampered_challenge_gets_no_proof(challenge, problem):
    exchange = a_scram()
    exchange.first()

    with pytest.raises(SaslError, match=problem):
        exchange.respond(challenge)
    assert not exchange.is_complete


@pytest.mark.parametrize(
    ("final", "problem"),
    [
        (b"v=" + base64.b64encode(bytes(32)), "does not know the password"),
        (SERVER_FINAL.replace(b"6rri", b"6rrj"), "does not know the password"),
        (b"v=", "signature is wrong|expected v=SIGNATURE"),
        (b"", "NAME=VALUE"),
        (b"e=other-error", "other-error"),
        (SERVER_FIRST, "signature is wrong|expected v=SIGNATURE"),
    ],
)
def test_a_broker_that_cannot_prove_itself_is_rejected(final, problem):
    exchange = a_scram()
    exchange.first()
    exchange.respond(SERVER_FIRST)

    with pytest.raises(SaslError, match=problem):
        exchange.respond(final)
    assert not exchange.is_complete


def test_plain_sends_name_and_password():
    exchange = Plain("alice", "söcret")

    assert exchange.first() == "\0alice\0söcret".encode()
    exchange.respond(b"")
    assert exchange.is_complete


def test_oauthbearer_sends_the_token():
    exchange = OAuthBearer("a.b.c")

    assert exchange.first() == b"n,,\1auth=Bearer a.b.c\1\1"
    exchange.respond(b"")
    assert exchange.is_complete


def test_a_rejected_token_is_acknowledged():
    exchange = OAuthBearer("a.b.c")

    assert exchange.respond(b'{"status":"invalid_token"}') == b"\1"
    assert not exchange.is_complete
    with pytest.raises(SaslError, match="invalid_token"):
        exchange.respond(b"")


@pytest.mark.parametrize("token", ["", "a\1auth=Bearer b", "a\nb", "ü"])
def test_a_token_cannot_inject_attributes(token):
    with pytest.raises(SaslError, match="the token is empty, or has characters"):
        OAuthBearer(token)
