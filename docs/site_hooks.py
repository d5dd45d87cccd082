"""Hooks of MkDocs: pages and source files outside docs/ that pages link to become pages, too.

In the repository, links lead from docs/ to files beside it. In the site, a Markdown page outside
docs/ is a page under `source/`, and a source file is a page that shows it. Links to anything else
lose their target and keep their text.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
_DOCS = "docs/"
_SOURCE = "source/"
_LINK = re.compile(r"(?<!!)\[(?P<text>[^\]]*)\]\((?P<target>[^)\s#:]+)(?P<anchor>#[^)\s]*)?\)")
_FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
_LANGUAGES = {".py": "python", ".yml": "yaml", ".java": "java", ".pyx": "cython"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the linked files."""
    waiting = [f"{_DOCS}{file.src_uri}" for file in files.documentation_pages()]
    added: set[str] = set()
    while waiting:
        page = waiting.pop()
        for path in _linked(page, (ROOT / page).read_text()):
            if path.startswith(_DOCS) or path in added or not (ROOT / path).is_file():
                continue
            added.add(path)
            files.append(File.generated(config, _uri(path), content=_content(path)))
            if path.endswith(".md"):
                waiting.append(path)
    return files


def on_page_markdown(markdown: str, *, page: Page, files: Files, **_others: object) -> str:
    """Let links lead to pages of the site."""
    here = page.file.src_uri
    original = f"{_DOCS}{here}"
    if here.startswith(_SOURCE):
        original = here.removeprefix(_SOURCE).removesuffix(".md")

    def replace(match: re.Match[str]) -> str:
        uri = _uri(_resolved(original, match["target"]))
        if files.get_file_from_path(uri) is None:
            return match["text"]
        target = posixpath.relpath(uri, posixpath.dirname(here) or ".")
        anchor = match["anchor"] or "" if uri.endswith(".md") else ""
        return f"[{match['text']}]({target}{anchor})"

    parts = _FENCE.split(markdown)
    parts[::2] = [_LINK.sub(replace, part) for part in parts[::2]]
    return "".join(parts)


def _linked(page: str, text: str) -> Iterator[str]:
    """Yield the paths that a page links to, from the root of the repository."""
    for part in _FENCE.split(text)[::2]:
        for match in _LINK.finditer(part):
            yield _resolved(page, match["target"])


def _resolved(page: str, target: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), target))


def _uri(path: str) -> str:
    """Return where a file of the repository is in the site."""
    if path.startswith(_DOCS):
        return path.removeprefix(_DOCS)
    return f"{_SOURCE}{path}.md"


def _content(path: str) -> str:
    text = (ROOT / path).read_text()
    if path.endswith(".md"):
        return text
    language = _LANGUAGES.get(os.path.splitext(path)[1], "text")
    return f"---\nsearch: {{exclude: true}}\n---\n\n# {path}\n\n````{language}\n{text}````\n"
