"""The dashboard: who gets in, what forms are taken, and how its pages are in a real browser."""

import re
import time
from collections.abc import Iterator

import httpx
import pytest
from playwright.async_api import Browser, Page, expect

from capstan.signin.totp import code_at
from tests.support.accessibility import complaints, watched
from tests.support.browser import open_page
from tests.support.dashboard import (
    MEMBER,
    OPERATOR,
    Dashboard,
    Person,
    Visitor,
    enter,
    invited,
    serving_dashboard,
    sign_in,
    texts,
)
from tests.support.devnet import EvmDevnet
from tests.support.servers import wait_until

SHARED_PAGES = (
    *("", "/start", "/playground", "/webhooks", "/webhooks/new", "/keys", "/people", "/security"),
    *("/security/second-factor", "/accounts", "/no-such-page"),
)


@pytest.fixture(scope="module")
def dashboard(tmp_path_factory: pytest.TempPathFactory, evm_devnet: EvmDevnet) -> Iterator[Dashboard]:
    with serving_dashboard(tmp_path_factory.mktemp("dashboard"), evm_devnet.url) as running:
        yield running


def test_who_is_not_signed_in_is_sent_to_sign_in_and_then_to_what_was_wanted(dashboard: Dashboard) -> None:
    visitor = dashboard.visitor()
    answer = visitor.get("/keys")
    assert (answer.status_code, answer.headers["location"]) == (303, "/dashboard/sign-in?next=%2Fdashboard%2Fkeys")
    done = visitor.sign_in(MEMBER, next="/dashboard/keys")
    assert (done.status_code, done.headers["location"]) == (303, "/dashboard/keys")
    cookie = done.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    assert visitor.get("/keys").status_code == 200
    elsewhere = dashboard.visitor().sign_in(MEMBER, next="https://evil.example/dashboard")
    assert elsewhere.headers["location"] == "/dashboard"


def test_every_answer_forbids_frames_caches_and_foreign_content(dashboard: Dashboard) -> None:
    visitor = dashboard.visitor(MEMBER)
    anonymous = dashboard.visitor()
    for answer in (visitor.get("/keys"), visitor.get("/nothing"), anonymous.get("/sign-in"), anonymous.get("/keys")):
        policy = answer.headers["content-security-policy"]
        assert "default-src 'self'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["x-content-type-options"] == "nosniff"


def test_a_wrong_password_is_told_without_saying_what_was_wrong(dashboard: Dashboard) -> None:
    answer = dashboard.visitor().sign_in(Person("nobody@example.com", "wrong"))
    assert answer.status_code == 400
    assert "the e-mail address, the password or the code is not right" in answer.text
    assert "capstan_session" not in answer.headers.get("set-cookie", "")


def test_a_form_that_none_of_our_pages_made_for_this_visitor_changes_nothing(dashboard: Dashboard) -> None:
    visitor, other = dashboard.visitor(MEMBER), dashboard.visitor(OPERATOR)
    form = {"name": "forged", "mode": "test", "all_scopes": "1"}
    good = visitor.token("/keys")
    refused = [
        visitor.client.post("/keys", data=form),
        visitor.client.post("/keys", data={**form, "form_token": other.token("/keys")}),
        visitor.client.post("/keys", data={**form, "form_token": good}, headers={"Origin": "https://evil.example"}),
        visitor.client.post("/keys", data={**form, "form_token": good}, headers={"Sec-Fetch-Site": "cross-site"}),
        dashboard.visitor().client.post("/sign-in", data={"email": MEMBER.email, "password": MEMBER.password}),
    ]
    assert [answer.status_code for answer in refused] == [403] * 5
    assert visitor.client.post("/keys", json={**form, "form_token": good}).status_code == 400
    assert "forged" not in visitor.get("/keys").text
    assert dashboard.visitor().client.post("/keys", data=form).status_code == 303


def test_nobody_touches_the_keys_and_sessions_of_others(dashboard: Dashboard) -> None:
    operator, member = dashboard.visitor(OPERATOR), dashboard.visitor(MEMBER)
    operator.post("/keys", {"name": "not yours", "mode": "test", "all_scopes": "1"})
    (key_id,) = re.findall(r"/dashboard/keys/(key_\w+)/revoke", operator.get("/keys").text)
    assert member.post(f"/keys/{key_id}/revoke").status_code == 404
    assert "not yours" not in member.get("/keys").text
    dashboard.visitor(OPERATOR, fresh=True)
    (session_id, *_) = re.findall(r"/sessions/(ses_\w+)/end", operator.get("/security").text)
    assert member.post(f"/security/sessions/{session_id}/end").status_code == 404
    assert member.post("/people", {"email": "x@example.com", "role": "operator"}).status_code == 404
    assert operator.post(f"/keys/{key_id}/revoke").status_code == 303


