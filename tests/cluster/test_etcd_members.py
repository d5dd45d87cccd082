"""The store on an etcd whose members are killed, paused, replaced, or require authentication."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from base64 import b64encode
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from harness.etcd import EtcdCluster, EtcdMember
from ottla.broker.cluster.store.etcd_store import EtcdStore
from ottla.broker.cluster.store.metadata_store import (
    KEEP_LEASE,
    LeaseExpiredError,
    MetadataStore,
    ModRevision,
    OtherStoreError,
    Put,
    StoreError,
    StoreUnavailableError,
    UnknownOutcomeError,
)
from ottla.broker.cluster.store.store_url import StoreCredentials, StoreUrl, parse_store_url
from ottla.protocol.configdef import ConfigError

pytestmark = pytest.mark.real_time


@pytest.fixture(scope="module")
def three_members(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    with EtcdCluster(tmp_path_factory.mktemp("etcd"), 3) as started:
        yield started


@pytest.fixture
def etcd(three_members: EtcdCluster) -> EtcdCluster:
    for member in three_members:
        if not member.is_running:
            member.start()
        member.resume()
    three_members.wait_until_writable()
    return three_members


@pytest.fixture
def one_member(tmp_path: Path) -> Iterator[EtcdCluster]:
    with EtcdCluster(tmp_path) as started:
        yield started


@asynccontextmanager
async def connected(
    *addresses: str, credentials: StoreCredentials | None = None, name: str = "members"
) -> AsyncIterator[EtcdStore]:
    store = EtcdStore.open(StoreUrl(addresses, name, False), credentials)
    try:
        yield store
    finally:
        await store.close()


def member_in_use(etcd: EtcdCluster, store: Any) -> EtcdMember:
    url = store._client._current().url
    return next(member for member in etcd if url.endswith(f":{member.port}"))


async def put(store: MetadataStore, key: bytes, value: bytes) -> int:
    result = await store.transact([], [Put(key, value)])
    assert result.succeeded
    return result.revision


async def keep_alive(store: MetadataStore, lease_id: int) -> None:
    """Keep a lease alive as a broker does: a failure is followed by the next attempt at once."""
    while True:
        try:
            await store.keep_alive(lease_id)
        except StoreUnavailableError:
            continue
        return


@pytest.mark.parametrize("fault", ["kill", "pause"])
async def test_another_member_takes_over(etcd: EtcdCluster, fault: str, name: str) -> None:
    async with (
        asyncio.timeout(30),
        connected(*etcd.addresses, name=name) as store,
        connected(*etcd.addresses, name=name) as writer,
    ):
        lease_id = await store.grant_lease(20)
        revision = await put(store, b"a", b"0")
        async with aclosing(store.watch(revision)) as watch:
            await put(writer, b"a", b"1")
            assert (await anext(watch)).entries[0].value == b"1"
            following = asyncio.ensure_future(anext(watch))
            lost = member_in_use(etcd, store)
            getattr(lost, fault)()
            await keep_alive(store, lease_id)
            assert member_in_use(etcd, store) is not lost
            current = (await store.load()).entries[b"a"]
            # The writer may use the lost member, too: the transaction is repeated elsewhere.
            result = await writer.transact(
                [ModRevision(b"a", current.mod_revision)], [Put(b"a", b"2")]
            )
            assert result.succeeded
            assert (await following).entries[0].value == b"2"


async def test_a_watch_leaves_a_member_that_others_have_left(etcd: EtcdCluster, name: str) -> None:
    """The member serves the watch; it is given up because of another request."""
    async with asyncio.timeout(30), connected(*etcd.addresses, name=name) as store:
        revision = await put(store, b"a", b"0")
        async with aclosing(store.watch(revision)) as watch:
            following = asyncio.ensure_future(anext(watch))
            await put(store, b"a", b"1")
            await following
            following = asyncio.ensure_future(anext(watch))
            await asyncio.sleep(0)
            await store._client.leave_member("a request failed")
            await put(store, b"a", b"2")
            assert (await following).entries[0].value == b"2"


async def test_a_transaction_at_a_member_that_hangs_takes_effect_once(
    etcd: EtcdCluster, name: str
) -> None:
    async with asyncio.timeout(30), connected(*etcd.addresses, name=name) as store:
        revision = await put(store, b"a", b"1")
        hung = member_in_use(etcd, store)
        hung.pause()
        result = await store.transact([ModRevision(b"a", revision)], [Put(b"a", b"2")])
        assert result.succeeded
        # It wakes with the first attempt in its socket.
        hung.resume()
        etcd.wait_until_writable()
        entry = (await store.load()).entries[b"a"]
        assert (entry.value, entry.mod_revision) == (b"2", result.revision)


async def test_leases_survive_without_a_quorum(etcd: EtcdCluster, name: str) -> None:
    async with asyncio.timeout(40), connected(*etcd.addresses, name=name) as store:
        lease_id = await store.grant_lease(4)
        revision = (await store.transact([], [Put(b"a", b"1", lease_id)])).revision
        leader = etcd.leader()
        followers = [member for member in etcd if member is not leader]
        for member in followers:
            member.pause()
        with pytest.raises(UnknownOutcomeError):
            await store.transact([ModRevision(b"a", revision)], [Put(b"a", b"2", KEEP_LEASE)])
        for member in followers:
            member.resume()
        etcd.wait_until_writable()
        await keep_alive(store, lease_id)
        assert (await store.load()).entries[b"a"].lease_id == lease_id
        await store.revoke_lease(lease_id)
        with pytest.raises(LeaseExpiredError):
            await store.keep_alive(lease_id)


async def test_a_watch_notices_that_there_is_no_leader(etcd: EtcdCluster, name: str) -> None:
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(connected(etcd[2].address, name=name))
        writer = await stack.enter_async_context(connected(*etcd.addresses[:2], name=name))
        await stack.enter_async_context(asyncio.timeout(40))
        watch = await stack.enter_async_context(
            aclosing(store.watch((await store.load()).revision))
        )
        await put(writer, b"a", b"1")
        await anext(watch)
        used = store._client._current()
        following = asyncio.create_task(anext(watch))
        for member in etcd.members[:2]:
            member.pause()
        while store._client._member is used:  # Until etcd ends the stream.
            await asyncio.sleep(0.05)
        assert not following.done()
        for member in etcd.members[:2]:
            member.resume()
        etcd.wait_until_writable()
        await put(writer, b"a", b"2")
        assert (await following).entries[0].value == b"2"


async def test_another_etcd_is_refused(etcd: EtcdCluster, one_member: EtcdCluster) -> None:
    async with asyncio.timeout(30), connected(etcd[0].address, one_member[0].address) as store:
        await store.load()
        first, second = etcd[0], one_member[0]
        used = first if member_in_use_port(store) == first.port else second
        used.kill()
        with pytest.raises(OtherStoreError, match="cluster id"):
            await store.load()


def member_in_use_port(store: Any) -> int:
    return int(store._client._current().url.rpartition(":")[2])


async def test_a_store_that_went_back_is_refused(one_member: EtcdCluster) -> None:
    async with asyncio.timeout(30), connected(one_member[0].address) as store:
        for number in range(5):
            revision = await put(store, b"a", b"%d" % number)
        one_member[0].kill()
        one_member[0].wipe()
        # The same members and token: the cluster id is the same, too.
        one_member.start()
        with pytest.raises(OtherStoreError, match="restored from a backup"):
            async for _change in store.watch(revision):
                pass
        with pytest.raises(OtherStoreError, match="restored from a backup"):
            await store.load()


class TestAuthentication:
    @pytest.fixture
    def secured(self, one_member: EtcdCluster) -> EtcdCluster:
        post = one_member[0].post
        for user in ("root", "ottla"):
            post("/v3/auth/user/add", {"name": user, "password": f"{user}-secret"})
        post("/v3/auth/role/add", {"name": "ottla"})
        prefix, end = b"/ottla/members/", b"/ottla/members0"
        permission = {
            "permType": "READWRITE",
            "key": b64encode(prefix).decode(),
            "range_end": b64encode(end).decode(),
        }
        post("/v3/auth/role/grant", {"name": "ottla", "perm": permission})
        post("/v3/auth/user/grant", {"user": "ottla", "role": "ottla"})
        post("/v3/auth/user/grant", {"user": "root", "role": "root"})
        post("/v3/auth/enable", {})
        return one_member

    @pytest.fixture
    def credentials(self, tmp_path: Path) -> StoreCredentials:
        (tmp_path / "password").write_text("ottla-secret\n")
        return StoreCredentials("ottla", str(tmp_path / "password"))

    async def test_a_user_with_a_password(
        self, secured: EtcdCluster, credentials: StoreCredentials
    ) -> None:
        (address,) = secured.addresses
        async with asyncio.timeout(30), connected(address, credentials=credentials) as store:
            revision = await put(store, b"a", b"1")
            lease_id = await store.grant_lease(20)
            async with aclosing(store.watch(revision - 1)) as watch:
                assert (await anext(watch)).revision == revision
            # It forgets all tokens.
            secured[0].kill()
            secured[0].start()
            await keep_alive(store, lease_id)
            assert (await store.load()).entries[b"a"].value == b"1"
        async with connected(address, credentials=credentials, name="other") as store:
            with pytest.raises(StoreError, match="permission denied"):
                await store.load()

    async def test_a_wrong_password_is_named(self, secured: EtcdCluster, tmp_path: Path) -> None:
        (tmp_path / "wrong").write_text("wrong")
        credentials = StoreCredentials("ottla", str(tmp_path / "wrong"))
        async with connected(*secured.addresses, credentials=credentials) as store:
            with pytest.raises(StoreError, match="invalid user ID or password"):
                await store.load()
        async with connected(*secured.addresses) as store:
            with pytest.raises(StoreError, match="user name is empty"):
                await store.load()


async def test_tls_verifies_the_certificate(tmp_path: Path) -> None:
    with EtcdCluster(tmp_path, 1, "--auto-tls", scheme="https") as etcd:
        url = parse_store_url(etcd.url.replace("etcd://", "etcds://"))
        certificate = etcd[0].data / "fixtures" / "client" / "cert.pem"
        store = EtcdStore.open(url, StoreCredentials(truststore=str(certificate)))
        assert (await store.load()).entries == {}
        await store.close()
        store = EtcdStore.open(url)
        with pytest.raises(StoreUnavailableError, match="certificate verify failed"):
            await store.keep_alive(1)
        await store.close()


def certificate(folder: Path, name: str, issuer: Path | None = None) -> Path:
    """Write a certificate and its key to one PEM file; without an issuer, it is an authority.

    A file with the suffix .crt beside it has the certificate alone.
    """
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl on the path")
    path, key = folder / f"{name}.pem", folder / f"{name}.key"
    # etcd's gateway is a client of etcd itself, with the certificate of the server.
    extensions = ["basicConstraints=critical,CA:TRUE", "keyUsage=critical,keyCertSign"]
    if issuer is not None:
        extensions = [
            *("basicConstraints=critical,CA:FALSE", "extendedKeyUsage=serverAuth,clientAuth"),
            "subjectAltName=IP:127.0.0.1",
        ]
    command = [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += [
        "-nodes",
        "-days",
        "2",
        "-subj",
        f"/CN={name}",
        "-keyout",
        str(key),
        "-out",
        str(path),
    ]
    command += [word for extension in extensions for word in ("-addext", extension)]
    if issuer is not None:
        command += ["-CA", str(issuer), "-CAkey", str(issuer)]
    subprocess.run(command, check=True, capture_output=True)
    alone = path.read_bytes()
    path.with_suffix(".crt").write_bytes(alone)
    path.write_bytes(alone + key.read_bytes())
    return path


async def test_tls_with_a_client_certificate(tmp_path: Path) -> None:
    authority = certificate(tmp_path, "authority")
    server = certificate(tmp_path, "server", authority)
    client = certificate(tmp_path, "client", authority)
    arguments = ["--cert-file", str(server), "--key-file", str(server), "--client-cert-auth"]
    etcd = EtcdCluster(
        tmp_path,
        1,
        *arguments,
        "--trusted-ca-file",
        str(authority.with_suffix(".crt")),
        scheme="https",
    )
    etcd[0].client_certificate = client
    with etcd:
        url = parse_store_url(etcd.url.replace("etcd://", "etcds://"))
        store = EtcdStore.open(url, StoreCredentials("", "", str(authority), str(client)))
        assert (await store.load()).entries == {}
        await store.close()
        store = EtcdStore.open(url, StoreCredentials(truststore=str(authority)))
        with pytest.raises(StoreUnavailableError):
            await store.keep_alive(1)
        await store.close()


class TestUrls:
    def test_members_and_name(self) -> None:
        url = parse_store_url("etcds://a:2379,[::1]:2380/orders")
        assert url == StoreUrl(("a:2379", "[::1]:2380"), "orders", True)
        assert url.prefix == b"/ottla/orders/"

    @pytest.mark.parametrize(
        "text",
        ["a:2379/x", "zk://a:2181/x", "etcd://a/x", "etcd://a:0/x", "etcd://a:1", "etcd://,/x"],
    )
    def test_invalid_ones_are_named(self, text: str) -> None:
        with pytest.raises(ConfigError, match=r"cluster\.store"):
            parse_store_url(text)

    def test_files_that_cannot_be_read_are_named(self, tmp_path: Path) -> None:
        missing = str(tmp_path / "missing")
        with pytest.raises(ConfigError, match=r"cluster\.store\.password\.file"):
            StoreCredentials("u", missing).password()
        with pytest.raises(ConfigError, match=r"ssl\.truststore\.location"):
            StoreCredentials(truststore=missing).ssl_context()
        with pytest.raises(ConfigError, match=r"ssl\.keystore\.location"):
            StoreCredentials(keystore=missing).ssl_context()
