"""Private file systems: small ones that can be filled, and ones whose power can be cut.

A shell in a private mount namespace mounts them. They are reached through /proc/PID/root, are
invisible elsewhere, and vanish with the shell.
"""

from __future__ import annotations

import fcntl
import os
import shlex
import shutil
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

FS_IOC_SHUTDOWN = 0x8004587D
NO_LOG_FLUSH = struct.pack("I", 2)


class Mounts:
    """A shell with private mounts, and the path of its mount point."""

    def __init__(self, folder: Path) -> None:
        self.point = folder / "mount"
        self.point.mkdir()
        self._image = folder / "image"
        if not shutil.which("unshare"):
            pytest.skip("unshare is not installed")
        self._shell = subprocess.Popen(
            ["unshare", "--mount", "sh"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.path = Path(f"/proc/{self._shell.pid}/root{self.point}")

    def run(self, *command: object) -> str | None:
        """Run a command in the shell; return None, or an error message."""
        line = shlex.join(map(str, command))
        try:
            self._shell.stdin.write(f"{line} </dev/null; echo; echo done $?\n")
            self._shell.stdin.flush()
        except BrokenPipeError:
            return f"the shell has ended: {self._shell.stdout.read()}"
        output = []
        for line_out in self._shell.stdout:
            if line_out.startswith("done "):
                return None if line_out == "done 0\n" else f"{line}: {' '.join(output)}"
            output += line_out.split()
        return f"{line}: the shell has ended: {' '.join(output)}"

    def mount(self, *options: object) -> None:
        failure = self.run("mount", *options, self.point)
        if failure:
            pytest.skip(f"mounting is not permitted: {failure}")

    def mount_tmpfs(self, size: str) -> None:
        self.mount("-t", "tmpfs", "-o", f"size={size}", "none")

    def make_ext4(self, size_bytes: int) -> None:
        if not shutil.which("mkfs.ext4"):
            pytest.skip("mkfs.ext4 is not installed")
        with self._image.open("wb") as image:
            image.truncate(size_bytes)
        subprocess.run(["mkfs.ext4", "-q", "-F", self._image], check=True)
        self.mount_ext4()

    def mount_ext4(self) -> None:
        self.mount("-t", "ext4", "-o", "loop", self._image)

    def cut_power(self) -> None:
        """Shut the file system down: unsynced data is lost, and nothing is written any more."""
        fd = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.ioctl(fd, FS_IOC_SHUTDOWN, NO_LOG_FLUSH)
        except OSError as error:
            pytest.skip(f"the file system cannot be shut down: {error}")
        finally:
            os.close(fd)

    def unmount(self) -> None:
        failure = self.run("umount", self.point)
        assert failure is None, failure

    def close(self) -> None:
        with suppress(BrokenPipeError):  # without permission to mount it has ended
            self._shell.stdin.close()
        self._shell.wait(timeout=60)
        self._shell.stdout.close()


@contextmanager
def private_mounts(folder: Path) -> Iterator[Mounts]:
    mounts = Mounts(folder)
    try:
        yield mounts
    finally:
        mounts.close()
