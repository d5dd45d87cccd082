"""`ottla cert`: certificates that TLS libraries accept, and keys that others cannot read."""

import json
import socket
import ssl
import stat
import threading

import pytest


@pytest.fixture
def certs(tmp_path):
    return tmp_path / "certs"


def handshake(certs, host, keystore="broker"):
    """Return the client's peer certificate of a handshake, with client authentication."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certs / f"{keystore}.pem")
    server.load_verify_locations(certs / "ca.pem")
    server.verify_mode = ssl.CERT_REQUIRED
    client = ssl.create_default_context(cafile=certs / "ca.pem")
    client.load_cert_chain(certs / "alice.pem")
    ours, theirs = socket.socketpair()
    seen = {}

    def serve():
        try:
            with server.wrap_socket(theirs, server_side=True) as accepted:
                seen.update(accepted.getpeercert())
                accepted.sendall(b"!")
        except OSError:
            theirs.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with client.wrap_socket(ours, server_hostname=host) as connected:
            assert connected.recv(1) == b"!"
    finally:
        ours.close()
        thread.join()
    return seen


def test_certificates_are_accepted_on_both_sides(run, certs):
    run("cert", "broker", "--host", "kafka.example", "--host", "10.1.2.3", "--dir", str(certs))
    run("cert", "client", "alice", "--dir", str(certs))

    assert handshake(certs, "kafka.example")["subject"] == ((("commonName", "alice"),),)
    handshake(certs, "10.1.2.3")
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        handshake(certs, "other.example")
    with pytest.raises(ssl.SSLCertVerificationError, match="purpose"):
        handshake(certs, "kafka.example", keystore="alice")


def test_keys_are_readable_for_their_owner_only(run, certs):
    run("cert", "broker", "--dir", str(certs))

    for name in ("ca.key", "broker.pem"):
        assert stat.S_IMODE((certs / name).stat().st_mode) == 0o600
    assert "PRIVATE KEY" not in (certs / "ca.pem").read_text()


def test_an_existing_certificate_is_replaced_or_kept(run, certs):
    run("cert", "broker", "--dir", str(certs))
    first, authority = (certs / "broker.pem").read_bytes(), (certs / "ca.pem").read_bytes()

    run("cert", "broker", "--dir", str(certs), "--if-missing")
    assert (certs / "broker.pem").read_bytes() == first
    run("cert", "broker", "--dir", str(certs))
    assert (certs / "broker.pem").read_bytes() != first
    assert (certs / "ca.pem").read_bytes() == authority


def test_a_certificate_is_shown(run, certs):
    run("cert", "broker", "logs", "--host", "a.example", "--dir", str(certs), "--days", "3")

    shown = json.loads(run("cert", "show", str(certs / "logs.pem"), "--json"))
    assert shown["subject"] == "CN=logs"
    assert shown["hosts"] == ["a.example"]
    assert "expires" in run("cert", "show", str(certs / "logs.pem"))


@pytest.mark.parametrize("name", ["ca", "../x", ""])
def test_names_that_would_be_other_files_are_errors(run, certs, name):
    assert "invalid name" in run.fails(2, "cert", "client", name, "--dir", str(certs))


def test_a_file_without_a_certificate_is_an_error(run, tmp_path):
    path = tmp_path / "nothing.pem"
    path.write_text("nothing")
    assert "no certificate in PEM format" in run.fails(1, "cert", "show", str(path))


def test_a_key_of_another_authority_is_an_error(run, tmp_path):
    run("cert", "broker", "--dir", str(tmp_path / "a"))
    run("cert", "broker", "--dir", str(tmp_path / "b"))
    (tmp_path / "a" / "ca.key").replace(tmp_path / "b" / "ca.key")

    failure = run.fails(1, "cert", "broker", "--dir", str(tmp_path / "b"))
    assert "is not the key of" in failure
