"""What is in the page cache, and what is read into it."""

import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ottla.protocol import compiled
from ottla.storage.disk import Disk

SIZE = 1024 * 1024

pytestmark = pytest.mark.skipif(
    not hasattr(os, "posix_fadvise"), reason="requires posix_fadvise to evict pages"
)


@pytest.fixture
def evicted(tmp_path):
    """A file of which nothing is in the page cache, and a map of it."""
    disk, path = Disk(), tmp_path / "file"
    disk.write_file(path, os.urandom(SIZE), durable=True)
    fd = disk.open(path)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    disk.advise_random_access(fd)
    if disk.is_cached(fd, SIZE - 1):
        pytest.skip("the pages stay in the cache here")
    yield disk, fd, memoryview(disk.map(fd, SIZE))
    disk.close(fd)


def test_only_what_was_read_is_resident(evicted, monkeypatch):
    disk, fd, mapped = evicted
    disk.read(fd, 256 * 1024, 0)

    for fast in {compiled.fast, None}:
        monkeypatch.setattr(compiled, "fast", fast)
        assert disk.is_resident(fd, mapped[: 256 * 1024], 0)
        assert disk.is_resident(fd, mapped[5000:9000], 5000)
        assert disk.is_resident(fd, mapped[:0], 0)
        assert not disk.is_resident(fd, mapped, 0)
        assert not disk.is_resident(fd, mapped[300 * 1024 :], 300 * 1024)


@given(pages=st.sets(st.integers(0, 255)), data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20)
def test_the_compiled_module_sees_the_same_pages_as_reads_that_must_not_wait(evicted, pages, data):
    disk, fd, mapped = evicted
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    for page in pages:
        disk.read(fd, 1, page * 4096)
    start = data.draw(st.integers(0, SIZE))
    part = mapped[start : data.draw(st.integers(start, min(start + 200_000, SIZE)))]

    is_resident = disk.is_resident(fd, part, start)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled, "fast", None)
        assert disk.is_resident(fd, part, start) is is_resident


@pytest.mark.skipif(compiled.fast is None, reason="the compiled module was not built")
def test_the_question_whether_pages_are_resident_does_not_load_them(evicted):
    disk, fd, mapped = evicted

    for _ in range(3):
        assert not disk.is_resident(fd, mapped[:8192], 0)
        assert not disk.is_resident(fd, mapped[: 512 * 1024], 0)


def test_what_is_read_ahead_becomes_resident(evicted):
    disk, fd, mapped = evicted

    disk.read_ahead(fd, 0, SIZE)
    disk.read(fd, SIZE, 0)

    assert disk.is_resident(fd, mapped, 0)
