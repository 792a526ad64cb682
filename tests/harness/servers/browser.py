"""A real browser without a window: the distribution's Chromium, driven by playwright."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.harness.servers.jars import MissingProgram

NAMES = ("chromium", "chromium-browser", "google-chrome")


def program() -> str:
    """Return its path. Raises: MissingProgram."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        raise MissingProgram("no Chromium (package chromium)")
    return found


@contextmanager
def browser() -> Iterator[Any]:
    """Yield playwright's ``Browser``. Raises: MissingProgram."""
    path = program()
    try:
        from playwright.sync_api import sync_playwright
    except ImportError as cause:
        raise MissingProgram("no playwright") from cause
    with sync_playwright() as playwright:
        made = playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        try:
            yield made
        finally:
            made.close()
