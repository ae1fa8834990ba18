"""Pages of the dashboard that do things: webhooks, the playground, and the operator's accounts."""

import re
from collections.abc import Iterator

import pytest
from playwright.async_api import Page, expect

from tests.support.accessibility import complaints, watched
from tests.support.dashboard import MEMBER, OPERATOR, Dashboard, Person, enter, invited, serving_dashboard, texts
from tests.support.devnet import EvmDevnet
from tests.support.servers import wait_until
from tests.support.webhooks import Receiver


@pytest.fixture(scope="module")
def dashboard(tmp_path_factory: pytest.TempPathFactory, evm_devnet: EvmDevnet) -> Iterator[Dashboard]:
    with serving_dashboard(tmp_path_factory.mktemp("pages"), evm_devnet.url) as running:
        yield running


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    running = Receiver()
    yield running
    running.close()


async def test_a_webhook_is_made_tested_looked_into_paused_and_deleted(
    page: Page, dashboard: Dashboard, receiver: Receiver
) -> None:
    problems = watched(page)
    await enter(page, dashboard, MEMBER)
    await page.goto(f"{dashboard.origin}/dashboard/webhooks")
    await page.get_by_role("link", name="Create webhook").first.click()
    await page.get_by_label("Address of your receiver").fill(receiver.url("/<b>"))
    await page.get_by_label("Event").select_option("address_activity")
    await page.get_by_label("Filter").fill('{"addresses": []}')
    await page.get_by_role("button", name="Create webhook").click()
    await expect(page.locator("#secret-text")).to_contain_text("whsec_")
    secret = await page.locator("#secret-text").inner_text()
    await page.get_by_role("button", name="Send test event").click()
    await expect(page.get_by_role("status")).to_contain_text("The receiver answered 200")
    assert secret not in await page.content()
    (sent,) = receiver.received
    assert sent.json["data"] == {"chain": "ethereum", "test": True}
    receiver.answer = lambda _request: (500, {}, b"<script>alert(1)</script>")
    await page.get_by_role("button", name="Send test event").click()
    await expect(page.get_by_role("status")).to_contain_text("The receiver answered 500")
    await expect(page.get_by_role("table", name="Deliveries").get_by_role("row")).to_have_count(3)
    await page.get_by_role("link", name=receiver.received[-1].json["id"]).click()
    await expect(page.locator("#payload")).to_contain_text('"event_type": "address_activity"')
    await expect(page.get_by_role("cell", name="<script>alert(1)</script>")).to_be_visible()
    assert await complaints(page) == []
    await page.get_by_role("link", name="address_activity").click()
    await page.get_by_role("button", name="Pause").click()
    await expect(page.get_by_role("status")).to_contain_text("The webhook is paused")
    await expect(page.get_by_text("It was paused by its owner.")).to_be_visible()
    assert await complaints(page) == []
    await page.get_by_role("button", name="Resume").click()
    await expect(page.get_by_role("status")).to_contain_text("The webhook is active")
    await page.get_by_text("Delete", exact=True).click()
    await page.get_by_role("button", name="Delete webhook").click()
    await expect(page.get_by_role("status")).to_contain_text("The webhook is deleted")
    assert problems == []


