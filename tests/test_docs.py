"""What the documentation says is true: tables are fresh, links and names are real."""

import ast
import re
import subprocess
import sys
from functools import cache

import pytest

from harness.snippets import PAGES, ROOT, name_of

TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
LINK = re.compile(r"\[(?P<text>[^\]]*)\]\((?P<target>[^)#]*)(?:#(?P<anchor>[^)]*))?\)")


def test_generated_parts_are_what_the_code_says():
    command = [sys.executable, str(ROOT / "docs" / "generate.py"), "--check"]

    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr


def test_a_stale_part_is_noticed(tmp_path):
    """The check above can fail: a copy of docs/ with one version changed does not pass."""
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "generate.py").write_text((ROOT / "docs" / "generate.py").read_text())
    page = (ROOT / "docs" / "protocol.md").read_text()
    (docs / "protocol.md").write_text(page.replace("| 4-18 |", "| 4-19 |"))

    command = [sys.executable, str(docs / "generate.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 1
    assert "docs/protocol.md" in done.stderr


def test_every_make_target_that_is_mentioned_exists():
    for page in PAGES:
        for target in re.findall(r"`make ([a-z-]+)", page.read_text()):
            assert target in TARGETS, f"{name_of(page)} speaks of make {target}"


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


@cache
def anchors_of(page):
    """Return the anchors of headings, as GitHub derives them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {
        re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings
    }


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page):
    for link in LINK.finditer(page.read_text()):
        if "://" in link["target"]:
            continue
        target = (page.parent / link["target"]).resolve() if link["target"] else page
        assert target.exists(), link[0]
        if link["anchor"]:
            assert link["anchor"] in anchors_of(target), link[0]


@cache
def names_in(path):
    """Return what a module defines: functions, classes, their methods and attributes."""
    found = set()

    def walk(node, prefix):
        for inner in ast.iter_child_nodes(node):
            if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found.add(f"{prefix}{inner.name}")
                walk(inner, f"{prefix}{inner.name}." if isinstance(inner, ast.ClassDef) else prefix)
            elif isinstance(inner, ast.Assign | ast.AnnAssign):
                targets = inner.targets if isinstance(inner, ast.Assign) else [inner.target]
                for target in targets:
                    if isinstance(target, ast.Name):
                        found.add(f"{prefix}{target.id}")
                    elif isinstance(target, ast.Attribute):
                        found.add(f"{prefix}{target.attr}")
            else:
                walk(inner, prefix)

    walk(ast.parse(path.read_text()), "")
    return found


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_names_that_link_to_code_are_in_it(page):
    for link in LINK.finditer(page.read_text()):
        name = re.fullmatch(r"`([\w.]+)(\(\))?`", link["text"])
        if name is None or not link["target"].endswith(".py"):
            continue
        path = (page.parent / link["target"]).resolve()
        if not name[1].endswith(".py"):
            assert name[1] in names_in(path), link[0]


def test_the_index_leads_to_every_page():
    index = (ROOT / "docs" / "index.md").read_text()

    for page in ROOT.glob("docs/**/*.md"):
        if page.name != "index.md":
            assert f"({page.relative_to(ROOT / 'docs')})" in index, f"{name_of(page)} is not there"


def test_the_walk_names_nothing_that_there_is_not():
    """Names that are not links are at least somewhere in the code, or are Kafka's."""
    page = (ROOT / "docs" / "walk.md").read_text()
    rooms = ("broker", "client", "coord", "protocol", "storage")
    sources = [path for room in rooms for path in (ROOT / room).rglob("*.py")]
    words = set(re.findall(r"\w+", "\n".join(path.read_text() for path in sources)))

    for name in re.findall(r"`(\w+)`", page):
        assert name in words, name
