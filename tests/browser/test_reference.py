"""The reference page in a real browser: what it shows, how it reads on a phone, and what its forms send."""

from collections.abc import AsyncIterator

import pytest
from playwright.async_api import Browser, Page, expect

from tests.support.accessibility import LOW_CONTRAST, watched
from tests.support.browser import open_page
from tests.support.reference_document import hostile
from tests.support.reference_server import ReferenceServer, running_reference
from tests.support.service import StartService

BALANCES = "#get-v1-tokens-chain-balances-address"
CREATE = "#post-v1-webhooks"
DELETE = "#delete-v1-webhooks-id"


@pytest.fixture
async def server() -> AsyncIterator[ReferenceServer]:
    async with running_reference() as started:
        yield started


async def try_it(page: Page, operation: str) -> None:
    """Open the form of an operation, send it and wait until it says how that went."""
    form = page.locator(f"{operation} .try")
    if await form.get_attribute("open") is None:
        await form.locator("summary").click()
    await form.get_by_role("button", name="Send").click()
    await expect(form.locator(".outcome")).not_to_have_text("Waiting for the response")
    await expect(form.locator(".outcome")).not_to_be_empty()


async def test_the_page_loads_only_its_own_files_and_the_policy_blocks_nothing(
    page: Page, server: ReferenceServer
) -> None:
    problems = watched(page)
    requested: list[str] = []
    page.on("request", lambda request: requested.append(request.url))

    await page.goto(f"{server.origin}/docs")

    await expect(page.get_by_role("heading", level=1)).to_have_text("API reference")
    asked = {url.removeprefix(server.origin) for url in requested if not url.startswith("data:")}
    assert asked == {"/docs", "/docs/reference.css", "/docs/reference.js"}
    assert await page.evaluate("getComputedStyle(document.querySelector('.frame')).display") == "grid"
    assert problems == []


async def test_hostile_text_runs_nothing_and_breaks_nothing(page: Page, server: ReferenceServer) -> None:
    server.document = hostile(server.document)
    problems = watched(page)
    dialogs: list[str] = []
    page.on("dialog", lambda dialog: dialogs.append(dialog.message))

    await page.goto(f"{server.origin}/docs")
    await page.get_by_label("Filter operations").fill("balances")

    await expect(page.locator(".operation:visible")).to_have_count(1)
    assert (dialogs, problems) == ([], [])


@pytest.mark.parametrize("width", [320, 360, 800, 1280])
async def test_no_width_makes_the_page_scroll_sideways(browser: Browser, server: ReferenceServer, width: int) -> None:
    page = await open_page(browser, width=width, height=740)
    await page.goto(f"{server.origin}/docs")
    await page.get_by_label("API key").fill("svc_test_good")
    await page.locator("details").evaluate_all("all => all.forEach((details) => { details.open = true; })")
    await try_it(page, BALANCES)

    assert await page.evaluate("document.documentElement.scrollWidth") <= width


async def test_a_phone_shows_the_contents_closed_and_the_labels_of_each_cell(
    browser: Browser, server: ReferenceServer
) -> None:
    page = await open_page(browser, width=360, height=740)
    await page.goto(f"{server.origin}/docs")

    await expect(page.get_by_role("link", name="GET ERC-20 balances")).to_be_hidden()
    await page.get_by_text("Contents", exact=True).click()
    await expect(page.get_by_role("link", name="GET ERC-20 balances")).to_be_visible()
    cell = page.locator(f"{BALANCES} td[data-label=Required]").first
    assert await cell.evaluate("cell => getComputedStyle(cell, '::before').content") == '"Required: "'
    await expect(page.locator(f"{BALANCES} table").first).to_have_role("table")


@pytest.mark.parametrize("dark", [False, True])
async def test_text_stands_out_from_its_ground(browser: Browser, server: ReferenceServer, dark: bool) -> None:
    page = await open_page(browser, dark=dark)
    await page.goto(f"{server.origin}/docs")
    await try_it(page, BALANCES)
    ground = await page.evaluate("getComputedStyle(document.body).backgroundColor")

    assert await page.evaluate(LOW_CONTRAST) == []
    assert ground == ("rgb(20, 23, 27)" if dark else "rgb(255, 255, 255)")


async def test_the_first_tab_stop_skips_to_the_operations(page: Page, server: ReferenceServer) -> None:
    await page.goto(f"{server.origin}/docs")

    await page.keyboard.press("Tab")
    skip = page.get_by_role("link", name="Skip to the operations")
    await expect(skip).to_be_focused()
    await expect(skip).to_be_in_viewport()
    assert await skip.evaluate("link => getComputedStyle(link).outlineStyle") == "solid"
    await page.keyboard.press("Enter")

    await expect(page.locator("main")).to_be_focused()


async def test_the_filter_keeps_what_matches_every_word(page: Page, server: ReferenceServer) -> None:
    await page.goto(f"{server.origin}/docs")
    field = page.get_by_label("Filter operations")

    await field.fill("POST webhook")

    await expect(page.locator(".operation:visible h3")).to_have_text(["Create a webhook"])
    await expect(page.locator("nav [data-entry]:visible")).to_have_text(["POST Create a webhook"])
    await expect(page.locator("main h2:visible")).to_have_text(["Webhooks"])
    await expect(page.locator(".filter .count")).to_have_text("1 operation")


