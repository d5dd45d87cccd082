"""Headless Chromium, driven by Playwright."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from harness.console import Console

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Page

PROGRAM = shutil.which("chromium") or shutil.which("google-chrome")
#: Marks of tests that need it. One browser: starting it takes longer than most tests.
needs_chromium = [
    pytest.mark.skipif(PROGRAM is None, reason="Chromium is not installed"),
    pytest.mark.xdist_group("chromium"),
]
# Nothing but the page connects to anything.
_OPTIONS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)


@contextmanager
def launched() -> Iterator[Browser]:
    """Run a browser, or skip the test."""
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=PROGRAM, args=_OPTIONS)
        yield browser
        browser.close()


@contextmanager
def opened(browser: Browser, console: Console, **options: Any) -> Iterator[Page]:
    """Open a page; errors of scripts and of the content security policy fail the test."""
    context = browser.new_context(base_url=console.address, **options)
    context.set_default_timeout(20_000)
    page = context.new_page()
    errors: list[str] = []

    def note(message: ConsoleMessage) -> None:
        if message.type == "error" and "Failed to load resource" not in message.text:
            errors.append(message.text)

    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", note)
    page.on("dialog", lambda dialog: errors.append(f"dialog {dialog.message}"))
    try:
        yield page
    finally:
        context.close()
    assert not errors
