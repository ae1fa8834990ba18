"""The dashboard's pages of wallets, user operations, gas policies and chains, on a service that pays for gas."""

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import pytest
from playwright.async_api import Browser, Page, expect

from capstan.userops.codec import codec_for
from tests.support.accessibility import complaints, watched
from tests.support.browser import open_page
from tests.support.dashboard import MEMBER, OPERATOR, Dashboard, Person, enter, serving_dashboard, texts
from tests.support.devnet import EvmDevnet
from tests.support.gas import Sender, contracts_of
from tests.support.servers import wait_until


@pytest.fixture(scope="module")
def dashboard(tmp_path_factory: pytest.TempPathFactory, evm_devnet: EvmDevnet) -> Iterator[Dashboard]:
    deployment = evm_devnet.deployment
    settings = {
        "gas.signer": deployment.paymaster_signer.private_key,
        "bundler.signers": [deployment.bundler_executors[0].private_key],
    }
    contracts = {**contracts_of(evm_devnet), "bundler_unsafe": True, "block_time_ms": 1000}
    with serving_dashboard(tmp_path_factory.mktemp("operations"), evm_devnet.url, contracts, **settings) as running:
        yield running


def made_policy(dashboard: Dashboard, **form: Any) -> str:
    """The path of a new policy of the member."""
    given = {"name": "test", "network": "ethereum/devnet", "max_total_usd": "10000", **form}
    answer = dashboard.visitor(MEMBER).post("/policies", given, at="/policies/new")
    assert answer.status_code == 303, texts(answer)
    return str(answer.headers["location"]).removeprefix("/dashboard").partition("?")[0]


def other_account(dashboard: Dashboard) -> Person:
    """Somebody of a third account."""
    person = Person("other.account@example.com", "some password of theirs")
    made = dashboard.run("accounts", "invite", person.email)
    assert dashboard.join(made["link"], {"password": person.password}).status_code == 303
    return person


class Included(msgspec.Struct, frozen=True):
    """A wallet of the member whose first operation was sponsored, and is on the chain."""

    wallet: str
    hash: str
    policy: str


@pytest.fixture(scope="module")
def included(dashboard: Dashboard, evm_devnet: EvmDevnet) -> Included:
    member, sender = dashboard.visitor(MEMBER), Sender(evm_devnet, "0.8")
    made = member.post("/keys", {"name": "sends", "mode": "live", "all_scopes": "1"})
    (key,) = re.findall(r'<code id="secret-text">([^<]+)</code>', made.text)
    api = httpx.Client(base_url=f"{dashboard.origin}/v1", headers={"X-API-Key": key}, timeout=60, trust_env=False)
    where = {"chain": "ethereum", "network": "devnet"}
    wallet = {"owner": sender.owner.address, "salt": str(sender.salt), "entry_point_version": "0.8", **where}
    answer = api.post("/wallets/create", json=wallet)
    assert answer.json()["address"].lower() == sender.address.lower(), answer.text
    path = made_policy(dashboard, name="pays")
    operation = sender.operation()
    asked = {"policy_id": path.rpartition("/")[2], "user_operation": operation, **where}
    sponsored = api.post("/gas/sponsor", json=asked)
    assert sponsored.status_code == 200, sponsored.text
    signed = codec_for("0.8").render(sender.signed(operation, sponsored.json()))
    call = {"jsonrpc": "2.0", "id": 1, "method": "eth_sendUserOperation", "params": [signed, sender.entry_point]}
    found = api.post("/bundler/ethereum/devnet", json=call).json()
    assert "result" in found, found
    page = f"/operations/ethereum/devnet/{found['result']}"
    wait_until(lambda: "On the chain" in texts(member.get(page)))
    return Included(answer.json()["address"], found["result"], path)


def test_an_operation_is_followed_from_its_arrival_to_its_receipt(dashboard: Dashboard, included: Included) -> None:
    member, page = dashboard.visitor(MEMBER), f"/operations/ethereum/devnet/{included.hash}"
    wait_until(lambda: "Receipt Used" in texts(member.get(page)))
    shown = texts(member.get(page))
    for text in ("Arrived", "Found good", "Sent in a bundle", "On the chain", included.policy.rpartition("/")[2]):
        assert text in shown
    assert page in member.get(included.policy).text
    for unknown, status in (("0x" + "00" * 32, 404), ("0x12", 400), ("<script>", 400)):
        answer = member.get(f"/operations/ethereum/devnet/{unknown}")
        assert answer.status_code == status
        assert "<script>" not in answer.text