async def test_a_filter_without_matches_says_so_and_escape_brings_everything_back(
    page: Page, server: ReferenceServer
) -> None:
    await page.goto(f"{server.origin}/docs")
    field = page.get_by_label("Filter operations")

    await field.fill("nothing like this")
    await expect(page.get_by_text("No operation matches the filter.")).to_be_visible()
    await expect(page.locator(".filter .count")).to_have_text("0 operations")
    await field.press("Escape")

    await expect(page.locator(".operation:visible")).to_have_count(6)
    await expect(page.get_by_text("No operation matches the filter.")).to_be_hidden()
    await expect(page.get_by_role("heading", name="Before the first call")).to_be_visible()


async def test_trying_a_call_sends_the_key_and_shows_status_headers_time_and_exact_body(
    page: Page, server: ReferenceServer
) -> None:
    await page.goto(f"{server.origin}/docs")
    await page.get_by_label("API key").fill("svc_test_good")
    form = page.locator(f"{BALANCES} .try")
    await form.locator("summary").click()
    await form.get_by_label("address").fill("0xab/c?d")
    await form.get_by_label("limit").fill("5")

    await try_it(page, BALANCES)

    (call,) = server.calls
    assert (call.method, call.path) == ("GET", "/v1/tokens/ethereum/balances/0xab%2Fc%3Fd?limit=5")
    assert call.headers["X-API-Key"] == "svc_test_good"
    assert "Cookie" not in call.headers
    assert "Referer" not in call.headers
    text = await form.locator(".outcome").inner_text()
    status, _, rest = text.partition(" in ")
    assert status == "200 OK"
    assert rest.removesuffix(" ms").isdigit()
    await expect(form.locator(".result-headers")).to_contain_text("X-RateLimit-Remaining")
    assert await form.locator(".result-body").inner_text() == (
        '{\n  "total": 9007199254740993,\n  "tokens": [],\n  "name": "a \\"b\\" {c}",\n'
        '  "list": [\n    1,\n    {\n      "x": null\n    }\n  ]\n}'
    )


async def test_trying_a_call_with_a_body_sends_it_as_written(page: Page, server: ReferenceServer) -> None:
    await page.goto(f"{server.origin}/docs")
    form = page.locator(f"{CREATE} .try")
    await form.locator("summary").click()
    await form.get_by_label("Body").fill('{"amount": 1.10}')

    await try_it(page, CREATE)

    (call,) = server.calls
    assert (call.method, call.path, call.body) == ("POST", "/v1/webhooks", '{"amount": 1.10}')
    assert call.headers["Content-Type"] == "application/json"
    assert "X-API-Key" not in call.headers


async def test_a_refused_call_is_shown_as_a_failure(page: Page, server: ReferenceServer) -> None:
    await page.goto(f"{server.origin}/docs")
    await page.get_by_label("API key").fill("svc_test_wrong")

    await try_it(page, DELETE)

    outcome = page.locator(f"{DELETE} .outcome")
    await expect(outcome).to_contain_text("401 Unauthorized in ")
    await expect(outcome).to_have_class("outcome failed")
    assert server.calls[0].path == "/v1/webhooks/wh_1%2F2"


async def test_a_call_that_gets_no_answer_is_reported_and_can_be_sent_again(
    page: Page, server: ReferenceServer
) -> None:
    await page.goto(f"{server.origin}/docs")
    await page.route("**/v1/**", lambda route: route.abort("connectionreset"))

    await try_it(page, BALANCES)

    await expect(page.locator(f"{BALANCES} .outcome")).to_contain_text("The call failed: ")
    await expect(page.locator(f"{BALANCES} .result")).to_be_hidden()
    await expect(page.locator(f"{BALANCES} .try").get_by_role("button")).to_be_enabled()


async def test_the_key_is_kept_nowhere(page: Page, server: ReferenceServer) -> None:
    await page.goto(f"{server.origin}/docs")
    await page.get_by_label("API key").fill("svc_test_good")
    await try_it(page, BALANCES)

    stored = await page.evaluate("[Object.keys(localStorage), Object.keys(sessionStorage), document.cookie]")
    assert stored == [[], [], ""]
    assert "svc_test_good" not in page.url
    assert "svc_test_good" not in await page.content()
    await page.reload()
    await expect(page.get_by_label("API key")).to_have_value("")
    await page.get_by_label("API key").fill("svc_test_good")
    await page.goto("about:blank")
    await page.go_back()
    await expect(page.get_by_label("API key")).to_have_value("")


async def test_without_javascript_everything_can_be_read_and_nothing_is_offered_that_does_not_work(
    browser: Browser, server: ReferenceServer
) -> None:
    page = await open_page(browser, scripts=False)
    await page.goto(f"{server.origin}/docs")

    for hidden in (".filter", ".key-form", ".try", ".copy"):
        assert await page.locator(hidden).filter(visible=True).count() == 0, hidden
    await page.get_by_role("link", name="POST Create a webhook").click()
    await expect(page.get_by_role("heading", name="Create a webhook")).to_be_in_viewport()
    await page.locator(f"{BALANCES} .errors summary").click()
    await expect(page.locator(f"{BALANCES} .errors")).to_contain_text("rate_limited")


async def test_the_page_of_the_running_service_calls_that_service(page: Page, start_service: StartService) -> None:
    service = start_service()
    problems = watched(page)
    await page.goto(f"{service.origin}/docs")
    await expect(page.locator(".operation").first).to_be_visible()
    assert problems == []
    await page.get_by_label("API key").fill("svc_test_unknown")

    await try_it(page, "#get-v1-account")

    await expect(page.locator("#get-v1-account .outcome")).to_contain_text("401")
    await expect(page.locator("#get-v1-account .result-headers")).to_contain_text("X-RateLimit-Limit")
    await expect(page.locator("#get-v1-account .result-body")).to_contain_text('"code": "unauthorized"')
