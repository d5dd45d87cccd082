"""Record what real clients and a real Apache Kafka say to each other: the golden files.

    python tests/golden/record.py --upstream HOST:PORT --listen HOST:PORT [client ...]

A proxy stands between the two. It passes everything on as it is, except that it narrows Kafka's
answers to ApiVersions to what ottla advertises: so the clients pick the versions that ottla will
have to serve. Behind it one client after the other is driven by its script, `drive_<client>`, and
what was said is written to `<client>.txt` and `batches/<client>-<codec>.bin`.

What it needs:

- Kafka, a single fresh node whose `advertised.listeners` are the addresses given to `--listen`
  (or clients would go past the proxy), with another listener for itself: the broker is a client of
  its own, too, and needs more than the proxy lets it see. Beside those, one replica for internal
  topics, `log.retention.ms=-1` because the corpus has old timestamps, a `log.dirs` that may be
  published, and `group.initial.rebalance.delay.ms=100` to save time. With an authorizer the
  answers about ACLs are more than an error (java was recorded so, the others were not):
  StandardAuthorizer, `super.users=User:ANONYMOUS`, `allow.everyone.if.no.acl.found=true`. With
  `--sasl-upstream` and `--sasl-listen` a second listener, SASL_PLAINTEXT with PLAIN and
  `user_golden="golden"`, is recorded too.
- the Python clients, and for kafka-python python-snappy, lz4 and zstandard, in this interpreter's
  environment; `kcat` and `node` on the PATH; NODE_PATH naming the folder that has kafkajs.
- for the Java client, a JDK's `java` on the PATH, and `--java-classpath` with the jars that Kafka
  comes with (`'libs/*'`, unexpanded). Without them it is left out.

The lines of a text file are `Api version request|response hex`, without the size of the frame.
Of each kind at most three frames are kept, none of them long.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import shutil
import subprocess
import sys
import time
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from struct import unpack_from
from typing import Any

import corpus
from driving import SASL_PASSWORD, SASL_USER

from ottla.protocol.api.api_versions import ApiVersion, ApiVersionsResponse
from ottla.protocol.api.produce import ProduceRequest
from ottla.protocol.codec import decode_request, decode_response, encode_request, encode_response
from ottla.protocol.errors import DecodeError, ErrorCode
from ottla.protocol.registry import API_VERSIONS, APIS, PRODUCE, Api
from ottla.protocol.schema import Message

HERE = Path(__file__).parent
LONGEST_FRAME = 4096
CLIENT_TIMEOUT = 180

logger = logging.getLogger("record")


@dataclass(frozen=True, order=True)
class Kind:
    """What frames are told apart by."""

    api: str
    version: int
    direction: str


@dataclass(frozen=True)
class Asked:
    """A request that an answer is expected to."""

    key: int
    version: int

    @property
    def api(self) -> Api | None:
        """The api, if the request is one that ottla understands."""
        api = APIS.get(self.key)
        return api if api is not None and self.version in api.versions else None


class Recording:
    """What has been heard of one client."""

    def __init__(self) -> None:
        self.frames: defaultdict[Kind, set[bytes]] = defaultdict(set)
        self.batches: dict[str, bytes] = {}

    def request(self, frame: bytes) -> Asked | None:
        """Note a request; give what to expect, or None when there will be no answer."""
        asked = Asked(*unpack_from(">hh", frame))
        if asked.api is None:
            logger.warning("  a request of key %d version %d: not ours", asked.key, asked.version)
            return asked
        self.frames[Kind(asked.api.name, asked.version, "request")].add(frame)
        if asked.api is PRODUCE:
            _header, body = decode_request(frame)
            assert isinstance(body, ProduceRequest)
            self._note_batches(body)
            return None if body.acks == 0 else asked
        return asked

    def response(self, asked: Asked, frame: bytes) -> None:
        """Note a response."""
        if asked.api is not None:
            self.frames[Kind(asked.api.name, asked.version, "response")].add(frame)

    def _note_batches(self, request: ProduceRequest) -> None:
        for topic in request.topic_data:
            if topic.name.startswith(corpus.TOPIC_PREFIX):
                codec = topic.name.removeprefix(corpus.TOPIC_PREFIX)
                for partition in topic.partition_data:
                    self.batches.setdefault(codec, bytes(partition.records or b""))

    def write(self, client: str) -> None:
        """Write the files of a client."""
        lines = [
            f"{kind.api} {kind.version} {kind.direction} {frame.hex()}\n"
            for kind in sorted(self.frames)
            for frame in select(kind, self.frames[kind])
        ]
        (HERE / f"{client}.txt").write_text("".join(lines))
        for codec in corpus.CODECS[client]:
            if codec not in self.batches:
                logger.error("  %s: no batch compressed with %s", client, codec)
                continue
            batch = self.batches[codec]
            check_batch(client, codec, batch)
            (HERE / "batches" / f"{client}-{codec}.bin").write_bytes(batch)
        logger.info("%s: %d frames", client, len(lines))


def check_batch(client: str, codec: str, batch: bytes) -> None:
    """See that the corpus went out in one batch, and compressed as it should be."""
    names = ("none", "gzip", "snappy", "lz4", "zstd")
    attributes, count = *unpack_from(">h", batch, 21), *unpack_from(">i", batch, 57)
    if names[attributes & 7] != codec or count != len(corpus.expected(client)):
        logger.error(
            "  %s: %s batch has codec %d, %d records", client, codec, attributes & 7, count
        )


def select(kind: Kind, frames: set[bytes]) -> list[bytes]:
    """Choose the frames to keep: the shortest, the longest, and of the rest a remarkable one.

    All frames are tried, so that none is left out which the codec has trouble with.
    """
    odd = [frame for frame in frames if not comes_back(kind, frame)]
    if odd:
        logger.warning("  %s: %d of %d frames do not come back", kind, len(odd), len(frames))
    candidates = sorted((f for f in frames if len(f) <= LONGEST_FRAME), key=lambda f: (len(f), f))
    if len(candidates) <= 3:
        return candidates
    shortest, *rest, longest = candidates
    remarkable = [frame for frame in rest if frame in odd]
    remarkable += [f for f in rest if f not in odd and has_error_or_records(decode(kind, f)[1])]
    chosen = remarkable[0] if remarkable else rest[len(rest) // 2]
    return [shortest, chosen, longest]


def decode(kind: Kind, frame: bytes) -> tuple[int, Message]:
    """Decode a frame of any kind: its correlation id and its body."""
    if kind.direction == "request":
        header, body = decode_request(frame)
        return header.correlation_id, body
    api = next(api for api in APIS.values() if api.name == kind.api)
    return decode_response(api.response, kind.version, frame)


def comes_back(kind: Kind, frame: bytes) -> bool:
    """Whether the frame encodes to itself, as the golden tests will ask."""
    try:
        correlation_id, body = decode(kind, frame)
    except DecodeError:
        return False
    if kind.direction == "request":
        header, _body = decode_request(frame)
        parts = encode_request(body, kind.version, correlation_id, header.client_id)
    else:
        parts = encode_response(body, kind.version, correlation_id)
    return b"".join(parts)[4:] == frame


def has_error_or_records(message: Message) -> bool:
    """Whether a message has an error code or records anywhere in it."""
    return any(name in ("error_code", "records") and value for name, value in _fields(message))


def _fields(message: Message) -> Iterator[tuple[str, Any]]:
    for name in message.fields:
        value = getattr(message, name)
        yield name, value
        for part in value if isinstance(value, list | tuple) else (value,):
            if isinstance(part, Message):
                yield from _fields(part)


def narrow(frame: bytes, version: int) -> bytes:
    """Make Kafka's answer to ApiVersions the one that ottla would give."""
    if unpack_from(">h", frame, 4)[0] == ErrorCode.UNSUPPORTED_VERSION:
        version = 0  # the one that everybody can read
    correlation_id, theirs = decode_response(ApiVersionsResponse, version, frame)
    keys = [
        ApiVersion(
            api_key=entry.api_key,
            min_version=max(entry.min_version, ours.first),
            max_version=min(entry.max_version, ours.last),
        )
        for entry in theirs.api_keys
        if entry.api_key in APIS
        for ours in [APIS[entry.api_key].advertised]
    ]
    answer = ApiVersionsResponse(error_code=theirs.error_code, api_keys=keys)
    return b"".join(encode_response(answer, version, correlation_id))[4:]


