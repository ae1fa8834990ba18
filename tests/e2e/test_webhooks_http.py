"""Webhooks over HTTP: creating, listing, changing, deleting, and everything that is refused."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.devnet import EvmDevnet
from tests.support.http import assert_error, assert_standard_headers
from tests.support.webhooks import Hooks, serving_webhooks

ADDRESS = "0x70997970C51812dc3A010C7d01b50e0d17dc79C8"
URL = "http://127.0.0.1:9/hook"


@pytest.fixture(scope="module")
def hooks(tmp_path_factory: pytest.TempPathFactory, evm_devnet: EvmDevnet) -> Iterator[Hooks]:
    with serving_webhooks(tmp_path_factory.mktemp("hooks"), evm_devnet) as running:
        yield running


def test_the_life_of_a_webhook(hooks: Hooks) -> None:
    mine = hooks.with_key()
    answer = mine.create(url=URL, event_type="address_activity", config={"addresses": [ADDRESS.lower()]})
    assert answer.status_code == 201, answer.text
    assert_standard_headers(answer)
    created = answer.json()
    assert created["id"].startswith("wh_")
    assert created["signing_secret"].startswith("whsec_")
    assert created["created_at"].endswith("Z")
    assert created == {
        "id": created["id"],
        "url": URL,
        "chain": "ethereum",
        "network": "devnet",
        "event_type": "address_activity",
        "config": {"addresses": [ADDRESS.lower()]},
        "signing_secret": created["signing_secret"],
        "status": "active",
        "created_at": created["created_at"],
    }
    listed = mine.page().json()
    item = {name: value for name, value in created.items() if name not in ("config", "signing_secret")}
    assert listed == {"webhooks": [item], "page": 1, "total": 1}
    paused = mine.change(created["id"], status="paused", url=URL + "2").json()
    assert (paused["status"], paused["url"]) == ("paused", URL + "2")
    assert paused.keys() == {"id", "url", "chain", "network", "event_type", "status", "updated_at"}
    assert mine.page(status="paused").json()["total"] == 1
    assert mine.page(status="active").json()["total"] == 0
    assert mine.change(created["id"], status="active").json()["status"] == "active"
    assert mine.change(created["id"], config={}).status_code == 200
    gone = mine.delete(created["id"])
    assert gone.json() == {"id": created["id"], "deleted": True}
    for again in (mine.delete(created["id"]), mine.change(created["id"], status="paused")):
        assert_error(again, 404, "not_found")
    assert mine.page().json()["total"] == 0


def test_config_is_optional_and_replaced_whole(hooks: Hooks) -> None:
    created = hooks.created(event_type="NEW_BLOCK")
    assert created["config"] == {}
    hooks.delete(created["id"])


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"url": None}, "url"),
        ({"event_type": "nothing"}, "event_type"),
        ({"event_type": "Address_Activity"}, "event_type"),
        ({"config": []}, "config"),
        ({"config": {"colour": 1}}, "colour"),
        ({"config": {"addresses": ["0x12"]}}, "config.addresses[0]"),
        ({"config": {"contracts": [ADDRESS]}}, "contracts"),
        ({"url": "ftp://example.com/"}, "url"),
        ({"url": "nonsense"}, "url"),
        ({"url": "https://10.0.0.1/"}, "url"),
        ({"url": "http://2130706433/"}, "url"),
        ({"url": "https://user:password@example.com/"}, "url"),
        ({"url": "https://example.com/" + "x" * 2100}, "url"),
        ({"chain": None}, "chain"),
        ({"event_type": "INTERNAL_TRANSFER"}, "INTERNAL_TRANSFER"),
    ],
)
def test_what_is_wrong_is_named(hooks: Hooks, body: dict[str, Any], named: str) -> None:
    whole = {"url": URL, "event_type": "address_activity", **body}
    answer = hooks.post({name: value for name, value in {"chain": "ethereum", **whole}.items() if value is not None})
    assert_error(answer, 400, "invalid_request")
    assert named in answer.json()["error"]["message"]


@pytest.mark.parametrize("query", [{"page": 0}, {"limit": 0}, {"limit": 101}, {"status": "gone"}, {"page": "x"}])
def test_bad_pages_are_refused(hooks: Hooks, query: dict[str, Any]) -> None:
    assert_error(hooks.page(**query), 400, "invalid_request")


@pytest.mark.parametrize("body", [{"status": "disabled"}, {"status": "x"}, {"config": {"x": 1}}, {"url": "x"}])
def test_bad_changes_are_refused_and_change_nothing(hooks: Hooks, body: dict[str, Any]) -> None:
    created = hooks.created(event_type="log")
    assert_error(hooks.change(created["id"], **body), 400, "invalid_request")
    found = [each for each in hooks.page(limit=100).json()["webhooks"] if each["id"] == created["id"]]
    assert found[0]["status"] == "active"
    hooks.delete(created["id"])


def test_unknown_chains_and_others_webhooks_are_not_found(hooks: Hooks) -> None:
    assert_error(hooks.create(url=URL, event_type="log", chain="nowhere"), 404, "not_found")
    created = hooks.created(event_type="log")
    stranger = hooks.with_key()
    assert_error(stranger.delete(created["id"]), 404, "not_found")
    assert_error(stranger.change(created["id"], status="paused"), 404, "not_found")
    assert stranger.page().json()["total"] == 0
    hooks.delete(created["id"])


def test_the_plan_limits_how_many_there_are(hooks: Hooks) -> None:
    account = hooks.run("accounts", "create", "tests", "--requests-per-second", "0", "--json")["id"]
    mine = hooks.with_key("--account", account)
    ids = [mine.created(event_type="log")["id"] for _ in range(5)]
    answer = mine.create(url=URL, event_type="log")
    assert_error(answer, 403, "forbidden")
    assert "5 webhooks" in answer.json()["error"]["message"]
    mine.delete(ids[0])
    assert mine.create(url=URL, event_type="log").status_code == 201


def test_a_key_needs_the_scope(hooks: Hooks) -> None:
    reader = hooks.with_key("--scope", "rpc:read")
    answer = reader.page()
    assert_error(answer, 403, "forbidden")
    assert "webhooks:manage" in answer.json()["error"]["message"]
    assert hooks.with_key("--scope", "webhooks:manage").page().status_code == 200


def test_pages_are_the_newest_first(hooks: Hooks) -> None:
    mine = hooks.with_key()
    ids = [mine.created(event_type="log")["id"] for _ in range(5)]
    seen = [each["id"] for page in (1, 2, 3) for each in mine.page(page=page, limit=2).json()["webhooks"]]
    assert seen == ids[::-1]
    assert mine.page(page=9, limit=2).json() == {"webhooks": [], "page": 9, "total": 5}


def test_a_filter_may_have_a_hundred_thousand_addresses(hooks: Hooks) -> None:
    addresses = [f"0x{number:040x}" for number in range(100_000)]
    created = hooks.created(event_type="address_activity", config={"addresses": addresses})
    assert len(created["config"]["addresses"]) == 100_000
    hooks.delete(created["id"])


def test_the_database_holds_no_secret_in_the_clear(hooks: Hooks) -> None:
    created = hooks.created(event_type="log")
    secret = created["signing_secret"].removeprefix("whsec_").encode()
    for file in (hooks.directory / "data").glob("capstan.db*"):
        assert secret not in file.read_bytes()
    assert secret.decode() not in hooks.gateway.service.log_text
    assert secret.decode() not in json.dumps(hooks.page(limit=100).json())
    hooks.delete(created["id"])


def test_unknown_fields_are_ignored(hooks: Hooks) -> None:
    answer: httpx.Response = hooks.create(url=URL, event_type="log", colour="blue")
    assert answer.status_code == 201
    hooks.delete(answer.json()["id"])
