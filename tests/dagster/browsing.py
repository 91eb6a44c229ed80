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
        expect(page.get_by_text(text).filter(visible=True).first).to_be_visible(timeout=_PATIENCE_MS)  # Dagster measures with hidden texts


_WIDE_TABLES = """
Array.from(document.querySelectorAll('table')).flatMap(table => {
  const clips = element => getComputedStyle(element).overflowX !== 'visible';
  let around = table.parentElement;
  while (around && !clips(around)) around = around.parentElement;
  const edge = Math.min(innerWidth, around ? around.getBoundingClientRect().right : innerWidth);
  const right = table.getBoundingClientRect().right;
  const cut = Array.from(table.querySelectorAll('th, td')).filter(cell => clips(cell) && cell.scrollWidth > cell.clientWidth + 1);
  const what = table.innerText.slice(0, 80).replaceAll(/\\s+/g, ' ');
  return right > edge + 1 || cut.length ? [`${what}: ${Math.round(right)} of ${Math.round(edge)}, ${cut.length} cells are cut`] : [];
})"""


def tables_fit(page: Page) -> None:
    """Check that each table, also within a table, is no wider than what shows it, and none of its cells is cut. (Not the page: a heading of
    Dagster's own is wider than the window if an asset has a long name.)"""
    assert page.locator("table").count(), "the page has tables"
    assert page.evaluate(_WIDE_TABLES) == []


def picture(page: Page, name: str, *, whole: bool = True) -> None:
    """Keep a screenshot, of the whole page or of the window."""
    _ARTEFACTS.mkdir(exist_ok=True)
    page.screenshot(path=_ARTEFACTS / f"{name}.png", full_page=whole)
