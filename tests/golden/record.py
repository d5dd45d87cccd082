"""Record the traffic between real clients and Apache Kafka: the golden files.

    python tests/golden/record.py --upstream HOST:PORT --listen HOST:PORT [client ...]

A proxy forwards everything unchanged, except that it limits the ApiVersions responses to the
versions that ottla advertises: so the clients choose versions that ottla has to serve. The clients
run one after the other, each driven by its script, `drive_<client>`. The frames are written to
`<client>.txt`, the batches to `batches/<client>-<codec>.bin`.

Requirements:

- Kafka: a single new node whose `advertised.listeners` are the addresses given to `--listen`
  (otherwise clients would bypass the proxy), with another listener for itself: the broker is its
  own client, and needs more than the proxy lets it see. Further configs: one replica for internal
  topics, `log.retention.ms=-1` because the corpus has old timestamps, a `log.dirs` that may be
  published, and `group.initial.rebalance.delay.ms=100` to save time. With an authorizer, ACL
  requests return more than an error (java was recorded with one, the others were not):
  StandardAuthorizer, `super.users=User:ANONYMOUS`, `allow.everyone.if.no.acl.found=true`. With
  `--sasl-upstream` and `--sasl-listen` a second listener, SASL_PLAINTEXT with PLAIN and
  `user_golden="golden"`, is recorded too.
- the Python clients, and for kafka-python python-snappy, lz4 and zstandard, in the environment of
  this interpreter; `kcat` and `node` on the PATH; NODE_PATH set to the folder with kafkajs.
- for the Java client, `java` of a JDK on the PATH, and `--java-classpath` with the jars of Kafka
  (`'libs/*'`, unexpanded). Without them, the Java client is skipped.

The lines of a text file are `Api version request|response hex`, without the size of the frame. At
most three frames of each API, version and direction are kept, and none above MAX_FRAME_BYTES.
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
from uuid import UUID

import corpus
from driving import SASL_PASSWORD, SASL_USER

from ottla.protocol.api.api_versions import ApiVersion, ApiVersionsResponse
from ottla.protocol.api.metadata import MetadataResponse
from ottla.protocol.api.produce import ProduceRequest
from ottla.protocol.codec import decode_request, decode_response, encode_request, encode_response
from ottla.protocol.errors import DecodeError, ErrorCode
from ottla.protocol.registry import API_VERSIONS, APIS, METADATA, PRODUCE, Api
from ottla.protocol.schema import Message

HERE = Path(__file__).parent
MAX_FRAME_BYTES = 4096
CLIENT_TIMEOUT_SECONDS = 180

logger = logging.getLogger("record")


@dataclass(frozen=True, order=True)
class FrameKind:
    """The API, version and direction of a frame."""

    api: str
    version: int
    direction: str


@dataclass(frozen=True)
class PendingRequest:
    """A request without a response yet."""

    key: int
    version: int

    @property
    def api(self) -> Api | None:
        """The API, or None if ottla does not support it in this version."""
        api = APIS.get(self.key)
        return api if api is not None and self.version in api.versions else None


class Recording:
    """The recorded frames and batches of one client."""

    def __init__(self) -> None:
        self.frames: defaultdict[FrameKind, set[bytes]] = defaultdict(set)
        self.batches: dict[str, bytes] = {}
        # Since version 13, Produce has topic ids; Metadata responses have the names.
        self._names: dict[UUID, str] = {}

    def request(self, frame: bytes) -> PendingRequest | None:
        """Record a request; return None if it has no response."""
        pending = PendingRequest(*unpack_from(">hh", frame))
        if pending.api is None:
            logger.warning(
                "  unsupported request: API key %d version %d", pending.key, pending.version
            )
            return pending
        self.frames[FrameKind(pending.api.name, pending.version, "request")].add(frame)
        if pending.api is PRODUCE:
            _header, body = decode_request(frame)
            assert isinstance(body, ProduceRequest)
            self._record_batches(body)
            return None if body.acks == 0 else pending
        return pending

    def response(self, request: PendingRequest, frame: bytes) -> None:
        """Record a response."""
        if request.api is not None:
            self.frames[FrameKind(request.api.name, request.version, "response")].add(frame)
        if request.api is METADATA:
            _correlation_id, body = decode_response(MetadataResponse, request.version, frame)
            self._names.update({topic.topic_id: topic.name or "" for topic in body.topics})

    def _record_batches(self, request: ProduceRequest) -> None:
        for topic in request.topic_data:
            name = topic.name or self._names.get(topic.topic_id, "")
            if name.startswith(corpus.TOPIC_PREFIX):
                codec = name.removeprefix(corpus.TOPIC_PREFIX)
                for partition in topic.partition_data:
                    self.batches.setdefault(codec, bytes(partition.records or b""))

    def write(self, client: str) -> None:
        """Write the files of the client."""
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
    """Check that the corpus was sent in one batch, compressed with the codec."""
    names = ("none", "gzip", "snappy", "lz4", "zstd")
    attributes, count = *unpack_from(">h", batch, 21), *unpack_from(">i", batch, 57)
    if names[attributes & 7] != codec or count != len(corpus.expected(client)):
        logger.error(
            "  %s: %s batch has codec %d, %d records", client, codec, attributes & 7, count
        )


def select(kind: FrameKind, frames: set[bytes]) -> list[bytes]:
    """Select the frames to keep: the shortest, the longest, and one more.

    That is preferably one that does not round trip, then one with an error code or records.
    """
    failed = [frame for frame in frames if not round_trips(kind, frame)]
    if failed:
        logger.warning("  %s: %d of %d frames do not round trip", kind, len(failed), len(frames))
    candidates = sorted((f for f in frames if len(f) <= MAX_FRAME_BYTES), key=lambda f: (len(f), f))
    if len(candidates) <= 3:
        return candidates
    shortest, *others, longest = candidates
    preferred = [frame for frame in others if frame in failed]
    preferred += [
        frame
        for frame in others
        if frame not in failed and has_error_or_records(decode(kind, frame)[1])
    ]
    selected = preferred[0] if preferred else others[len(others) // 2]
    return [shortest, selected, longest]


def decode(kind: FrameKind, frame: bytes) -> tuple[int, Message]:
    """Decode a request or response; return its correlation id and body."""
    if kind.direction == "request":
        header, body = decode_request(frame)
        return header.correlation_id, body
    api = next(api for api in APIS.values() if api.name == kind.api)
    return decode_response(api.response, kind.version, frame)


def round_trips(kind: FrameKind, frame: bytes) -> bool:
    """Whether the decoded frame encodes to the same bytes, as the golden tests require."""
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
    """Whether a message or a nested one has an error code or records."""
    return any(name in ("error_code", "records") and value for name, value in _fields(message))


def _fields(message: Message) -> Iterator[tuple[str, Any]]:
    for name in message.fields:
        value = getattr(message, name)
        yield name, value
        for part in value if isinstance(value, list | tuple) else (value,):
            if isinstance(part, Message):
                yield from _fields(part)


def limit_versions(frame: bytes, version: int) -> bytes:
    """Limit Kafka's ApiVersions response to the versions that ottla advertises."""
    if unpack_from(">h", frame, 4)[0] == ErrorCode.UNSUPPORTED_VERSION:
        version = 0  # the version of this error response
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
    """Forwards frames, and records them in `recording`."""

    def __init__(self, upstream: tuple[str, int]) -> None:
        self.upstream = upstream
        self.recording = Recording()
        self.connections: set[asyncio.Task[None]] = set()

    async def serve(self, listen: tuple[str, int]) -> asyncio.Server:
        """Start listening."""
        return await asyncio.start_server(self._accept, *listen)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._connection(reader, writer))
        self.connections.add(task)
        task.add_done_callback(self.connections.discard)

    async def drain(self) -> None:
        """Wait until all connections are closed."""
        if self.connections:
            _done, unfinished = await asyncio.wait(self.connections, timeout=10)
            if unfinished:
                logger.error(
                    "  %d connections are still open after the client exited", len(unfinished)
                )

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        kafka_reader, kafka_writer = await asyncio.open_connection(*self.upstream)
        pending: deque[PendingRequest] = deque()
        requests = asyncio.create_task(self._requests(reader, kafka_writer, pending))
        responses = asyncio.create_task(self._responses(kafka_reader, writer, pending))
        # When one side closes, close the other.
        both = (requests, responses)
        _done, unfinished = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        for task in unfinished:
            task.cancel()
        for error in await asyncio.gather(*both, return_exceptions=True):
            if isinstance(error, Exception):
                logger.error("  proxy failed: %r", error)
        for side in (writer, kafka_writer):
            side.close()

    async def _requests(
        self,
        reader: asyncio.StreamReader,
        kafka: asyncio.StreamWriter,
        pending: deque[PendingRequest],
    ) -> None:
        async for frame in _frames(reader):
            request = self.recording.request(frame)
            if request is not None:
                pending.append(request)
            _send(kafka, frame)

    async def _responses(
        self,
        kafka: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        pending: deque[PendingRequest],
    ) -> None:
        async for frame in _frames(kafka):
            request = pending.popleft()
            self.recording.response(request, frame)
            is_api_versions = request.key == API_VERSIONS.key
            _send(writer, limit_versions(frame, request.version) if is_api_versions else frame)


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
    """One run of a client program."""

    arguments: list[str]
    stdin: bytes = b""
    environment: dict[str, str] | None = None
    #: Seconds that the standard input stays open after its content.
    stdin_open_seconds: float = 0


