"""A real browser for the tests of report.html: a Chromium that the machine has, driven by playwright.

python tests/browser.py REPORT.html[#op=NAME] PICTURE.png [light|dark]      a picture, as docs/report.md shows
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Iterator

NAMES = ("chromium", "chromium-headless-shell", "chromium-browser", "google-chrome")
CHROMIUM = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


def skip_reason() -> str:
    """Why no page can be opened here, "" if one can."""
    if CHROMIUM is None:
        return "no chromium on this machine: apt-get install chromium"
    if importlib.util.find_spec("playwright") is None:
        return "no playwright in this environment: pip install playwright"
    return ""


@contextmanager
def browser() -> Iterator[Any]:
    """One Chromium for many pages."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        # root may only run it without its own sandbox; the pages are made by the tests
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        started = play.chromium.launch(executable_path=CHROMIUM, args=arguments)
        try:
            yield started
        finally:
            started.close()


@contextmanager
def opened(file: Path, fragment: str = "", started: Any = None, **settings: Any) -> Iterator[Any]:
    """A page that is ready. page.complaints lists what the console told and every request beyond the file itself."""
    if started is None:
        with browser() as fresh, opened(file, fragment, fresh, **settings) as page:
            yield page
        return
    page = started.new_page(viewport={"width": 1400, "height": 900}, **settings)
    page.complaints = []
    page.on("console", lambda message: page.complaints.append(message.text))
    page.on("pageerror", lambda error: page.complaints.append(str(error)))
    page.on("dialog", lambda dialog: (page.complaints.append(dialog.message), dialog.dismiss()))
    page.on("request", lambda request: page.complaints.append(request.url) if not _own(request.url, file) else None)
    try:
        page.goto(file.as_uri() + fragment)
        page.wait_for_selector("html[data-ready]", timeout=20_000)
        yield page
    finally:
        page.close()


def _own(url: str, file: Path) -> bool:
    return url.startswith((file.as_uri(), "data:"))


def main() -> None:
    file, _, fragment = sys.argv[1].partition("#")
    scheme = sys.argv[3] if len(sys.argv) > 3 else "light"
    with opened(Path(file).resolve(), f"#{fragment}" if fragment else "", color_scheme=scheme) as page:
        page.screenshot(path=sys.argv[2])


if __name__ == "__main__":
    main()
