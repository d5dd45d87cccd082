"""The workflows of GitHub Actions, tested without GitHub."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = {
    path.stem: yaml.safe_load(path.read_text())
    for path in (ROOT / ".github" / "workflows").glob("*.yml")
}
CIBUILDWHEEL = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["cibuildwheel"]


def commands_of(workflow):
    return [
        step["run"]
        for job in WORKFLOWS[workflow]["jobs"].values()
        for step in job["steps"]
        if "run" in step
    ]


def test_workflows_pass_actionlint():
    actionlint = shutil.which("actionlint")
    if actionlint is None:
        pytest.skip("actionlint is not installed")

    done = subprocess.run([actionlint], cwd=ROOT, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout) == (0, "")


def test_scripts_of_workflows_exist():
    commands = [*commands_of("ci"), *commands_of("release"), CIBUILDWHEEL["test-command"]]
    scripts = {script for command in commands for script in re.findall(r"\.ci/\w+", command)}

    assert scripts == {".ci/run", ".ci/smoke"}
    for script in scripts:
        assert os.access(ROOT / script, os.X_OK), script


def test_a_tag_is_published_after_all_other_jobs():
    jobs = WORKFLOWS["release"]["jobs"]
    publish = jobs["publish"]

    assert publish["if"] == "startsWith(github.ref, 'refs/tags/v')"
    assert {*publish["needs"], "publish"} == set(jobs)
    assert publish["permissions"] == {"id-token": "write"}
    systems = jobs["wheels"]["strategy"]["matrix"]["os"]
    assert {re.split("[-.]", system)[0] for system in systems} == {"ubuntu", "macos"}
    assert any(system.endswith("-arm") for system in systems)


def test_the_source_distribution_is_tested_without_a_compiler():
    assert any(
        "CC=/bin/false" in command and ".ci/smoke" in command for command in commands_of("release")
    )


def test_the_smoke_test_of_wheels_passes():
    done = subprocess.run(
        [sys.executable, ROOT / ".ci" / "smoke", sys.executable, "-m", "ottla"],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("ottla 0.")
