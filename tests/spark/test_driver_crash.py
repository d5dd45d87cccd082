"""A driver is killed with SIGKILL; another one continues from the checkpoint."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.real_time

DRIVER = Path(__file__).with_name("driver.py")
RECORDS = 20_000


def test_each_record_is_written_once(
    stream, bootstrap, make_topic, producer, drain, rows_of, tmp_path
):
    topic = make_topic(3)
    producer.send_many(topic, [b"%d" % number for number in range(RECORDS)])
    log = tmp_path / "driver.log"

    with log.open("wb") as file:
        command = [sys.executable, str(DRIVER), bootstrap, topic, str(tmp_path)]
        driver = subprocess.Popen(
            command, stdout=file, stderr=file, stdin=subprocess.DEVNULL, start_new_session=True
        )
    try:
        wait_for_batches(tmp_path / "out-checkpoint" / "commits", 3, driver, log)
    finally:
        # Spark's JVM and Python workers are in the same process group, and are killed too.
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
    assert len(done(tmp_path / "out-checkpoint" / "commits")) < RECORDS // 500

    drain(stream(subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="5000").load())

    values = sorted(int(value) for (value,) in rows_of("value"))
    assert values == list(range(RECORDS))


def wait_for_batches(commits, count, driver, log):
    deadline = time.monotonic() + 300
    while len(done(commits)) < count:
        assert driver.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.02)


def done(commits):
    return [path for path in commits.glob("*") if path.name.isdigit()]
