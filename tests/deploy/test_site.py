"""The documentation site: every page has its place. `make site` builds it and checks all links."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

import ottla.client

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


class Loader(yaml.SafeLoader):
    """Leaves out objects of MkDocs's own."""


Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda _loader, _suffix, _node: None)
CONFIG = yaml.load((ROOT / "mkdocs.yml").read_text(), Loader)


def pages_in(nav):
    """Yield the pages of a navigation, in order."""
    for entry in nav:
        target = next(iter(entry.values())) if isinstance(entry, dict) else entry
        if isinstance(target, list):
            yield from pages_in(target)
        else:
            yield target


def test_every_page_is_in_the_navigation_once():
    listed = list(pages_in(CONFIG["nav"]))
    pages = [str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")]

    assert sorted(listed) == sorted(pages)


def test_the_sections_are_those_of_readers():
    sections = [next(iter(entry)) for entry in CONFIG["nav"] if isinstance(entry, dict)]

    assert sections == ["Tutorial", "How-to", "Reference", "Explanation", "Decisions"]


def test_hooks_and_excluded_files_exist():
    assert all((ROOT / hook).exists() for hook in CONFIG["hooks"])
    assert list(DOCS.glob(CONFIG["exclude_docs"].strip()))


def test_the_sdk_reference_has_every_public_class():
    directives = re.findall(r"^::: ([\w.]+)$", (DOCS / "sdk.md").read_text(), re.MULTILINE)

    assert {path.rpartition(".")[2] for path in directives} >= set(ottla.client.__all__)


def test_the_site_is_built_without_a_warning(tmp_path):
    if find_spec("mkdocs") is None or find_spec("mkdocstrings") is None:
        pytest.skip("MkDocs is not installed: make site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]

    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert (tmp_path / "source" / "broker" / "broker.py.html").exists()
