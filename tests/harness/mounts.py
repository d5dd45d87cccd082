"""File systems of one's own: small ones to fill up, and ones whose power can be cut.

A shell in a private mount namespace does the mounting, and its mounts are reached through
/proc/PID/root, so that nothing of it is seen elsewhere and nothing is left when the shell is gone.
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
    """A shell that can mount, and where its mounts are seen from here."""

    def __init__(self, folder: Path) -> None:
        self.point = folder / "mount"
        self.point.mkdir()
        self._image = folder / "image"
        if not shutil.which("unshare"):
            pytest.skip("there is no unshare: private mounts cannot be made here")
        self._shell = subprocess.Popen(
            ["unshare", "--mount", "sh"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.path = Path(f"/proc/{self._shell.pid}/root{self.point}")

    def run(self, *command: object) -> str | None:
        """Run a command in the shell; None is success, a text says what went wrong."""
        line = shlex.join(map(str, command))
        try:
            self._shell.stdin.write(f"{line} </dev/null; echo; echo done $?\n")
            self._shell.stdin.flush()
        except BrokenPipeError:
            return f"the shell is gone: {self._shell.stdout.read()}"
        said = []
        for answer in self._shell.stdout:
            if answer.startswith("done "):
                return None if answer == "done 0\n" else f"{line}: {' '.join(said)}"
            said += answer.split()
        return f"{line}: the shell is gone: {' '.join(said)}"

    def mount(self, *options: object) -> None:
        failure = self.run("mount", *options, self.point)
        if failure:
            pytest.skip(f"mounts are not allowed here: {failure}")

    def mount_tmpfs(self, size: str) -> None:
        self.mount("-t", "tmpfs", "-o", f"size={size}", "none")

    def make_ext4(self, size_bytes: int) -> None:
        if not shutil.which("mkfs.ext4"):
            pytest.skip("there is no mkfs.ext4")
        with self._image.open("wb") as image:
            image.truncate(size_bytes)
        subprocess.run(["mkfs.ext4", "-q", "-F", self._image], check=True)
        self.mount_ext4()

    def mount_ext4(self) -> None:
        self.mount("-t", "ext4", "-o", "loop", self._image)

    def cut_power(self) -> None:
        """Everything that is not on the device is lost from now on, and nothing gets there."""
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
        with suppress(BrokenPipeError):  # one that may not mount has ended by itself
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
