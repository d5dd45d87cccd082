"""Searches for a regular expression, in a process of its own that can be killed.

    python regex_worker.py SECONDS

Some expressions take exponential time, and Python's matching neither ends nor lets another thread
run meanwhile. Reads JSON lines: first the pattern, then lists of texts; answers each list with the
numbers of those that match. The kernel ends it when an answer takes longer than SECONDS, even if
the console that would kill it is gone, and when it needs too much memory.
"""

from __future__ import annotations

import json
import re
import resource
import signal
import sys

_MAX_MEMORY_BYTES = 1024 * 1024 * 1024


def main() -> None:
    """Answer until stdin ends."""
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (_MAX_MEMORY_BYTES, most))
    seconds = int(sys.argv[1])
    pattern = re.compile(json.loads(sys.stdin.readline()))
    for line in sys.stdin:
        # Not handled by Python, which would wait for the end of the search.
        signal.alarm(seconds)
        texts: list[list[str]] = json.loads(line)
        found = [number for number, some in enumerate(texts) if any(map(pattern.search, some))]
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()
        signal.alarm(0)


if __name__ == "__main__":
    main()
