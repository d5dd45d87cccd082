"""Whether the log directory is full: logged once when it fills, and once when it recovers.

Producers retry, each time with the same error, so a line per error would say nothing new. While the
directory is full, housekeeping writes a probe of a few megabytes; that it fits is the recovery.
"""

from __future__ import annotations

import errno
import logging
from collections import Counter
from contextlib import suppress
from pathlib import Path

from ottla.storage.disk import NO_SPACE_ERRORS, Disk

logger = logging.getLogger(__name__)

#: More than a batch of the default maximum size: less space would only do for small ones.
_PROBE_BYTES = 4 * 1024 * 1024
#: Removed at the next start, like all files with this ending, if the broker is killed meanwhile.
_PROBE_NAME = "space-probe.tmp"


class DiskSpace:
    """Counts storage errors, and knows whether the log directory is full."""

    def __init__(self, log_dir: Path, disk: Disk) -> None:
        self._log_dir = log_dir
        self._disk = disk
        self.is_full = False
        #: Failed appends and flushes by errno, such as ENOSPC, or OFFLINE for an offline log.
        self.errors: Counter[str] = Counter()

    def count(self, error: Exception) -> None:
        """Count an error of the storage, and log that the directory is full if that is new."""
        number = (error.errno or 0) if isinstance(error, OSError) else 0
        self.errors[errno.errorcode.get(number, "OFFLINE")] += 1
        if number in NO_SPACE_ERRORS and not self.is_full:
            self.is_full = True
            logger.error(
                "log directory is full: producers get errors until there is space",
                extra={"log_dir": str(self._log_dir), "reason": str(error)},
            )

    def probe(self) -> None:
        """Write to a directory that was full, and log that it has space again. Blocks."""
        path = self._log_dir / _PROBE_NAME
        try:
            self._disk.write_file(path, bytes(_PROBE_BYTES), durable=False)
        except OSError:
            return
        finally:
            with suppress(OSError):
                self._disk.unlink(path)
        self.is_full = False
        logger.info("log directory has space again", extra={"log_dir": str(self._log_dir)})