class Proxy:
    """Passes frames on, and tells them to `recording`."""

    def __init__(self, upstream: tuple[str, int]) -> None:
        self.upstream = upstream
        self.recording = Recording()
        self.connections: set[asyncio.Task[None]] = set()

    async def serve(self, listen: tuple[str, int]) -> asyncio.Server:
        """Begin to listen."""
        return await asyncio.start_server(self._accept, *listen)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._connection(reader, writer))
        self.connections.add(task)
        task.add_done_callback(self.connections.discard)

    async def drain(self) -> None:
        """Wait until the connections that were made have ended."""
        if self.connections:
            _done, unfinished = await asyncio.wait(self.connections, timeout=10)
            if unfinished:
                logger.error("  %d connections outlive the client", len(unfinished))

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        kafka_reader, kafka_writer = await asyncio.open_connection(*self.upstream)
        pending: deque[Asked] = deque()
        there = asyncio.create_task(self._requests(reader, kafka_writer, pending))
        back = asyncio.create_task(self._responses(kafka_reader, writer, pending))
        # Whoever hangs up first, the other one is told.
        _done, unfinished = await asyncio.wait((there, back), return_when=asyncio.FIRST_COMPLETED)
        for task in unfinished:
            task.cancel()
        for error in await asyncio.gather(there, back, return_exceptions=True):
            if isinstance(error, Exception):
                logger.error("  the proxy failed: %r", error)
        for side in (writer, kafka_writer):
            side.close()

    async def _requests(
        self, reader: asyncio.StreamReader, kafka: asyncio.StreamWriter, pending: deque[Asked]
    ) -> None:
        async for frame in _frames(reader):
            asked = self.recording.request(frame)
            if asked is not None:
                pending.append(asked)
            _send(kafka, frame)

    async def _responses(
        self, kafka: asyncio.StreamReader, writer: asyncio.StreamWriter, pending: deque[Asked]
    ) -> None:
        async for frame in _frames(kafka):
            asked = pending.popleft()
            self.recording.response(asked, frame)
            _send(writer, narrow(frame, asked.version) if asked.key == API_VERSIONS.key else frame)