def commands(client: str, plain: str, sasl: str | None, java_classpath: str) -> list[Command]:
    """Return the programs to run for a client."""
    addresses = [plain] if sasl is None else [plain, sasl]
    if client == "kcat":
        return _kcat_commands(plain, sasl)
    if client == "kafkajs":
        environment = {"GOLDEN_CORPUS": corpus.as_json(), "KAFKAJS_NO_PARTITIONER_WARNING": "1"}
        return [Command(["node", str(HERE / "drive_kafkajs.js"), *addresses], b"", environment)]
    if client == "java":
        # java compiles a source file given as argument.
        java = ["java", "-cp", java_classpath, str(HERE / "DriveJava.java")]
        return [Command([*java, *addresses], b"", {"GOLDEN_CORPUS": corpus.as_json()})]
    script = HERE / f"drive_{client.replace('-', '_')}.py"
    return [Command([sys.executable, str(script), *addresses])]


def missing(client: str, java_classpath: str | None) -> str | None:
    """Return which requirement of the client is missing, or None."""
    if client == "java":
        if java_classpath is None:
            return "no --java-classpath"
        if shutil.which("java") is None:
            return "no java on the PATH"
    return None


def _kcat_commands(plain: str, sasl: str | None) -> list[Command]:
    """Return the runs of kcat, which has no script.

    At the end of its input kcat flushes, in any number of batches, so the input stays open until
    the corpus is sent. It reads in blocks: one more block makes it read the whole corpus.
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
        # Creates the topics, so that the first record does not have to wait for that.
        *(Command([*kcat, "-L", "-t", corpus.TOPIC_PREFIX + c]) for c in corpus.CODECS["kcat"]),
        *(
            Command(
                [*kcat, "-P", "-t", corpus.TOPIC_PREFIX + codec, "-z", codec, *one_batch, *headers],
                corpus.kcat_input() + b"." * 1024,
                stdin_open_seconds=3,
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
        configs = [
            part
            for config in (
                "security.protocol=SASL_PLAINTEXT",
                "sasl.mechanism=PLAIN",
                f"sasl.username={SASL_USER}",
            )
            for part in ("-X", config)
        ]
        login = ["kcat", "-b", sasl, *configs, "-m", "3", "-L", "-X"]
        runs.append(Command([*login, f"sasl.password={SASL_PASSWORD}"]))
        runs.append(Command([*login, "sasl.password=wrong"]))
    return runs


def run(command: Command) -> None:
    """Run a client program, and log its output."""
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
    time.sleep(command.stdin_open_seconds)
    try:
        output, _ = process.communicate(timeout=CLIENT_TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        output, _ = process.communicate()
        logger.error("  timed out after %d s", CLIENT_TIMEOUT_SECONDS)
    for line in output.decode(errors="replace").splitlines():
        logger.info("%s", line[:300])
    if process.returncode:
        logger.error("  exit status %d", process.returncode)


async def record(options: argparse.Namespace) -> None:
    """Record all clients in turn."""
    proxies = [(Proxy(options.upstream), options.listen)]
    if options.sasl_upstream is not None:
        proxies.append((Proxy(options.sasl_upstream), options.sasl_listen))
    servers = [await proxy.serve(listen) for proxy, listen in proxies]
    texts = [f"{host}:{port}" for _proxy, (host, port) in proxies]
    for client in options.clients or sorted(corpus.CODECS):
        reason = missing(client, options.java_classpath)
        if reason is not None:
            logger.warning("%s skipped: %s", client, reason)
            continue
        recording = Recording()
        for proxy, _listen in proxies:
            proxy.recording = recording
        sasl = texts[1] if len(texts) > 1 else None
        for command in commands(client, texts[0], sasl, options.java_classpath):
            await asyncio.to_thread(run, command)
            # Frames of this client must not be recorded for the next one.
            await asyncio.gather(*(proxy.drain() for proxy, _listen in proxies))
        recording.write(client)
    for server in servers:
        server.close()


def _address(text: str) -> tuple[str, int]:
    host, _colon, port = text.rpartition(":")
    return host, int(port)


def main() -> None:
    """Parse the command line, and record."""
    parser = argparse.ArgumentParser(description="Record golden files.", epilog="See the source.")
    parser.add_argument("--upstream", type=_address, required=True, help="address of Kafka")
    parser.add_argument(
        "--listen", type=_address, required=True, help="address that Kafka advertises"
    )
    parser.add_argument("--sasl-upstream", type=_address, help="address of the SASL listener")
    parser.add_argument("--sasl-listen", type=_address)
    parser.add_argument("--java-classpath", help="jars of Kafka, for the Java client")
    parser.add_argument(
        "clients", nargs="*", help=f"some of {', '.join(corpus.CODECS)}; default: all"
    )
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    asyncio.run(record(parser.parse_args()))


if __name__ == "__main__":
    main()
