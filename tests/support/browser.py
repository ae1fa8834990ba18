"""A browser for tests: `page` is an empty tab in a browser that this test alone uses.

The browser is the one that `tools/browser.py` prepared; nothing is fetched here. Each test starts its own, in its own
event loop, which takes about a second and leaves nothing behind that another test could see. A page reaches loopback
addresses only.
"""

from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.async_api import Browser, Page, Route, async_playwright

from tools.browser import FLAGS, ready

_START_MILLISECONDS = 30_000
_STEP_MILLISECONDS = 10_000
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_WITHOUT_HOST = ("data", "blob", "about")


@pytest.fixture(scope="session")
def browser_path() -> Path:
    """The program that the tests start as their browser."""
    path = ready()
    if path is None:
        pytest.fail("the tests have no browser yet: run `make setup-test`, or `.venv/bin/python tools/browser.py`")
    return path


@pytest.fixture
async def browser(browser_path: Path) -> AsyncIterator[Browser]:
    """A running browser without any state."""
    async with async_playwright() as playwright:
        started = await playwright.chromium.launch(
            executable_path=browser_path, args=list(FLAGS), timeout=_START_MILLISECONDS
        )
        yield started
        await started.close()


@pytest.fixture
async def page(browser: Browser) -> Page:
    """An empty tab of a desktop's size. Ends with the browser."""
    return await open_page(browser)


async def open_page(
    browser: Browser, *, width: int = 1280, height: int = 900, dark: bool = False, scripts: bool = True
) -> Page:
    """A tab in a context of its own, for tests that need another screen, colours or no JavaScript."""
    context = await browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme="dark" if dark else "light",
        java_script_enabled=scripts,
        reduced_motion="reduce",
    )
    context.set_default_timeout(_STEP_MILLISECONDS)
    await context.route("**/*", _loopback_only)
    return await context.new_page()


async def _loopback_only(route: Route) -> None:
    address = urlsplit(route.request.url)
    if address.scheme in _WITHOUT_HOST or address.hostname in _LOOPBACK:
        await route.continue_()
    else:
        await route.abort("addressunreachable")
