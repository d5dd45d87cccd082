"""The only module that touches the operating system.

Everything else in storage goes through a `Disk`, so that a test can pass one that fails at a chosen
call. Data is written with pwrite and read through a map or with pread, and never written through a
map: a full disk is then an OSError for one caller instead of a SIGBUS for the process.
"""

from __future__ import annotations

import errno
import fcntl
import json
import mmap
import os
import resource
import sys
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

from ottla.protocol import compiled

Buffer = bytes | bytearray | memoryview
#: Errors after which writing a whole new file may be retried: no existing data is lost.
NO_SPACE_ERRORS = (errno.ENOSPC, errno.EDQUOT)

_TEMPORARY_NUMBERS = count()
_PAGE_BYTES = 4096
_PROBE_STEP_BYTES = 128 * 1024
_READ_AHEAD_STEP_BYTES = 512 * 1024
_NOWAIT: int | None = getattr(os, "RWF_NOWAIT", None)


class Disk:
    """The real disk. Sizes and positions are in bytes; errors are OSError."""

    def open(self, path: Path, *, create: bool = False, empty: bool = False) -> int:
        """Open a file for reading and writing; create or truncate it on request."""
        flags = os.O_RDWR | os.O_CLOEXEC
        flags |= (os.O_CREAT if create else 0) | (os.O_TRUNC if empty else 0)
        return os.open(path, flags, 0o644)

    def open_for_reading(self, path: Path) -> int:
        """Open a file that is not going to be changed."""
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def close(self, fd: int) -> None:
        """Close a file."""
        os.close(fd)

    def size(self, fd: int) -> int:
        """Return the size of a file."""
        return os.fstat(fd).st_size

    def fingerprint(self, path: Path) -> tuple[int, int]:
        """Return the size of a file or directory, and when it was changed in any way (ns)."""
        status = os.stat(path)
        return status.st_size, status.st_ctime_ns

    def write(self, fd: int, data: Buffer, position: int) -> int:
        """Write, and return the number of bytes written, which may be too few."""
        return os.pwrite(fd, data, position)

    def read(self, fd: int, size: int, position: int) -> bytes:
        """Read up to `size` bytes; fewer at the end of the file."""
        return os.pread(fd, size, position)

    def read_into(self, fd: int, buffer: bytearray | memoryview, position: int) -> int:
        """Read into a buffer, and return the number of bytes read."""
        return os.preadv(fd, [buffer], position)

    def is_cached(self, fd: int, position: int) -> bool:
        """Whether the byte at this position can be read without waiting for the device.

        False where the system cannot tell, and beyond the end of the file.
        """
        if _NOWAIT is None:
            return False
        try:
            return os.preadv(fd, [bytearray(1)], position, _NOWAIT) > 0
        except OSError:
            return False

    def is_resident(self, fd: int, mapped: memoryview, position: int) -> bool:
        """Whether a part of a file is in the page cache, as far as probes of its pages tell.

        `mapped` is that part, which starts at `position`. Unlike `is_cached`, the compiled module
        does not start to read what is missing.
        """
        fast = compiled.fast
        return (
            fast.is_resident(mapped, _PROBE_STEP_BYTES)
            if fast is not None
            else all(self.is_cached(fd, position + at) for at in _probes(len(mapped)))
        )

    def read_ahead(self, fd: int, position: int, size: int) -> None:
        """Start to read a range into the page cache, where the system can."""
        if hasattr(os, "posix_fadvise"):
            # The system shortens larger ranges.
            for start in range(position, position + size, _READ_AHEAD_STEP_BYTES):
                length = min(_READ_AHEAD_STEP_BYTES, position + size - start)
                os.posix_fadvise(fd, start, length, os.POSIX_FADV_WILLNEED)

    def advise_random_access(self, fd: int) -> None:
        """Read only what is asked for from now on, without readahead, where the system can."""
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)

    def drop_from_page_cache(self, fd: int, position: int, size: int) -> None:
        """Drop the clean pages of a range from the page cache, where the system can."""
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(fd, position, size, os.POSIX_FADV_DONTNEED)

    def is_same_file(self, fd: int, path: Path) -> bool:
        """Whether a path still leads to an open file."""
        try:
            return os.path.samestat(os.fstat(fd), path.stat())
        except FileNotFoundError:
            return False

    def map(self, fd: int, size: int) -> mmap.mmap:
        """Map a file for reading. Raises OSError if it is shorter than `size`, too."""
        try:
            mapped = mmap.mmap(fd, size, access=mmap.ACCESS_READ)
        except ValueError as error:
            raise OSError(errno.EIO, f"the file is shorter than {size} bytes") from error
        # Sending mapped pages must not start to read the ones after them.
        mapped.madvise(mmap.MADV_RANDOM)
        return mapped

    def next_data(self, fd: int, position: int, end: int) -> int:
        """Return the first position from `position` on that is not in a hole; else `end`."""
        try:
            return min(end, os.lseek(fd, position, os.SEEK_DATA))
        except OSError as error:
            return end if error.errno == errno.ENXIO else position

    def resize(self, fd: int, size: int) -> None:
        """Truncate a file, or extend it with a hole."""
        os.ftruncate(fd, size)

    def set_modification_time(self, fd: int, time_ms: int) -> None:
        """Set when the file was changed."""
        os.utime(fd, (time_ms / 1000, time_ms / 1000))

    def sync(self, fd: int, *, metadata: bool = False) -> None:
        """Wait until the data of a file is durable; with `metadata`, its exact size too."""
        if sys.platform == "darwin":
            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
        elif metadata:
            os.fsync(fd)
        else:
            os.fdatasync(fd)

    def sync_path(self, path: Path) -> None:
        """Fsync a file by its path."""
        fd = self.open(path)
        try:
            self.sync(fd, metadata=True)
        finally:
            self.close(fd)

    def sync_directory(self, path: Path) -> None:
        """Wait until the names in a directory are durable."""
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def rename(self, source: Path, target: Path) -> None:
        """Rename a file, replacing any file at `target`."""
        source.replace(target)

    def unlink(self, path: Path) -> None:
        """Remove a file, if it exists."""
        path.unlink(missing_ok=True)

    def make_directory(self, path: Path) -> None:
        """Create a directory that only this user can read, if it does not exist."""
        path.mkdir(mode=0o700, parents=True, exist_ok=True)

    def names(self, path: Path) -> list[str]:
        """Return the names in a directory, sorted."""
        return sorted(os.listdir(path))

    def directory_names(self, path: Path) -> list[str]:
        """Return the names of the directories in a directory, sorted."""
        with os.scandir(path) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir())

    def read_file(self, path: Path, position: int = 0) -> bytes:
        """Read a file from a position to its end."""
        fd = self.open(path)
        try:
            return self.read(fd, self.size(fd) - position, position)
        finally:
            self.close(fd)

    def write_file(self, path: Path, content: Buffer, *, durable: bool) -> None:
        """Create or overwrite a file; if `durable`, fsync it."""
        fd = self.open(path, create=True, empty=True)
        try:
            self.write_all(fd, content, 0)
            if durable:
                self.sync(fd)
        finally:
            self.close(fd)

    def replace_file(self, path: Path, content: Buffer, *, durable: bool = True) -> None:
        """Replace a small file atomically.

        If `durable`, a power cut after this call cannot lose it.
        """
        # Two threads may write the same file: the last rename wins, and both contents are whole.
        temporary = path.with_name(f"{path.name}.{next(_TEMPORARY_NUMBERS)}.tmp")
        try:
            self.write_file(temporary, content, durable=durable)
            self.rename(temporary, path)
        except OSError:
            with suppress(OSError):  # It takes space, which may be what is missing.
                temporary.unlink(missing_ok=True)
            raise
        if durable:
            self.sync_directory(path.parent)

    def write_all(self, fd: int, data: Buffer, position: int) -> None:
        """Write all of `data`. Raises OSError, after which part of it may have been written."""
        done = self.write(fd, data, position)
        while done < len(data):
            # A nearly full device writes a part first, and reports the error at the next call.
            done += self.write(fd, memoryview(data)[done:], position + done)

    def descriptor_limit(self) -> int:
        """Return how many file descriptors this process may have."""
        soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        return 65_536 if soft == resource.RLIM_INFINITY else soft

    def map_limit(self) -> int:
        """Return how many maps this process may have (vm.max_map_count on Linux)."""
        try:
            return int(Path("/proc/sys/vm/max_map_count").read_text())
        except (OSError, ValueError):
            return 65_530

    def lock(self, path: Path) -> int:
        """Lock a file for this process. Raises BlockingIOError if another process has it."""
        fd = self.open(path, create=True)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            raise
        return fd


def _probes(size: int) -> list[int]:
    """Return the positions in a range of some size that are asked for, as the compiled module."""
    step_bytes = _PAGE_BYTES if size <= 31 * _PAGE_BYTES else _PROBE_STEP_BYTES
    return [*range(0, size, step_bytes), size - 1] if size else []


def read_json(path: Path) -> Any:
    """Read a small file written by `replace_file`; None if it does not exist."""
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
