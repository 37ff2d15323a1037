"""The console in a real Chromium, for tests and for pictures of it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

BUSY_MS = 60_000
"""The longest wait for a state of the page: far beyond what it takes on a busy machine."""
CHROMIUM = shutil.which("chromium")
ARGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-dev-shm-usage",
]


@contextmanager
def chromium() -> Iterator[Browser]:
    """The system's Chromium."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGS)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def page_of(browser: Browser, url: str, *, first: bool = False, **settings: Any) -> Iterator[Page]:
    """A page in a context of its own. It must load nothing from elsewhere and log no error but
    those of refused requests. `first`: the browser has never been here."""
    context = browser.new_context(viewport={"width": 1200, "height": 900}, **settings)
    context.set_default_timeout(BUSY_MS)
    if not first:
        context.add_init_script("localStorage.setItem('baton.visited', 'yes')")
    page = context.new_page()
    troubles: list[str] = []
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.on(
        "console",
        lambda line: (
            troubles.append(line.text)
            if line.type == "error" and "Failed to load resource" not in line.text
            else None
        ),
    )
    page.on(
        "request",
        lambda request: (
            None
            if request.url.startswith((url.split("/ui")[0], "blob:"))
            else troubles.append(f"asked for {request.url}")
        ),
    )
    page.goto(url if "/ui" in url else f"{url}/ui")
    try:
        yield page
        assert troubles == [], troubles
    finally:
        context.close()
