"""The one module that touches the operating system.

Everything else in storage goes through a `Disk`, so that a test can hand in one that fails at a
chosen call. Data is written with pwrite and read through a map or with pread, never written
through a map: a full disk is then an OSError for one caller, and not a SIGBUS for all.
"""

from __future__ import annotations

import errno
import fcntl
import json
import mmap
import os
import resource
import sys
from itertools import count
from pathlib import Path
from typing import Any

Buffer = bytes | bytearray | memoryview
#: Errors that a write of a whole new file can be tried again after: nothing that was there is lost.
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)

_NUMBERS = count()
_NOWAIT: int | None = getattr(os, "RWF_NOWAIT", None)


class Disk:
    """The real one. Sizes and positions are in bytes; errors are OSError."""

    def open(self, path: Path, *, create: bool = False, empty: bool = False) -> int:
        """Open a file for reading and writing; make it, or empty it, on request."""
        flags = os.O_RDWR | os.O_CLOEXEC
        flags |= (os.O_CREAT if create else 0) | (os.O_TRUNC if empty else 0)
        return os.open(path, flags, 0o644)

    def close(self, fd: int) -> None:
        """Close a file."""
        os.close(fd)

    def size(self, fd: int) -> int:
        """Give the length of a file."""
        return os.fstat(fd).st_size

    def write(self, fd: int, data: Buffer, position: int) -> int:
        """Write; give how many bytes went, which may be too few."""
        return os.pwrite(fd, data, position)

    def read(self, fd: int, size: int, position: int) -> bytes:
        """Read up to `size` bytes; fewer at the end of the file."""
        return os.pread(fd, size, position)

    def read_into(self, fd: int, buffer: bytearray | memoryview, position: int) -> int:
        """Read into a buffer; give how many bytes came."""
        return os.preadv(fd, [buffer], position)

    def is_cached(self, fd: int, position: int) -> bool:
        """Whether the byte at this position can be had without waiting for the device.

        Where the system cannot tell, the answer is no.
        """
        if _NOWAIT is None:
            return False
        try:
            return os.preadv(fd, [bytearray(1)], position, _NOWAIT) >= 0
        except OSError:
            return False

    def map(self, fd: int, size: int) -> mmap.mmap:
        """Map a file for reading."""
        return mmap.mmap(fd, size, access=mmap.ACCESS_READ)

    def resize(self, fd: int, size: int) -> None:
        """Cut a file, or lengthen it by a hole."""
        os.ftruncate(fd, size)

    def sync(self, fd: int, *, metadata: bool = False) -> None:
        """Wait until the data of a file is on the device; on request, its true length too."""
        if sys.platform == "darwin":
            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
        elif metadata:
            os.fsync(fd)
        else:
            os.fdatasync(fd)

    def sync_directory(self, path: Path) -> None:
        """Wait until the names in a directory are on the device."""
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def rename(self, source: Path, target: Path) -> None:
        """Give a file another name, replacing what had it."""
        source.replace(target)

    def unlink(self, path: Path) -> None:
        """Remove a file, if it is there."""
        path.unlink(missing_ok=True)

    def make_directory(self, path: Path) -> None:
        """Make a directory, if it is not there."""
        path.mkdir(parents=True, exist_ok=True)

    def names(self, path: Path) -> list[str]:
        """Give the names in a directory, in order."""
        return sorted(os.listdir(path))

    def replace_file(self, path: Path, content: Buffer, *, durable: bool = True) -> None:
        """Put a small file in place, whole or not at all.

        If it is to be durable, a power cut cannot lose it once this has returned.
        """
        # Two threads may be at it; the last one to rename has its way, and both are whole.
        temporary = path.with_name(f"{path.name}.{next(_NUMBERS)}.tmp")
        fd = self.open(temporary, create=True, empty=True)
        try:
            self.write_all(fd, content, 0)
            if durable:
                self.sync(fd)
        finally:
            self.close(fd)
        self.rename(temporary, path)
        if durable:
            self.sync_directory(path.parent)

    def write_all(self, fd: int, data: Buffer, position: int) -> None:
        """Write all of it. Raises OSError, when some of it may have been written."""
        done = self.write(fd, data, position)
        while done < len(data):
            # A device that is nearly full takes a part first, and says so at the next call.
            done += self.write(fd, memoryview(data)[done:], position + done)

    def descriptor_limit(self) -> int:
        """Give how many descriptors this process may have."""
        soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        return 65_536 if soft == resource.RLIM_INFINITY else soft

    def lock(self, path: Path) -> int:
        """Take a lock for this process. Raises BlockingIOError when another one has it."""
        fd = self.open(path, create=True)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            raise
        return fd


def read_json(path: Path) -> Any:
    """Read a small file that `replace_file` put in place; None if it is not there."""
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
