"""What the documentation says is true: tables are fresh, snippets run, links lead somewhere."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def page_id(path: Path) -> str:
    return str(path.relative_to(ROOT))


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
    (docs / "protocol.md").write_text(page.replace("| 4-12 |", "| 4-13 |"))

    command = [sys.executable, str(docs / "generate.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 1
    assert "docs/protocol.md" in done.stderr


@pytest.mark.parametrize("page", [page for page in PAGES if page.stem != "spark"], ids=page_id)
def test_snippets_run(page):
    """A block that imports what it uses is run; a mere declaration is not.

    Those of spark.md are run where there is a Spark.
    """
    for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL):
        if "import" in block:
            exec(compile(block, page_id(page), "exec"), {})


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_links_to_files_lead_to_files(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


def test_every_make_target_that_is_mentioned_exists():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))

    for page in PAGES:
        for target in re.findall(r"`make ([a-z-]+)", page.read_text()):
            assert target in targets, f"{page_id(page)} speaks of make {target}"