def test_a_session_that_was_ended_elsewhere_is_over_at_once(dashboard: Dashboard) -> None:
    person = invited(dashboard, "two.browsers@example.com")
    here, there = dashboard.visitor(person, fresh=True), dashboard.visitor(person, fresh=True)
    here.post("/security/sessions/end-others", at="/security")
    assert there.get("/keys").status_code == 303
    assert here.get("/keys").status_code == 200
    token = here.client.cookies["capstan_session"]
    here.post("/sign-out")
    stolen = Visitor(dashboard.origin)
    stolen.client.cookies.set("capstan_session", token)
    assert stolen.get("/keys").status_code == 303


def test_a_forgotten_password_is_replaced_by_mail(dashboard: Dashboard) -> None:
    person = invited(dashboard, "forgetful@example.com")
    visitor = dashboard.visitor()
    unknown = visitor.post("/forgotten", {"email": "unknown@example.com"}, at="/forgotten")
    known = visitor.post("/forgotten", {"email": person.email}, at="/forgotten")
    assert unknown.headers["location"] == known.headers["location"]
    wait_until(lambda: any(f"To: {person.email}" in mail and "/reset" in mail for mail in dashboard.mails()))
    (mail,) = [mail for mail in dashboard.mails() if f"To: {person.email}" in mail and "/reset" in mail]
    path = re.sub(r"=\n", "", mail).replace("=3D", "=").partition("/dashboard")[2].split()[0]
    done = visitor.post("/reset", {"token": path.partition("token=")[2], "password": "a fresh password"}, at=path)
    assert done.headers["location"] == "/dashboard/sign-in?done=reset"
    assert visitor.get(path).status_code == 404
    assert dashboard.visitor().sign_in(person).status_code == 400
    assert dashboard.visitor(Person(person.email, "a fresh password")).get("/keys").status_code == 200


async def test_a_key_is_made_shown_once_used_and_revoked(page: Page, dashboard: Dashboard) -> None:
    problems = watched(page)
    await sign_in(page, dashboard, MEMBER)
    await page.get_by_role("link", name="API Keys").click()
    await expect(page.get_by_text("No keys yet")).to_be_visible()
    await page.get_by_label("Name").fill("<b>server</b>")
    await page.get_by_label("All scopes").uncheck()
    await page.get_by_role("button", name="Create key").click()
    await expect(page.get_by_role("alert")).to_contain_text("choose at least one scope")
    await page.get_by_label("Name").fill("<b>server</b>")
    await page.get_by_label("All scopes").uncheck()
    await page.get_by_label("rpc:read").check()
    await page.get_by_role("button", name="Create key").click()
    secret = await page.locator("#secret-text").inner_text()
    call = {"jsonrpc": "2.0", "id": 1, "method": "eth_chainId", "params": []}
    url = f"{dashboard.origin}/v1/rpc/ethereum/devnet"

    def status() -> int:
        return httpx.post(url, json=call, headers={"X-API-Key": secret}, trust_env=False, timeout=30).status_code

    assert status() == 200
    await page.goto(f"{dashboard.origin}/dashboard/keys")
    assert secret not in await page.content()
    row = page.get_by_role("row").filter(has_text="<b>server</b>")
    await expect(row).to_contain_text(f"…{secret[-4:]}")
    await expect(row).to_contain_text("rpc:read")
    await row.get_by_text("Revoke", exact=True).click()
    await row.get_by_role("button", name="Revoke key").click()
    await expect(page.get_by_role("status")).to_contain_text("The key is revoked")
    wait_until(lambda: status() == 401)
    # The form that was refused, and nothing else.
    assert [problem for problem in problems if "400 (Bad Request)" not in problem] == []


