"""Python workers of Spark, driven as Spark's JVM does, without a JVM."""

import json
import socket
import subprocess
import sys

import pytest
from pyspark.serializers import (
    CPickleSerializer,
    SpecialLengths,
    read_int,
    write_int,
    write_with_length,
)
from pyspark.sql.streaming.python_streaming_source_runner import GET_DEFAULT_READ_LIMIT_FUNC_ID

from ottla.client.spark import OttlaSource
from ottla.client.spark.schema import source_schema

RUN = """
import socket, sys
from pyspark.sql.streaming.python_streaming_source_runner import main
stream = socket.socket(fileno=int(sys.argv[1])).makefile("rwb", 65536)
main(stream, stream)
"""


@pytest.fixture
def worker():
    """The process that plans a stream, and the file that Spark talks to it through."""
    ours, theirs = socket.socketpair()
    process = subprocess.Popen(
        [sys.executable, "-c", RUN, str(theirs.fileno())],
        pass_fds=[theirs.fileno()],
        stderr=subprocess.PIPE,
        text=True,
    )
    theirs.close()
    with ours, process, ours.makefile("rwb", 65536) as stream:
        yield process, ours, stream
        process.kill()


def begin(stream, tmp_path, **options):
    given = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t", **options}
    for text in (".".join(map(str, sys.version_info[:2])), str(tmp_path)):
        write_with_length(text.encode(), stream)
    write_int(0, stream)  # no other files
    CPickleSerializer()._write_with_length(OttlaSource(given), stream)
    write_with_length(json.dumps(source_schema(has_headers=False).jsonValue()).encode(), stream)
    write_int(10_000, stream)
    stream.flush()


def test_a_worker_ends_silently_when_its_query_ends(worker, tmp_path):
    process, connection, stream = worker
    begin(stream, tmp_path)
    assert read_int(stream) == 0

    connection.shutdown(socket.SHUT_RDWR)

    assert (process.wait(60), process.stderr.read()) == (0, "")


def test_a_worker_reports_an_option_error_in_one_line(worker, tmp_path):
    _process, _connection, stream = worker
    begin(stream, tmp_path, startingOffset="earliest")
    assert read_int(stream) == 0

    write_int(GET_DEFAULT_READ_LIMIT_FUNC_ID, stream)
    stream.flush()

    assert read_int(stream) == SpecialLengths.PYTHON_EXCEPTION_THROWN
    (line,) = stream.read(read_int(stream)).decode().splitlines()
    assert line.endswith(
        "OptionError: Unknown option 'startingoffset' for a streaming read: did you mean"
        " startingOffsets?"
    )
