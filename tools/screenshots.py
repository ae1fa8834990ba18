"""Takes pictures of every page of the dashboard, for people to look at: `make screenshots`.

Starts `capstan dev` in a directory of its own, fills it with a little of everything, signs in with the browser of the
tests, and writes a picture of each page, wide and narrow, light and dark, to `screenshots/`, which git ignores. With
`--running DATA_DIR` it uses a `capstan dev` that runs already, and leaves what it finds as it is.
"""

import argparse
import asyncio
import json
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from playwright.async_api import Browser, Page, async_playwright

sys.path.insert(0, str(Path(__file__).parent.parent))

from tools.browser import FLAGS, ready

TARGET = Path("screenshots")
_START_SECONDS = 120
_SCREENS = {"wide": (1360, 900), "phone": (390, 844)}
# A name for the picture, and the path.
PAGES = (
    ("overview", "/dashboard?range=1h"),
    ("start", "/dashboard/start"),
    ("playground", "/dashboard/playground"),
    ("webhooks", "/dashboard/webhooks"),
    ("webhooks-new", "/dashboard/webhooks/new"),
    ("keys", "/dashboard/keys"),
    ("people", "/dashboard/people"),
    ("security", "/dashboard/security"),
    ("second-factor", "/dashboard/security/second-factor"),
    ("accounts", "/dashboard/accounts"),
    ("wallets", "/dashboard/wallets"),
    ("operations", "/dashboard/operations"),
    ("policies", "/dashboard/policies"),
    ("policies-new", "/dashboard/policies/new"),
    ("chains", "/dashboard/chains"),
    ("missing", "/dashboard/no-such-page"),
)


async def sign_in(page: Page, origin: str, email: str, password: str) -> None:
    """Sign the browser in."""
    await page.goto(f"{origin}/dashboard/sign-in")
    await page.get_by_label("E-mail").fill(email)
    await page.get_by_label("Password").fill(password)
    await page.get_by_role("button", name="Sign in").click()
    await page.wait_for_url("**/dashboard")


async def _take(browser: Browser, document: dict[str, Any], only: str) -> None:
    origin = document["base_url"].removesuffix("/v1")
    for screen, (width, height) in _SCREENS.items():
        for dark in (False, True):
            context = await browser.new_context(
                viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light"
            )
            page = await context.new_page()
            suffix = f"{screen}-{'dark' if dark else 'light'}"
            await page.goto(f"{origin}/dashboard/sign-in")
            await page.screenshot(path=TARGET / f"sign-in-{suffix}.png", full_page=True)
            await sign_in(page, origin, document["dashboard"]["email"], document["dashboard"]["password"])
            for name, path in PAGES:
                if only and only != name:
                    continue
                await page.goto(origin + path)
                await page.screenshot(path=TARGET / f"{name}-{suffix}.png", full_page=True)
            await _open_rows(page, origin, suffix)
            await context.close()


async def _fill(browser: Browser, document: dict[str, Any]) -> None:
    """Make a little of what the pages show: some calls, a webhook and its deliveries."""
    origin = document["base_url"].removesuffix("/v1")
    page = await browser.new_page()
    await sign_in(page, origin, document["dashboard"]["email"], document["dashboard"]["password"])
    for method in ("eth_blockNumber", "eth_gasPrice", "eth_getBlockByNumber"):
        await page.goto(f"{origin}/dashboard/playground?method={method}")
        await page.get_by_role("button", name="Run").click()
    await page.goto(f"{origin}/dashboard/webhooks/new")
    await page.get_by_label("Address of your receiver").fill(f"{origin}/no-receiver")
    await page.get_by_label("Event").select_option("NEW_BLOCK")
    await page.get_by_role("button", name="Create webhook").click()
    await page.get_by_role("button", name="Send test event").click()
    await page.close()


async def _open_rows(page: Page, origin: str, suffix: str) -> None:
    """The pages behind the first row of a list: a webhook and an event of it; and a call that was run."""
    await page.goto(f"{origin}/dashboard/webhooks")
    for name in ("webhook", "webhook-event"):
        link = page.locator("tbody th a").first
        if await link.count() == 0:
            break
        await link.click()
        await page.screenshot(path=TARGET / f"{name}-{suffix}.png", full_page=True)
    await page.goto(f"{origin}/dashboard/playground?method=eth_getBlockByNumber")
    await page.get_by_role("button", name="Run").click()
    await page.screenshot(path=TARGET / f"playground-run-{suffix}.png", full_page=True)


async def _run(document: dict[str, Any], only: str, *, fill: bool) -> None:
    path = ready()
    if path is None:
        raise SystemExit("there is no browser yet: run `make setup-test`")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        if fill:
            await _fill(browser, document)
        await _take(browser, document, only)
        await browser.close()


def main() -> None:
    """Take the pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--running", type=Path, help="The data directory of a running capstan dev.")
    parser.add_argument("--only", default="", help="One page alone.")
    chosen = parser.parse_args()
    TARGET.mkdir(exist_ok=True)
    if chosen.running is not None:
        asyncio.run(_run(json.loads((chosen.running / "dev.json").read_text()), chosen.only, fill=False))
        return
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-m", "capstan", "dev", "--port", "0", "--data-dir", directory]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            asyncio.run(_run(_wait_for(Path(directory) / "dev.json"), chosen.only, fill=True))
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(60)


def _wait_for(file: Path) -> Any:
    deadline = time.monotonic() + _START_SECONDS
    while not file.exists():
        if time.monotonic() > deadline:
            raise SystemExit("capstan dev did not become ready")
        time.sleep(0.2)
    return json.loads(file.read_text())


if __name__ == "__main__":
    main()
