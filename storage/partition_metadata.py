"""The file `partition.metadata` of a log: the id of the topic that its records belong to.

    version: 0
    topic_id: 8oWLLTChS5WXzLtVQGRJYg

The format is Kafka's. A directory has the name of its topic, and a deleted topic may be created
again: the id tells their logs apart. Another line, `log_lost: true`, marks a log that was created
empty in place of one that had disappeared; the id may have disappeared with it.

The first flush of the log makes the file durable, before it makes records durable. A log without
it, or with an empty one, was written by an earlier version or has no durable records because of a
power cut; it counts as a log of the topic that has its name.
"""

from __future__ import annotations

import base64
import binascii
import logging
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from .disk import Disk

logger = logging.getLogger(__name__)

PARTITION_METADATA_FILE = "partition.metadata"


class PartitionMetadata(NamedTuple):
    """The content of the file."""

    topic_id: UUID | None = None
    #: Whether an earlier log of this partition disappeared, with its records.
    log_lost: bool = False

    def write(self, directory: Path, disk: Disk) -> None:
        """Write the file into a log's directory, without an fsync."""
        content = "version: 0\n"
        if self.topic_id is not None:
            text = base64.urlsafe_b64encode(self.topic_id.bytes).decode().rstrip("=")
            content += f"topic_id: {text}\n"
        content += "log_lost: true\n" * self.log_lost
        disk.write_file(directory / PARTITION_METADATA_FILE, content.encode(), durable=False)

    @classmethod
    def read(cls, directory: Path) -> PartitionMetadata:
        """Read the file; without a topic id if it is missing or damaged."""
        path = directory / PARTITION_METADATA_FILE
        try:
            text = path.read_text(encoding="ascii")
        except FileNotFoundError:
            return cls()
        except UnicodeDecodeError:
            text = ""
        if not text.strip("\0"):
            return cls()
        fields = dict(line.split(": ", 1) for line in text.splitlines() if ": " in line)
        if "topic_id" not in fields and fields.get("log_lost") == "true":
            return cls(None, log_lost=True)
        try:
            topic_id = UUID(bytes=base64.urlsafe_b64decode(fields["topic_id"] + "=="))
        except (KeyError, ValueError, binascii.Error):
            logger.warning("%s is damaged, ignoring it", path)
            return cls()
        return cls(topic_id, fields.get("log_lost") == "true")
