"""A full disk, kill -9, a start while it is still full, then space: no other restart is needed."""

import time

import pytest

from harness.daemon import Daemon, shown_on_failure
from harness.mounts import private_mounts
from ottla.client import ClientConfig, ClientError, RetryConfig, TimeoutConfig
from ottla.client.blocking import Consumer, Producer
from ottla.protocol.errors import KafkaError

pytestmark = pytest.mark.real_time

VALUE = b"v" * 20_000
CLIENT = ClientConfig(timeouts=TimeoutConfig(operation=2), retry=RetryConfig(max_backoff=0.1))
#: Longer than a housekeeping interval, on a busy machine.
TIMEOUT_SECONDS = 30


def produce(broker, topic, count=1):
    # Idempotent: a producer id needs a change of the metadata log.
    with Producer(broker.address, client=CLIENT) as producer:
        for _ in range(count):
            producer.send(topic, VALUE)


def try_produce(broker, topic):
    try:
        produce(broker, topic)
    except (KafkaError, ClientError):
        return False
    return True


def count_records(broker, topic):
    with Consumer(broker.address, topic, client=CLIENT) as consumer:
        count = 0
        while fetched := consumer.getmany(timeout=1):
            count += sum(map(len, fetched.values()))
        return count


def fill(path):
    """Write until the file system is full."""
    with path.open("wb", buffering=0) as file:
        for size in (64 * 1024, 4096):
            try:
                while file.write(bytes(size)) == size:
                    pass
            except OSError:
                continue


def flip(path, position):
    """Change a byte in place, which needs no space."""
    with path.open("r+b") as file:
        file.seek(position)
        file.write(b"\xff")


def test_a_start_on_a_full_disk_serves_reads_and_writes_resume_by_themselves(tmp_path, request):
    with private_mounts(tmp_path) as mounts:
        mounts.mount_tmpfs("8m")
        broker = Daemon(tmp_path / "daemon")
        broker.data = mounts.path / "data"
        ballast = mounts.path / "ballast"
        with broker, shown_on_failure(request, [broker]):
            for topic in ("sound", "damaged"):
                produce(broker, topic, 10)
            fill(ballast)
            assert not try_produce(broker, "sound")
            broker.kill()
            fill(mounts.path / "more")
            flip(broker.data / "damaged-0" / f"{0:020d}.log", 50_000)

            broker.start()
            assert count_records(broker, "sound") == 10
            assert not try_produce(broker, "sound")
            assert not try_produce(broker, "damaged")
            broker.kill()

            broker.start()  # A second crash finds the same.
            # The damaged batch had one record; its bytes have not been set aside yet.
            assert count_records(broker, "damaged") == 9
            assert not list((broker.data / "damaged-0").glob("*.damaged-*"))
            reader = Consumer(broker.address, "damaged", client=CLIENT)
            assert sum(map(len, reader.getmany(timeout=5).values())) > 0

            ballast.unlink()
            deadline = time.monotonic() + TIMEOUT_SECONDS
            for topic in ("sound", "damaged"):
                while not try_produce(broker, topic):
                    assert time.monotonic() < deadline, f"no writes to {topic}"
            with reader:  # It goes on where it was.
                while not (fetched := reader.getmany(timeout=1)):
                    assert time.monotonic() < deadline, "the consumer does not go on"
                assert fetched
            assert count_records(broker, "sound") == 11
            assert count_records(broker, "damaged") == 10
            assert len(list((broker.data / "damaged-0").glob("*.damaged-*"))) == 1