def test_operations_are_found_by_sender_and_status_and_others_see_none(
    dashboard: Dashboard, included: Included
) -> None:
    member, operator = dashboard.visitor(MEMBER), dashboard.visitor(OPERATOR)
    for query, there in (
        ({}, True),
        ({"sender": included.wallet, "state": "included"}, True),
        ({"state": "failed"}, False),
        ({"sender": "0x" + "12" * 20}, False),
    ):
        assert (included.hash in member.get("/operations", **query).text) is there
        assert (included.hash in operator.get("/operations", **query).text) is there
    wrong = member.get("/operations", sender='"><script>')
    assert (wrong.status_code, "<script>" in wrong.text) == (400, False)
    assert included.hash not in dashboard.visitor(other_account(dashboard)).get("/operations").text


def test_a_wallet_is_found_and_shown_as_the_chain_has_it(dashboard: Dashboard, included: Included) -> None:
    member, operator = dashboard.visitor(MEMBER), dashboard.visitor(OPERATOR)
    page = f"/wallets/ethereum/devnet/{included.wallet}"
    for query, there in (
        ({}, True),
        ({"address": included.wallet, "network": "ethereum/devnet"}, True),
        ({"network": "polygon/mainnet"}, False),
        ({"address": "0x" + "12" * 20}, False),
    ):
        assert (page in member.get("/wallets", **query).text) is there
    assert member.get("/wallets", address="0x1").status_code == 400
    shown = texts(member.get(page))
    assert "Wallet deployed" in shown
    assert "Nonce 1" in shown
    assert (operator.get(page).status_code, page in operator.get("/wallets").text) == (404, False)


def test_a_policy_is_made_changed_paused_and_archived(dashboard: Dashboard) -> None:
    member = dashboard.visitor(MEMBER)
    token = "0x" + "ab" * 20
    form = {
        "name": "<i>Onboarding</i>",
        "max_gas_usd": "0.5",
        "allowed_contracts": f"{token}\n\n",
        "rate_requests": "7",
    }
    path = made_policy(dashboard, **form)
    assert "&lt;i&gt;Onboarding&lt;/i&gt;" in member.get("/policies").text
    shown = texts(member.get(path))
    for text in ("One operation costs at most 0.5 USD", token, "7 in 60 seconds", "$0 spent of $10,000"):
        assert text in shown
    changed = {**form, "name": "Second", "max_gas_usd": "0.75", "max_total_usd": "1", "allowed_contracts": ""}
    assert member.post(f"{path}/edit", changed, at=f"{path}/edit").status_code == 303
    shown = texts(member.get(path))
    assert "Second active" in shown
    assert "0.75 USD" in shown
    assert token not in shown
    for action, status in (("pause", "paused"), ("resume", "active"), ("archive", "archived")):
        assert member.post(f"{path}/status", {"status": action}).status_code == 303
        assert f"Second {status}" in texts(member.get(path))
    assert member.post(f"{path}/status", {"status": "resume"}).status_code == 409
    assert member.post(f"{path}/status", {"status": "exhausted"}).status_code == 400


@pytest.mark.parametrize(
    ("form", "said"),
    [
        ({"max_gas_usd": "-1"}, "One operation costs at most: write US dollars"),
        ({"allowed_senders": "0x12"}, "Senders that are paid for: write one address"),
        ({"rate_requests": "many"}, "Rate: write whole numbers"),
        ({"valid_until": "tomorrow"}, "Valid until: write a date and a time"),
        ({"max_total_usd": ""}, "at least one rule is needed"),
        ({"name": ""}, "Name: give the policy a name"),
        ({"network": "ethereum/nowhere"}, "nowhere"),
        ({"hook_url": "http://[::1"}, "Decision hook"),
    ],
)
def test_a_form_that_is_not_right_is_shown_again_with_what_is_wrong(
    dashboard: Dashboard, form: dict[str, str], said: str
) -> None:
    given = {"name": "kept", "network": "ethereum/devnet", "max_total_usd": "5", "blocked_contracts": "0x" + "cd" * 20}
    answer = dashboard.visitor(MEMBER).post(
        "/policies",
        {**given, **form, **({"blocked_contracts": ""} if form == {"max_total_usd": ""} else {})},
        at="/policies/new",
    )
    assert answer.status_code in (400, 404)
    assert said in texts(answer)
    assert "kept" in answer.text or "name" in form