def test_a_webhook_is_changed_rotated_and_replayed_by_its_owner_and_disabled_by_the_operator(
    dashboard: Dashboard, receiver: Receiver
) -> None:
    member, operator = dashboard.visitor(MEMBER), dashboard.visitor(OPERATOR)
    form = {"url": receiver.url(), "network": "ethereum/devnet", "event_type": "log", "config": "{}"}
    wrong = member.post("/webhooks", {**form, "config": '{"adresses": []}'})
    assert (wrong.status_code, "unknown key &#34;adresses&#34;" in wrong.text) == (400, True)
    assert member.post("/webhooks", {**form, "config": "[1"}).status_code == 400
    assert member.post("/webhooks", {**form, "network": "ethereum/mars"}).status_code == 404
    made = member.post("/webhooks", form)
    webhook = re.findall(r"wh_\w+", made.text)[0]
    path = f"/webhooks/{webhook}"
    assert member.post(path, {"url": receiver.url("/new"), "config": '{"topics": []}'}).status_code == 303
    assert receiver.url("/new") in member.get(path).text
    before, after = (re.findall(r"whsec_[\w+/=]+", page.text)[0] for page in (made, member.post(f"{path}/rotate")))
    assert before != after
    member.post(f"{path}/test")
    event = receiver.at("/new")[0].json["id"]
    assert member.post(f"{path}/events/{event}/replay").status_code == 303
    wait_until(lambda: [each.json["id"] for each in receiver.at("/new")] == [event, event])
    stranger = dashboard.visitor(invited(dashboard, "stranger@example.com"))
    assert [stranger.get(path).status_code, stranger.post(f"{path}/test").status_code] == [404, 404]
    assert stranger.get(f"{path}/events/{event}").status_code == 404
    assert member.post(f"{path}/disable").status_code == 403
    assert operator.post(f"{path}/delete").status_code == 404
    assert operator.post(f"{path}/disable").status_code == 303
    assert "The operator of this service disabled it." in member.get(path).text
    assert member.post(f"{path}/resume").status_code == 409
    assert operator.post(f"{path}/resume").status_code == 303
    assert member.post(f"{path}/delete").status_code == 303
    assert member.get(path).status_code == 404


def test_the_playground_runs_calls_and_tells_time_units_and_attempts(dashboard: Dashboard) -> None:
    visitor = dashboard.visitor(MEMBER)
    call = {"network": "ethereum/devnet", "method": "eth_getBalance", "params": '["0x' + "00" * 20 + '", "latest"]'}
    shown = texts(visitor.post("/playground", call))
    assert "Reply ok" in shown
    assert "Units 2" in shown
    assert '"result": "0x' in shown
    assert "-H 'X-API-Key: YOUR_API_KEY'" in shown
    assert "Reply failed" in texts(visitor.post("/playground", {**call, "params": "[]"}))
    wrong = visitor.post("/playground", {**call, "params": "[<b>"})
    assert (wrong.status_code, "[&lt;b&gt;" in wrong.text) == (400, True)
    assert visitor.post("/playground", {**call, "network": "ethereum/mars"}).status_code == 400
    unknown = visitor.post("/playground", {**call, "method": "personal_sign"})
    assert "does not exist" in texts(unknown)
    wait_until(lambda: "Dashboard" in texts(visitor.get("", range="1h")))


def test_the_operator_suspends_limits_and_invites_and_members_cannot(dashboard: Dashboard) -> None:
    operator, member = dashboard.visitor(OPERATOR), dashboard.visitor(MEMBER)
    assert [member.get("/accounts").status_code, member.post("/accounts", {"name": "x"}).status_code] == [403, 403]
    assert "/dashboard/accounts" not in member.get("/keys").text
    made = operator.post("/accounts", {"name": "Lighthouse", "plan": "free"})
    path = made.headers["location"].removeprefix("/dashboard").partition("?")[0]
    assert "Lighthouse" in operator.get("/accounts").text
    page = operator.post(f"{path}/invite", {"email": "keeper@example.com"})
    (link,) = re.findall(r'<code id="secret-text">([^<]+)</code>', page.text)
    keeper = Person("keeper@example.com", "the light is on at night")
    assert dashboard.join(link, {"password": keeper.password}).status_code == 303
    visitor = dashboard.visitor(keeper)
    assert operator.post(path, {"plan": "growth", "keys": "1"}).status_code == 303
    assert operator.post(path, {"plan": "growth", "keys": "-1"}).status_code == 400
    key = {"name": "one", "mode": "test", "all_scopes": "1"}
    assert [visitor.post("/keys", key).status_code, visitor.post("/keys", key).status_code] == [200, 403]
    assert operator.post(f"{path}/suspend").status_code == 303
    assert "This account is suspended" in visitor.get("/keys").text
    call = {"network": "ethereum/devnet", "method": "eth_chainId", "params": "[]"}
    assert visitor.post("/playground", call).status_code == 403
    assert operator.post(f"{path}/resume").status_code == 303
    assert visitor.post("/playground", call).status_code == 200