async def _frames(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    try:
        while True:
            size = int.from_bytes(await reader.readexactly(4))
            yield await reader.readexactly(size)
    except (asyncio.IncompleteReadError, ConnectionError):
        return


def _send(writer: asyncio.StreamWriter, frame: bytes) -> None:
    writer.write(len(frame).to_bytes(4) + frame)


@dataclass(frozen=True)
class Command:
    """One run of a client."""

    arguments: list[str]
    stdin: bytes = b""
    environment: dict[str, str] | None = None
    #: How long the standard input stays open after its content.
    patience: float = 0


def commands(client: str, plain: str, sasl: str | None, java_classpath: str) -> list[Command]:
    """Give the runs that make up the drive of a client."""
    addresses = [plain] if sasl is None else [plain, sasl]
    if client == "kcat":
        return _kcat_commands(plain, sasl)
    if client == "kafkajs":
        environment = {"GOLDEN_CORPUS": corpus.as_json(), "KAFKAJS_NO_PARTITIONER_WARNING": "1"}
        return [Command(["node", str(HERE / "drive_kafkajs.js"), *addresses], b"", environment)]
    if client == "java":
        # Given a source file, java compiles it first.
        java = ["java", "-cp", java_classpath, str(HERE / "DriveJava.java")]
        return [Command([*java, *addresses], b"", {"GOLDEN_CORPUS": corpus.as_json()})]
    script = HERE / f"drive_{client.replace('-', '_')}.py"
    return [Command([sys.executable, str(script), *addresses])]


def missing(client: str, java_classpath: str | None) -> str | None:
    """Say what is not here that the client needs; None if nothing is."""
    if client == "java":
        if java_classpath is None:
            return "no --java-classpath"
        if shutil.which("java") is None:
            return "no java on the PATH"
    return None


def _kcat_commands(plain: str, sasl: str | None) -> list[Command]:
    """kcat has no script: each of its runs is a drive of its own.

    At the end of its input kcat sends what it has, in as many batches as it likes; so the end has
    to wait until the corpus is out. And it reads in blocks: one more makes it see the whole corpus.
    """
    kcat = ["kcat", "-b", plain]
    topic = ["-t", "golden-kcat"]
    lines = b"a:1\nb:2\nc:3\n"
    one_batch = ["-p", "0", "-K", "\t", "-Z", "-X", "linger.ms=500"]
    static = [
        *("-X", "group.instance.id=golden-kcat"),
        *("-X", "partition.assignment.strategy=cooperative-sticky"),
        *("-X", "auto.offset.reset=earliest"),
    ]
    headers = [
        part
        for name, value in corpus.KCAT_HEADERS
        for part in ("-H", name if value is None else f"{name}={value.decode()}")
    ]
    runs = [
        Command([*kcat, "-L"]),
        # This creates them, so that the first record does not wait for that.
        *(Command([*kcat, "-L", "-t", corpus.TOPIC_PREFIX + c]) for c in corpus.CODECS["kcat"]),
        *(
            Command(
                [*kcat, "-P", "-t", corpus.TOPIC_PREFIX + codec, "-z", codec, *one_batch, *headers],
                corpus.kcat_input() + b"." * 1024,
                patience=3,
            )
            for codec in corpus.CODECS["kcat"]
        ),
        Command([*kcat, "-P", *topic, "-K:", "-X", "acks=0"], lines),
        Command([*kcat, "-P", *topic, "-K:", "-X", "acks=1"], lines),
        Command([*kcat, "-P", *topic, "-K:", "-X", "enable.idempotence=true"], lines),
        Command([*kcat, "-P", *topic, "-K:", "-X", "transactional.id=golden-kcat"], lines),
        Command([*kcat, "-L", *topic]),
        Command([*kcat, "-C", *topic, "-e", "-q"]),
        Command([*kcat, "-C", *topic, "-e", "-q", "-o", "s@1600000000000"]),
        Command([*kcat, "-C", "-t", corpus.TOPIC_PREFIX + "zstd", "-p", "0", "-o", "-5", "-e"]),
        Command([*kcat, "-C", "-t", corpus.TOPIC_PREFIX + "none", "-p", "0", "-o", "99999", "-e"]),
        Command([*kcat, "-Q", *topic[:1], "golden-kcat:0:-1", "-t", "golden-kcat:1:1600000000000"]),
        Command([*kcat, "-G", "golden-kcat", "-e", "-q", "golden-kcat"]),
        Command([*kcat, "-G", "golden-kcat-static", *static, "-e", "-q", "golden-kcat"]),
        Command([*kcat, "-C", "-t", "golden-kcat-missing", "-e", "-q"]),
    ]
    if sasl is not None:
        settings = [
            part
            for setting in (
                "security.protocol=SASL_PLAINTEXT",
                "sasl.mechanism=PLAIN",
                f"sasl.username={SASL_USER}",
            )
            for part in ("-X", setting)
        ]
        login = ["kcat", "-b", sasl, *settings, "-m", "3", "-L", "-X"]
        runs.append(Command([*login, f"sasl.password={SASL_PASSWORD}"]))
        runs.append(Command([*login, "sasl.password=wrong"]))
    return runs


def run(command: Command) -> None:
    """Run a client; what it makes of it is for the reader of the log."""
    logger.info("- %s", " ".join([Path(command.arguments[0]).name, *command.arguments[1:]]))
    process = subprocess.Popen(
        command.arguments,
        env=os.environ | (command.environment or {}),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert process.stdin is not None
    process.stdin.write(command.stdin)
    process.stdin.flush()
    time.sleep(command.patience)
    try:
        output, _ = process.communicate(timeout=CLIENT_TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()
        output, _ = process.communicate()
        logger.error("  took too long")
    for line in output.decode(errors="replace").splitlines():
        logger.info("%s", line[:300])
    if process.returncode:
        logger.error("  exit status %d", process.returncode)


async def record(options: argparse.Namespace) -> None:
    """Record the clients, one after the other."""
    proxies = [(Proxy(options.upstream), options.listen)]
    if options.sasl_upstream is not None:
        proxies.append((Proxy(options.sasl_upstream), options.sasl_listen))
    servers = [await proxy.serve(listen) for proxy, listen in proxies]
    texts = [f"{host}:{port}" for _proxy, (host, port) in proxies]
    for client in options.clients or sorted(corpus.CODECS):
        reason = missing(client, options.java_classpath)
        if reason is not None:
            logger.warning("%s is left out: %s", client, reason)
            continue
        recording = Recording()
        for proxy, _listen in proxies:
            proxy.recording = recording
        sasl = texts[1] if len(texts) > 1 else None
        for command in commands(client, texts[0], sasl, options.java_classpath):
            await asyncio.to_thread(run, command)
            # The client has gone; what it left behind must not be taken for the next one's.
            await asyncio.gather(*(proxy.drain() for proxy, _listen in proxies))
        recording.write(client)
    for server in servers:
        server.close()


def _address(text: str) -> tuple[str, int]:
    host, _colon, port = text.rpartition(":")
    return host, int(port)


def main() -> None:
    """Read the command line, and record."""
    parser = argparse.ArgumentParser(description="Record golden files.", epilog="See the source.")
    parser.add_argument("--upstream", type=_address, required=True, help="where Kafka listens")
    parser.add_argument("--listen", type=_address, required=True, help="what Kafka advertises")
    parser.add_argument("--sasl-upstream", type=_address, help="the same for a SASL listener")
    parser.add_argument("--sasl-listen", type=_address)
    parser.add_argument("--java-classpath", help="the jars of Kafka, for the Java client")
    parser.add_argument("clients", nargs="*", help=f"of {', '.join(corpus.CODECS)}; or all")
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    asyncio.run(record(parser.parse_args()))


if __name__ == "__main__":
    main()
