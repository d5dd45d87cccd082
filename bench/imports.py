"""What importing the protocol costs, beyond what its dependencies cost by themselves.

    python bench/imports.py [--quick]

Each line is a fresh process that imports the dependencies, then looks at the clock and at its own
memory before and after it does one thing more. The median of several is shown; a warm-up run writes
the bytecode first.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from typing import Any

from benchmark import command_line, print_table, progress, recording

RUNS, QUICK_RUNS = 15, 2

PROBE = """
import json, sys, time

def resident():
    # Linux says it in pages, in a file; elsewhere the peak has to do.
    try:
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1]) * 4096
    except OSError:
        import resource
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

{dependencies}
memory, start = resident(), time.perf_counter()
{steps}
print(json.dumps([(time.perf_counter() - start) * 1e3, (resident() - memory) / 1e6]))
"""

DEPENDENCIES = "import construct, crc32c, cramjam"

FRONT = "import ottla.protocol, ottla.protocol.codec, ottla.protocol.batch"
ALL_APIS = "from ottla.protocol.registry import APIS\nfor api in APIS.values(): api.request"
ALL_CODECS = """
from ottla.protocol.registry import APIS
from ottla.protocol.compiler import codec
for api in APIS.values():
    for message in (api.request, api.response):
        for version in api.versions:
            compiled = codec(message, version)
            _ = compiled.decode_source, compiled.encode_source
"""

STEPS = {
    "import ottla.protocol": "import ottla.protocol",
    "… and its codec and batch modules": FRONT,
    "… and the messages of all apis": f"{FRONT}\n{ALL_APIS}",
    "… and every codec of every version, compiled": f"{FRONT}\n{ALL_CODECS}",
}


def measure(dependencies: str, steps: str, count: int) -> tuple[float, float]:
    """Give the median of milliseconds and megabytes."""
    script = PROBE.format(dependencies=dependencies, steps=steps)
    command = [sys.executable, "-c", script]
    # An installed package has its bytecode beside it.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    runs = [
        json.loads(subprocess.run(command, env=environment, capture_output=True, check=True).stdout)
        for _ in range(count + 1)
    ][1:]
    milliseconds, megabytes = zip(*runs, strict=True)
    return statistics.median(milliseconds), statistics.median(megabytes)


def bench_imports(count: int) -> dict[str, Any]:
    """Measure, and print the table."""
    results = {}
    progress("dependencies")
    results["the dependencies themselves"] = measure("", DEPENDENCIES, count)
    for name, steps in STEPS.items():
        progress(name)
        results[name] = measure(DEPENDENCIES, steps, count)
    progress("")
    print_table(
        "beyond the import of construct, crc32c and cramjam",
        ["", "ms", "MB"],
        [[name, f"{ms:.1f}", f"{mb:.1f}"] for name, (ms, mb) in results.items()],
    )
    return {name: {"ms": ms, "mb": mb} for name, (ms, mb) in results.items()}


def main() -> None:
    """Measure all of it."""
    options = command_line(__doc__, quick="a few seconds instead of thirty").parse_args()
    with recording("imports", options) as results:
        results["imports"] = bench_imports(QUICK_RUNS if options.quick else RUNS)


if __name__ == "__main__":
    main()