async def test_a_second_factor_is_set_up_and_then_asked_for(page: Page, dashboard: Dashboard) -> None:
    person = invited(dashboard, "careful@example.com")
    await sign_in(page, dashboard, person)
    await page.goto(f"{dashboard.origin}/dashboard/security")
    await page.get_by_role("link", name="Set up").click()
    secret = await page.locator("#secret-text").inner_text()
    step = int(time.time()) // 30
    await page.get_by_label("Code").fill(code_at(secret, step))
    await page.get_by_role("button", name="Turn on").click()
    await expect(page.get_by_role("status")).to_contain_text("From now on a code is asked for")
    await page.get_by_role("button", name="Sign out", exact=True).first.click()
    await page.get_by_label("E-mail").fill(person.email)
    await page.get_by_label("Password").fill(person.password)
    await page.get_by_role("button", name="Sign in").click()
    await page.get_by_label("Password").fill(person.password)
    await page.get_by_label("Code").fill("000000")
    await page.get_by_role("button", name="Sign in").click()
    await expect(page.get_by_role("alert")).to_contain_text("is not right")
    await page.get_by_label("Password").fill(person.password)
    await page.get_by_label("Code").fill(code_at(secret, max(step + 1, int(time.time()) // 30)))
    await page.get_by_role("button", name="Sign in").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Overview")


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (360, True)])
async def test_every_page_is_fit_for_everybody_and_asks_nobody_else(
    browser: Browser, dashboard: Dashboard, width: int, dark: bool
) -> None:
    page = await open_page(browser, width=width, height=800, dark=dark)
    problems, hosts = watched(page), set[str]()
    page.on("request", lambda request: hosts.add(re.sub(r"^(\w+://[^/]*).*", r"\1", request.url)))
    wrong: dict[str, list[str]] = {}
    await page.goto(f"{dashboard.origin}/dashboard/sign-in")
    wrong["/sign-in"] = await complaints(page)
    await enter(page, dashboard, OPERATOR)
    for path in SHARED_PAGES:
        await page.goto(f"{dashboard.origin}/dashboard{path}")
        await page.locator("details").evaluate_all("all => all.forEach((each) => { each.open = true; })")
        wrong[path] = await complaints(page)
    assert {path: found for path, found in wrong.items() if found} == {}
    assert hosts == {dashboard.origin}
    assert [problem for problem in problems if "404" not in problem] == []


async def test_the_keyboard_skips_the_menu_and_a_phone_opens_it(browser: Browser, dashboard: Dashboard) -> None:
    page = await open_page(browser, width=390, height=800)
    await enter(page, dashboard, MEMBER)
    await page.keyboard.press("Tab")
    await expect(page.get_by_role("link", name="Skip to the page")).to_be_focused()
    await page.keyboard.press("Enter")
    await expect(page.locator("main")).to_be_focused()
    await expect(page.get_by_role("link", name="Security")).to_be_hidden()
    await page.get_by_role("button", name="Menu").click()
    await page.get_by_role("link", name="Security").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Security")


async def test_pages_work_without_scripts(browser: Browser, dashboard: Dashboard) -> None:
    page = await open_page(browser, width=390, height=800, scripts=False)
    await sign_in(page, dashboard, OPERATOR)
    await page.get_by_role("link", name="API Keys").click()
    await page.locator("summary").filter(has_text="Create a key").click()
    await page.get_by_label("Name").fill("without scripts")
    await page.get_by_role("button", name="Create key").click()
    await expect(page.locator("#secret-text")).to_contain_text("svc_test_")


def test_the_overview_counts_requests_and_errors_of_the_account_alone(dashboard: Dashboard) -> None:
    operator = dashboard.visitor(OPERATOR)
    assert "svc_test_" in operator.post("/start", at="/start").text
    made = operator.post("/keys", {"name": "counted", "mode": "test", "all_scopes": "1"})
    (secret,) = re.findall(r'<code id="secret-text">([^<]+)</code>', made.text)
    calls = [
        {
            "jsonrpc": "2.0",
            "id": number,
            "method": "eth_getBlockByNumber",
            "params": ["latest", False][: 2 - number % 2],
        }
        for number in range(4)
    ]
    answer = httpx.post(
        f"{dashboard.origin}/v1/rpc/ethereum/devnet", json=calls, headers={"X-API-Key": secret}, trust_env=False
    )
    assert answer.status_code == 200
    wait_until(lambda: "eth_getBlockByNumber 4 8 50.0 %" in texts(operator.get("", range="1h")))
    for span in ("24h", "30d"):
        assert "counted 4 8 50.0 %" in texts(operator.get("", range=span))
    assert "eth_getBlockByNumber" not in dashboard.visitor(MEMBER).get("", range="1h").text