def test_policies_of_others_cannot_be_seen_changed_or_tried(dashboard: Dashboard) -> None:
    path, operator = made_policy(dashboard), dashboard.visitor(OPERATOR)
    assert operator.get(path).status_code == 404
    assert operator.get(f"{path}/edit").status_code == 404
    answers = [
        operator.post(f"{path}/{action}", {"status": "pause", "operation": "{}"}) for action in ("status", "try")
    ]
    assert [answer.status_code for answer in answers] == [404, 404]
    assert path not in operator.get("/policies").text


def test_a_dry_run_names_the_rule_and_reserves_nothing(dashboard: Dashboard, evm_devnet: EvmDevnet) -> None:
    member, sender = dashboard.visitor(MEMBER), Sender(evm_devnet, "0.8")
    operation = json.dumps(sender.operation())

    def tried(text: str = operation, **rules: str) -> str:
        path = made_policy(dashboard, **rules)
        shown = texts(member.post(f"{path}/try", {"operation": text}, at=path))
        assert "Nothing sponsored" in shown
        assert "$0 spent" in shown
        assert "reserved $" not in shown
        return shown

    assert "Would be sponsored. It costs at most" in tried(max_per_user_per_day="1", rate_requests="1")
    assert "Not sponsored. One operation costs at most ( max_gas_usd ): it may cost" in tried(max_gas_usd="0.000001")
    assert "Not sponsored. Budget for all time" in tried(max_total_usd="0.000001")
    assert "Not sponsored. Senders that are paid for" in tried(allowed_senders="0x" + "12" * 20)
    assert "Not sponsored. Contracts that may be called" in tried(allowed_contracts="0x" + "12" * 20)
    assert "the operation is not JSON" in tried("{")
    assert "user_operation.nonce: is required" in tried(json.dumps({"sender": sender.address}))


async def test_chains_stay_current_and_are_for_the_operator_alone(page: Page, dashboard: Dashboard) -> None:
    member = dashboard.visitor(MEMBER)
    assert [member.get(path).status_code for path in ("/chains", "/chains/live")] == [403, 403]
    assert "/dashboard/chains" not in member.get("/keys").text
    problems = watched(page)
    await enter(page, dashboard, OPERATOR)
    await page.get_by_role("link", name="Chains").click()
    network = page.get_by_role("region", name="ethereum/devnet")
    await expect(network).to_contain_text("healthy")
    before = await network.locator("dd").first.inner_text()
    await expect(page.locator("[data-stream-state]")).to_have_text("Live.", timeout=30_000)
    await expect(network.locator("dd").first).not_to_have_text(before, timeout=30_000)
    assert problems == []


def test_a_live_stream_ends_when_its_session_does(dashboard: Dashboard) -> None:
    visitor = dashboard.visitor(OPERATOR, fresh=True)
    with visitor.client.stream("GET", "/chains/live") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = answer.iter_lines()
        assert any("ethereum/devnet" in line for line in lines)
        visitor.post("/sign-out")
        assert any(line == "event: ended" for line in lines)


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (360, True)])
async def test_these_pages_are_fit_for_everybody(
    browser: Browser, dashboard: Dashboard, included: Included, width: int, dark: bool
) -> None:
    path = made_policy(dashboard, name="A policy with a rather long name", allowed_senders="0x" + "12" * 20)
    wrong: dict[str, list[str]] = {}
    operation = f"/operations/ethereum/devnet/{included.hash}"
    wallet = f"/wallets/ethereum/devnet/{included.wallet}"
    members = ("/policies", "/policies/new", path, f"{path}/edit", "/wallets", wallet, "/operations", operation)
    for person, paths in ((MEMBER, members), (OPERATOR, ("/chains", "/operations", "/wallets"))):
        page = await open_page(browser, width=width, height=800, dark=dark)
        problems = watched(page)
        await enter(page, dashboard, person)
        for each in paths:
            await page.goto(f"{dashboard.origin}/dashboard{each}")
            await page.locator("details").evaluate_all("all => all.forEach((each) => { each.open = true; })")
            wrong[each] = [*await complaints(page), *problems]
    assert {each: found for each, found in wrong.items() if found} == {}
