"""A real browser: Chromium, and the pictures that tests leave for a person to look at."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Page, expect, sync_playwright

from tests.support import ROOT

NO_BROWSER = "no chromium on this machine; on Debian: apt-get install chromium"
_ARTEFACTS = ROOT / "test-artefacts"
_PATIENCE_MS = 120_000
_NAMES = ("chromium", "chromium-browser", "google-chrome")


def chromium() -> str | None:
    """Return the path of the browser; None if this machine has none."""
    return next(filter(None, map(shutil.which, _NAMES)), None)


@contextmanager
def opened(executable: str, width: int = 1440, height: int = 1000) -> Iterator[Page]:
    """Provide an empty page of this size in pixels, which waits for two minutes."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": width, "height": height})
        page.set_default_timeout(_PATIENCE_MS)
        try:
            yield page
        finally:
            browser.close()


def see(page: Page, url: str, *texts: str) -> None:
    """Check that the page at this address shows these texts."""
    page.goto(url)
    for text in texts:
        expect(page.get_by_text(text).first).to_be_visible(timeout=_PATIENCE_MS)


def picture(page: Page, name: str, *, whole: bool = True) -> None:
    """Keep a screenshot, of the whole page or of the window."""
    _ARTEFACTS.mkdir(exist_ok=True)
    page.screenshot(path=_ARTEFACTS / f"{name}.png", full_page=whole)
