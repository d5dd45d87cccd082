"""Import time and memory of ottla.protocol, in addition to its dependencies.

    python bench/imports.py [--quick]

Each row is a new process that imports the dependencies, then reads the clock and its memory before
and after the import. The table shows the median of several runs; a first run writes the bytecode.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys

from benchmark import command_line, progress, recording, run_parts

RUNS, QUICK_RUNS = 15, 2

PROBE = """
import json, sys, time

def resident():
    # Pages on Linux; elsewhere only the peak is available.
    try:
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1]) * 4096
    except OSError:
        import resource
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

{setup}
memory, start = resident(), time.perf_counter()
{steps}
print(json.dumps([(time.perf_counter() - start) * 1e3, (resident() - memory) / 1e6]))
"""

DEPENDENCIES = "import construct, crc32c, cramjam"
MODULES = "import ottla.protocol, ottla.protocol.codec, ottla.protocol.batch"
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
    "… and its codec and batch modules": MODULES,
    "… and the messages of all APIs": f"{MODULES}\n{ALL_APIS}",
    "… and the compiled codecs of all versions": f"{MODULES}\n{ALL_CODECS}",
}


def measure(setup: str, steps: str, count: int) -> dict[str, float]:
    """Return the median milliseconds and megabytes of the steps."""
    command = [sys.executable, "-c", PROBE.format(setup=setup, steps=steps)]
    # Like an installed package, which has its bytecode.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    runs = [
        json.loads(subprocess.run(command, env=environment, capture_output=True, check=True).stdout)
        for _ in range(count + 1)
    ][1:]
    milliseconds, megabytes = zip(*runs, strict=True)
    return {"ms": statistics.median(milliseconds), "mb": statistics.median(megabytes)}


def bench_imports(count: int) -> dict[str, dict[str, float]]:
    """Measure all imports."""
    progress("dependencies")
    results = {"dependencies": measure("", DEPENDENCIES, count)}
    for name, steps in STEPS.items():
        progress(name)
        results[name] = measure(DEPENDENCIES, steps, count)
    return results


def main() -> None:
    """Measure all imports."""
    options = command_line(__doc__, quick="a few seconds instead of thirty").parse_args()
    runs = QUICK_RUNS if options.quick else RUNS
    with recording("imports", options) as results:
        run_parts("imports", options, results, {"imports": bench_imports}, runs)


if __name__ == "__main__":
    main()
