"""Searches for a regular expression, in a process of its own that can be killed.

Some expressions take exponential time, and Python's matching neither ends nor lets another thread
run meanwhile. Reads JSON lines: first the pattern, then lists of texts; answers each list with the
numbers of those that match.
"""

from __future__ import annotations

import json
import re
import sys


def main() -> None:
    """Answer until stdin ends."""
    pattern = re.compile(json.loads(sys.stdin.readline()))
    for line in sys.stdin:
        texts: list[list[str]] = json.loads(line)
        found = [number for number, some in enumerate(texts) if any(map(pattern.search, some))]
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
